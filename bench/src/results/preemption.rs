//! A file that has one preemption done again, to the last bit.

use std::collections::BTreeMap;
use std::path::Path;

use haltkick_vmm::{Image, input};
use serde::{Deserialize, Serialize};

use crate::host::probe::hash;
use crate::settings::Settings;
use crate::text::exit::{Failure, Result};
use crate::text::output;

/// The one version of the format that there is.
const FORMAT: u32 = 1;
/// Most bytes of a file: far more than any that was written.
const MOST_BYTES: u64 = 1 << 20;
/// Most time that a run is looked at for.
const MOST_NS: u64 = 60_000_000_000;

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Preemption {
    pub(crate) format: u32,
    /// The instruction, for people.
    pub(crate) place: String,
    /// SHA-256 of the guest image.
    pub(crate) image_sha256: String,
    /// The vCPU that is taken off, before the instruction that follows `instructions` others.
    pub(crate) vcpu: u32,
    pub(crate) instructions: u64,
    /// Its time off; 0: it leaves its guest and comes back.
    pub(crate) for_ns: u64,
    /// Its pCPU is gone for as long.
    #[serde(default)]
    pub(crate) takes_pcpu: bool,
    /// The window closes at the first preemption, so that all other vCPUs leave while the vCPU is off.
    #[serde(default)]
    pub(crate) closes: bool,
    pub(crate) span_ns: u64,
    pub(crate) horizon_ns: u64,
    pub(crate) seed: u64,
    /// Result of the preemption: the fingerprint of the curves in hexadecimal digits, or the failure.
    pub(crate) came_to: String,
    pub(crate) settings: BTreeMap<String, String>,
    /// More preemptions of the same kind, in the same run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) then: Vec<Then>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Then {
    /// As those of [`Preemption`].
    pub(crate) place: String,
    pub(crate) vcpu: u32,
    pub(crate) instructions: u64,
}

impl Preemption {
    /// The settings as a file has them.
    pub(crate) fn settings_of(settings: &Settings) -> BTreeMap<String, String> {
        settings.all_given().map(|(setting, value)| (setting.name.to_owned(), value.to_string())).collect()
    }

    /// A preemption of `image` in the present format.
    pub(crate) fn new(image: &Image) -> Self {
        Self { format: FORMAT, image_sha256: hash(image.elf()), ..Self::default() }
    }

    pub(crate) fn is_of(&self, image: &Image) -> bool {
        self.image_sha256 == hash(image.elf())
    }

    pub(crate) fn text(&self) -> String {
        toml::to_string(self).expect("numbers and texts, and tables of them")
    }

    /// Reads one, as it was written by [`Self::text`].
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let refuse = |message: String| Failure::usage(format!("--replay: {}: {message}", path.display()));
        let text = input::read_text(path, MOST_BYTES).map_err(|error| refuse(error.to_string()))?;
        let mut read: Self = toml::from_str(&text)
            .map_err(|error| refuse(format!("{}: use a file that haltkick worst wrote", error.message())))?;
        if read.format != FORMAT {
            return Err(refuse(format!("its format is {}, and this haltkick reads {FORMAT}", read.format)));
        }
        if read.span_ns.max(read.horizon_ns) > MOST_NS {
            return Err(refuse(format!(
                "its times are longer than {} s: use a file that haltkick worst wrote",
                MOST_NS / 1_000_000_000
            )));
        }
        // Both texts go to terminals.
        let shown = [&mut read.place, &mut read.came_to].into_iter();
        shown
            .chain(read.then.iter_mut().map(|then| &mut then.place))
            .for_each(|text| *text = output::clean(text));
        Ok(read)
    }

    pub(crate) fn settings(&self) -> std::result::Result<Settings, String> {
        let mut settings = Settings::default();
        for (key, value) in &self.settings {
            settings.set(key, value)?;
        }
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::synthetic::Scratch;

    #[test]
    fn a_files_texts_have_no_commands_and_its_times_an_end() {
        let scratch = Scratch::new("preemption");
        let path = scratch.path().join("worst-001.toml");
        let read = |preemption: &Preemption| {
            std::fs::write(&path, preemption.text()).unwrap();
            Preemption::read(&path)
        };
        let escape = "x\u{1b}[31m".to_owned();
        let then = vec![Then { place: escape.clone(), vcpu: 3, instructions: 7 }];
        let image = Image::embedded();
        let written = Preemption { place: escape.clone(), came_to: escape, then, ..Preemption::new(&image) };
        let shown = read(&written).unwrap();
        let texts = [&shown.place, &shown.came_to, &shown.then[0].place];
        assert!(texts.iter().all(|text| !text.contains('\u{1b}')), "{texts:?}");
        let refused = read(&Preemption { span_ns: u64::MAX >> 1, ..written }).unwrap_err();
        assert!(refused.message.contains("longer than 60 s"), "{}", refused.message);
    }
}
