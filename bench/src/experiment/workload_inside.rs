//! A workload that this program runs inside a Linux guest, as its first process: `run`, and settings of a run.
//!
//! The kernel's command line carries it, as the word [`KEY`], so that the initial RAM disk is the same for all workloads.

use std::sync::LazyLock;

use clap::{Args as _, Command, FromArgMatches as _};
use haltkick_vmm::{FILE_PREFIX, Image, Linux, Program, RamDisk, Refused};

use crate::host::cpulist::CpuList;
use crate::settings::{Settings, Supply};

/// Name of the word of a kernel's command line. Kernels take one with a dot in it for a module's, and pass it over.
const KEY: &str = "haltkick.inside=";
/// Line of kernels before they start the first program, unless they are told to be quiet.
pub(super) const DEFAULT_MARKER: &str = "Run /";
/// First line of the first process.
pub(crate) const HERE: &str = "haltkick-inside: user space is there";
const COMMAND: &str = "run";

#[derive(Debug)]
pub(crate) struct WorkloadInside {
    words: Vec<String>,
    settings: Settings,
}

impl WorkloadInside {
    /// Reads `text`, words as a shell has them.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let words = shlex::split(text).ok_or("a quote has no end")?;
        if words.first().map(String::as_str) != Some(COMMAND) {
            return Err(format!("it begins with '{COMMAND}', as in \"{COMMAND} --lock ticket --ratio 4\""));
        }
        let known = Settings::augment_args(Command::new(COMMAND)).disable_help_flag(true);
        let matches = known.try_get_matches_from(&words).map_err(|error| {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default();
            format!("{}: it takes settings of `haltkick run`", first.trim_start_matches("error: "))
        })?;
        let mut settings = Settings::from_arg_matches(&matches).map_err(|error| error.to_string())?;
        let mut words = words;
        // Threads that the kernel schedules: it is what is compared.
        for (setting, value) in [("engine", "threads"), ("sched", "host")] {
            let runs_threads = settings.given("engine").is_none_or(|engine| engine.text() == "threads");
            if runs_threads && settings.given(setting).is_none() {
                settings.set(setting, value)?;
                words.extend([format!("--{setting}"), value.to_owned()]);
            }
        }
        if settings.given("vm").is_some() || settings.given("guests").is_some() {
            return Err("it runs one guest, and not several".into());
        }
        if settings.locks().any(|lock| lock.starts_with(FILE_PREFIX)) {
            return Err(
                "a lock object is a file of this host, which is not inside: name a built-in lock".into()
            );
        }
        Ok(Self { words, settings })
    }

    /// Refuses what cannot run on a machine with as many CPUs.
    fn check(&self, cpus: u32) -> Result<(), String> {
        // Read once: an experiment has a workload in each of its cells.
        static IMAGE: LazyLock<Image> = LazyLock::new(Image::embedded);
        let run = self.settings.resolve(Supply { image: &IMAGE, allowed: &CpuList((0..cpus).collect()) });
        run.map(drop).map_err(|Refused { about, message }| format!("--{about}: {message}"))
    }

    /// Its word of a kernel's command line.
    fn word(&self) -> String {
        let escaped = |byte: u8| match byte {
            b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => char::from(byte).to_string(),
            b'-' | b'_' | b'.' | b',' | b':' | b'=' | b'/' => char::from(byte).to_string(),
            _ => format!("%{byte:02x}"),
        };
        let each = self.words.iter().map(|word| word.bytes().map(escaped).collect::<String>());
        KEY.to_owned() + &each.collect::<Vec<_>>().join("+")
    }

    /// Has `linux` run it, on `cpus` CPUs.
    pub(super) fn put_into(&self, linux: &mut Linux, cpus: u32) -> Result<(), String> {
        self.check(cpus)?;
        if linux.marker == DEFAULT_MARKER {
            linux.marker = HERE.into();
        }
        linux.append = format!("{} {}", linux.append, self.word()).trim_start().to_owned();
        linux.initrd = Some(RamDisk::Program(Program::own().map_err(|error| error.to_string())?));
        Ok(())
    }
}

/// Words of the workload on a kernel's command line, if it has one.
pub(crate) fn on_command_line(line: &str) -> Option<Vec<String>> {
    let word = line.split_ascii_whitespace().filter_map(|word| word.strip_prefix(KEY)).next_back()?;
    word.split('+').map(plain).collect()
}

/// A word without escapes; `None` where one is broken.
fn plain(word: &str) -> Option<String> {
    let mut parts = word.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(part.get(..2)?, 16).ok()?);
        bytes.extend(part[2..].bytes());
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_back_from_a_command_line() {
        for text in [
            "run --lock ticket --ratio 4 --engine threads",
            "run --engine threads --hold 1us --deschedule 'holder,rate=5,for=1ms'",
            "run --engine threads --numa 'a b+c%20\u{b5}\"='",
        ] {
            let words = shlex::split(text).unwrap();
            let inside = WorkloadInside { words: words.clone(), settings: Settings::default() };
            let line = format!("console=ttyS0 {} panic=-1", inside.word());
            assert!(inside.word().bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"'), "{line}");
            assert_eq!(on_command_line(&line), Some(words));
        }
        for line in
            ["", "haltkick.inside", "quiet haltkick.inside=%4", "haltkick.inside=%+x", "haltkick.inside=%ff"]
        {
            assert_eq!(on_command_line(line), None, "{line}");
        }
    }
}
