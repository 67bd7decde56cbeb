//! Texts that call themselves experiments.

use std::sync::LazyLock;

use haltkick_fuzzing::Target;
use haltkick_vmm::{Image, printable};

use super::plan::Plan;
use super::source::BUILT_IN;
use super::{Experiment, Source};
use crate::host::cpulist::CpuList;
use crate::settings::Supply;
use crate::text::exit::Exit;

pub(crate) const TARGET: Target = Target { name: "experiment", most_bytes: 256, seeds, execute };

/// The built-in experiments, and a text that is refused with a command for the terminal in it.
fn seeds() -> Vec<Vec<u8>> {
    let commands = "format = 1\nname = \"n\"\ntitle = \"t\"\n[[arm]]\nname = \"a\"\nvm = \"loc\u{96}s\"\n";
    let texts = BUILT_IN.iter().map(|(_, text)| without_comments(text));
    texts.chain([commands.into()]).map(String::into_bytes).collect()
}

/// The text without comments and empty lines, which are not read and lead nowhere.
fn without_comments(text: &str) -> String {
    let is_read = |line: &&str| !line.is_empty() && !line.starts_with('#');
    text.lines().filter(is_read).map(|line| format!("{line}\n")).collect()
}

/// Any text is refused with the place and in one line, or can be planned, or is impossible here.
fn execute(bytes: &[u8]) {
    static IMAGE: LazyLock<Image> = LazyLock::new(Image::embedded);
    let source = Source { origin: "any.toml".into(), text: String::from_utf8_lossy(bytes).into_owned() };
    let experiment = match Experiment::parse(source) {
        Ok(experiment) => experiment,
        Err(failure) => {
            assert_eq!(failure.exit, Exit::BadExperiment, "{failure}");
            return assert_eq!(failure.message, printable(&failure.message));
        }
    };
    let allowed = CpuList(vec![0, 1]);
    match Plan::new(&experiment, Supply { image: &IMAGE, allowed: &allowed }, 1) {
        Ok(plan) => assert_eq!(plan.block(0).len(), plan.cells().count(), "a block has every cell once"),
        Err(failure) => assert_eq!(failure.message, printable(&failure.message)),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn fuzz_experiment_any_text_is_refused_in_a_line_or_planned() {
        super::TARGET.run();
    }

    #[test]
    fn long_texts_take_time_in_proportion_to_their_length() {
        super::TARGET.grow();
    }
}
