//! The supervisor's observations.

use std::time::Duration;

use crate::host::cgroup::Counts;
use crate::host::known::Known;
use crate::observe::whereabouts::Whereabouts;
use crate::sched::run_delay::SchedStat;
use crate::sched::switch_books::Switched;

/// The supervisor's observations of one guest.
#[derive(Debug, Default)]
pub(crate) struct Observed {
    /// The run's counter when all vCPUs of all guests had started.
    pub(crate) started_tsc: u64,
    /// CPU time of the process when the window opened.
    pub(crate) cpu_at_open: Duration,
    /// CPU time of the process in the window.
    pub(crate) cpu_time: Duration,
    /// Scheduling statistics of each vCPU's thread at the opening of the window, where vCPUs have threads.
    pub(crate) at_open: Vec<Option<SchedStat>>,
    /// Scheduling statistics of each vCPU's thread at the close of the window.
    pub(crate) at_close: Vec<Option<SchedStat>>,
    /// The kernel's counts of its quota at the opening of the window and at its close, if it keeps one.
    pub(crate) quota: [Option<Counts>; 2],
    /// How many times its length the window took: more than once where too few sections were done in it.
    pub(crate) windows: u32,
    /// Waits that had not ended when the window closed, in TSC ticks up to then; or why they are unknown. Set at the close.
    pub(crate) pending_waits: Option<Known<Vec<u64>>>,
    /// A vCPU's `preempted` flag was seen set.
    pub(crate) preempted_flag_seen: bool,
    /// Totals of the switches of the vCPUs' threads, where switches are reported.
    pub(crate) switched: Option<Switched>,
    /// Each vCPU that was off its pCPU although it could run when the run ended, as far as that is known.
    pub(crate) preempted: Vec<Option<Whereabouts>>,
}
