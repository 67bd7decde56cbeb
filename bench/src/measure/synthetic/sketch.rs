//! Plans of small experiments, made from a file's text as real ones are.

use haltkick_vmm::Image;

use crate::experiment::overrides::Overrides;
use crate::experiment::plan::Plan;
use crate::experiment::{Experiment, Source};
use crate::host::cpulist::CpuList;
use crate::settings::{Settings, Supply};
use crate::text::exit::Result;

/// The experiment of a file with these lines behind its format, name and title. Complaints name it `x.toml`.
pub(crate) fn experiment(rest: &str) -> Result<Experiment> {
    let text = format!("format = 1\nname = 'x'\ntitle = 'X'\n{rest}");
    Experiment::parse(Source { origin: "x.toml".into(), text })
}

/// A built-in experiment.
pub(crate) fn built_in(name: &str) -> Experiment {
    Experiment::parse(Source::find(name).unwrap()).unwrap()
}

/// Settings of the command line, over those of an experiment.
pub(crate) fn overrides(sets: &[(&str, &str)]) -> Overrides {
    let sets = sets.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    Overrides { sets, ..Overrides::default() }
}

/// The plan of an experiment on CPUs 0 and 1 of a host that need not have them.
pub(crate) fn planned(experiment: &Experiment) -> Result<Plan> {
    let image = Image::embedded();
    Plan::new(experiment, Supply { image: &image, allowed: &CpuList(vec![0, 1]) }, 1)
}

/// Settings with these values.
pub(crate) fn settings(given: &[(&str, &str)]) -> Settings {
    let mut settings = Settings::default();
    given.iter().for_each(|(key, value)| settings.set(key, value).expect("a good value"));
    settings
}

/// An experiment in the making, on CPUs 0 and 1 of a host that need not have them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sketch {
    head: String,
    grid: String,
    arms: String,
    control: String,
}

impl Sketch {
    /// No arms yet; a window of 50 ms.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Two arms: `a` with a test-and-set lock, `b` with a ticket lock.
    pub(crate) fn two() -> Self {
        Self::new().arm("a", "tas").arm("b", "ticket")
    }

    /// The ratio of two arms, `b` over `a`.
    pub(crate) fn compared(self) -> Self {
        self.compare("b/a", "b", "a")
    }

    /// A line of the file's head, such as `trial-blocks = 10`.
    pub(crate) fn head(mut self, line: &str) -> Self {
        self.head += &format!("{line}\n");
        self
    }

    /// A setting that varies.
    pub(crate) fn axis(mut self, key: &str, values: &[&str]) -> Self {
        self.grid += &format!("{key} = {values:?}\n");
        self
    }

    /// An arm with its lock, which is paravirtual where it is called `LOCK pv`.
    pub(crate) fn arm(self, name: &str, lock: &str) -> Self {
        let (lock, pv) = lock.strip_suffix(" pv").map_or((lock, ""), |lock| (lock, "pv = \"on\"\n"));
        self.arm_with(name, &format!("lock = {lock:?}\n{pv}"))
    }

    /// An arm with any settings.
    pub(crate) fn arm_with(mut self, name: &str, settings: &str) -> Self {
        self.arms += &format!("[[arm]]\nname = {name:?}\n{settings}\n");
        self
    }

    /// A ratio to report.
    pub(crate) fn compare(mut self, name: &str, arm: &str, baseline: &str) -> Self {
        self.arms += &format!("[[compare]]\nname = {name:?}\narm = {arm:?}\nbaseline = {baseline:?}\n");
        self
    }

    /// The A/A pair.
    pub(crate) fn control(mut self, arm: &str) -> Self {
        self.control = format!("[control]\narm = {arm:?}\n");
        self
    }

    /// The file.
    pub(crate) fn text(&self, blocks: u32) -> String {
        let Self { head, grid, arms, control } = self;
        format!(
            "format = 1\nname = \"sketch\"\ntitle = \"A sketch\"\nblocks = {blocks}\n{head}[settings]\nwindow = \"50ms\"\n\
             [grid]\n{grid}{arms}{control}"
        )
    }

    /// The plan with `blocks` blocks.
    pub(crate) fn plan(&self, blocks: u32) -> Plan {
        let source = Source { origin: "sketch.toml".into(), text: self.text(blocks) };
        let experiment = Experiment::parse(source).expect("a sketch is a good file");
        planned(&experiment).expect("a sketch is possible")
    }
}
