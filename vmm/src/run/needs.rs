//! What a process goes on needing of its host when it is to make some runs.

use crate::host::sandbox::Needs;
use crate::run::config::{Engine, RunConfig};
use crate::sched::Sched;

impl Needs {
    /// For runs of `configs`, with the guests beside them; files aside.
    #[must_use]
    pub fn of<'a>(configs: impl IntoIterator<Item = &'a RunConfig>) -> Self {
        let mut needs = Self::default();
        for config in configs {
            let programs = matches!(config.engine, Engine::Qemu(_));
            needs.programs |= programs;
            needs.foreign_code |= config.engine == Engine::Threads;
            needs.switches |= config.sched == Sched::Host && !programs;
            needs.counters |= config.pmu;
        }
        needs
    }
}
