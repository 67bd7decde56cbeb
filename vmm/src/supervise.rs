//! The run's own thread: waits for the guest to start, opens and closes the window, watches for trouble.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use haltkick_hypercalls::{WINDOW_CLOSED, WINDOW_OPEN};

use crate::clock::process_cpu_time;
use crate::config::{RunConfig, Sched};
use crate::error::RunError;
use crate::guest_run::GuestRun;
use crate::sched::{SchedStat, Scheduler};

/// How often it looks while the guest runs.
const POLL: Duration = Duration::from_millis(20);
/// The same while vCPUs start.
const POLL_START: Duration = Duration::from_micros(500);
/// A guest that has not moved for this long when the window closes may be slow or stuck: the watchdog decides.
const STALL_WORTH_WAITING: Duration = Duration::from_millis(100);
/// The least that the watchdog waits.
const WATCHDOG: Duration = Duration::from_secs(2);
/// Assumed slice of the host's scheduler, whose real one varies.
const HOST_SLICE: Duration = Duration::from_millis(10);

/// What the supervisor saw.
#[derive(Debug, Default)]
pub(crate) struct Observed {
    /// CPU time of the process in the window.
    pub(crate) cpu_time: Duration,
    /// Of each vCPU's thread at the opening of the window, where vCPUs have threads.
    pub(crate) at_open: Vec<Option<SchedStat>>,
    /// The same at its close.
    pub(crate) at_close: Vec<Option<SchedStat>>,
    /// A vCPU's `preempted` flag was seen set.
    pub(crate) preempted_flag_seen: bool,
}

/// Supervises one run.
pub(crate) struct Supervisor<'a> {
    config: &'a RunConfig,
    guest: &'a GuestRun<'a>,
    scheduler: &'a Scheduler<'a>,
    stop: &'a AtomicBool,
    watchdog: Duration,
    progress: u64,
    still: Duration,
    pub(crate) observed: Observed,
}

impl<'a> Supervisor<'a> {
    pub(crate) fn new(
        config: &'a RunConfig,
        guest: &'a GuestRun<'a>,
        scheduler: &'a Scheduler<'a>,
        stop: &'a AtomicBool,
    ) -> Self {
        let watchdog = config.watchdog.unwrap_or_else(|| default_watchdog(config));
        let observed = Observed::default();
        Self { config, guest, scheduler, stop, watchdog, progress: 0, still: Duration::ZERO, observed }
    }

    /// From the guest's first instruction to the close of the window.
    pub(crate) fn supervise(&mut self) -> Result<(), RunError> {
        let control = self.guest.memory.control();
        while control.started.load(Ordering::Relaxed) < self.config.vcpus {
            self.pause(POLL_START)?;
        }
        self.pass(self.config.warmup)?;

        self.observed.at_open = self.scheduler.sched_stats();
        let cpu_time = process_cpu_time();
        self.guest.window.open();
        // Relaxed: the guest polls it; a vCPU that sees it late starts counting late.
        control.window.store(WINDOW_OPEN, Ordering::Relaxed);
        let passed = self.pass(self.config.window);
        control.window.store(WINDOW_CLOSED, Ordering::Relaxed);
        self.guest.window.close();
        self.observed.cpu_time = process_cpu_time().saturating_sub(cpu_time);
        self.observed.at_close = self.scheduler.sched_stats();
        passed?;
        self.settle_stall()
    }

    fn pass(&mut self, time: Duration) -> Result<(), RunError> {
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            self.pause(left.min(POLL))?;
        }
    }

    /// A lock that stopped moving just before the end must not pass for a slow one.
    fn settle_stall(&mut self) -> Result<(), RunError> {
        if self.still > STALL_WORTH_WAITING {
            let before = self.progress;
            while self.progress == before {
                self.pause(POLL)?;
            }
        }
        Ok(())
    }

    /// Sleeps, then looks whether something ends the run.
    fn pause(&mut self, time: Duration) -> Result<(), RunError> {
        let slept = Instant::now();
        std::thread::sleep(time);
        // Relaxed: polled; nothing else is read on the strength of it.
        if self.stop.load(Ordering::Relaxed) || self.guest.failed() {
            return Err(RunError::Interrupted);
        }
        let progress = self.count_progress();
        if progress != self.progress {
            (self.progress, self.still) = (progress, Duration::ZERO);
            return Ok(());
        }
        // A process or a machine that was stopped wakes up with its guest as it was: a long sleep counts as a poll.
        self.still += slept.elapsed().min(time + POLL);
        if self.still > self.watchdog { Err(self.no_progress()) } else { Ok(()) }
    }

    /// Grows whenever a vCPU starts or gets somewhere.
    fn count_progress(&mut self) -> u64 {
        let mut progress = u64::from(self.guest.memory.control().started.load(Ordering::Relaxed));
        for vcpu in 0..self.config.vcpus {
            let area = self.guest.area(vcpu);
            let results = &area.results;
            progress = progress
                .wrapping_add(results.entered.load(Ordering::Relaxed))
                .wrapping_add(results.acquisitions.load(Ordering::Relaxed));
            self.observed.preempted_flag_seen |= area.steal.preempted.load(Ordering::Relaxed) != 0;
        }
        progress
    }

    fn no_progress(&self) -> RunError {
        let seconds = self.still.as_secs_f64();
        RunError::NoProgress(if self.scheduler.all_asleep() {
            format!("all vCPUs have slept in pv_wait for {seconds:.1} s: a wake-up was lost")
        } else {
            format!("nothing has moved for {seconds:.1} s; a slower lock needs a longer --watchdog")
        })
    }
}

/// Long enough for the slowest lock: first come first served, one acquisition whenever the next in the queue happens
/// to be scheduled.
fn default_watchdog(config: &RunConfig) -> Duration {
    let slice = match config.sched {
        Sched::Vmm => config.slice,
        Sched::Host => HOST_SLICE,
    };
    WATCHDOG.max(slice * config.vcpus.div_ceil(config.cpus.len() as u32) * 8)
}
