//! Host resources that a process must keep for the runs that it is to make.

use crate::host::sandbox::Needs;
use crate::run::asked::{Engine, Run};

impl Needs {
    /// For these runs, but for the files that they write.
    #[must_use]
    pub fn of<'a>(runs: impl IntoIterator<Item = &'a Run>) -> Self {
        let mut needs = Self::default();
        for run in runs {
            let programs = matches!(run.engine, Engine::Qemu(_));
            needs.programs |= programs;
            needs.foreign_code |= run.engine == Engine::Threads;
            needs.switches |= run.has_vcpu_threads() && !programs && run.linux().is_none();
            needs.counters |= run.pmu;
            needs.quota |= run.inherits_quota();
            for file in run.linux().into_iter().flat_map(|(_, linux)| linux.files()) {
                if !needs.reads.iter().any(|known| known == file) {
                    needs.reads.push(file.to_owned());
                }
            }
        }
        needs
    }
}
