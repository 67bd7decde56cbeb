//! Time in which a process was stopped: by SIGSTOP or a debugger, by a freezer, or with its whole host.
//!
//! A thread sleeps for short times and looks how long they took by a clock that goes on while the host is suspended. What is beyond
//! the sleep, and is neither the thread's own CPU time nor time that it waited for a CPU, is time in which nothing could run.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use haltkick_vmm::{Known, SchedStat, sched_stat_of_this_thread};
use rustix::time::{ClockId, clock_gettime};

/// Why it is not known for how long a process was stopped.
pub(crate) const NO_STOPS: &str = "/proc/thread-self/schedstat does not tell how long a thread waited";

/// Between two looks.
const EACH: Duration = Duration::from_millis(20);
/// A busy machine, or one below it, may delay a look by so much.
const LATE: Duration = Duration::from_millis(30);

/// Looks from its start to its end.
pub(crate) struct Stops {
    /// Dropped, it ends the thread.
    end: Sender<()>,
    thread: Option<JoinHandle<Known<Duration>>>,
}

impl Stops {
    /// Begins to look.
    pub(crate) fn watch() -> Self {
        let (end, ended) = channel();
        let looks = move || {
            let mut stopped = Duration::ZERO;
            loop {
                let (since, before) = (elapsed(), counted()?);
                let ends = ended.recv_timeout(EACH) == Err(RecvTimeoutError::Disconnected);
                let after = counted()?;
                let known = EACH + awake(after).saturating_sub(awake(before));
                let beyond = elapsed().saturating_sub(since).saturating_sub(known);
                if beyond > LATE {
                    stopped += beyond;
                }
                match ends {
                    true if after.run_ns == 0 => return Err(NO_STOPS.into()),
                    true => return Ok(stopped),
                    false => {}
                }
            }
        };
        let thread = std::thread::Builder::new().name("stops".into()).spawn(looks).ok();
        Self { end, thread }
    }

    /// How long this process was stopped since, but for stops shorter than a look.
    ///
    /// # Errors
    /// Why that is not known.
    pub(crate) fn finish(self) -> Known<Duration> {
        drop(self.end);
        let thread = self.thread.ok_or("no thread could be started to look")?;
        thread.join().unwrap_or_else(|_| Err("the thread that looks has failed".into()))
    }
}

/// By a clock that goes on while the host is suspended.
fn elapsed() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

/// The kernel's count of what the calling thread did.
fn counted() -> Known<SchedStat> {
    sched_stat_of_this_thread().ok_or_else(|| NO_STOPS.into())
}

/// Time of a thread that was not asleep.
fn awake(stat: SchedStat) -> Duration {
    Duration::from_nanos(stat.run_ns + stat.delay_ns)
}
