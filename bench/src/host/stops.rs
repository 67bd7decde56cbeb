//! Time in which a process was stopped: by SIGSTOP or a debugger, by a freezer, or with its whole host.
//!
//! A thread sleeps for short times and looks how long they took by a clock that goes on while the host is suspended. What is beyond
//! the sleep, and is neither the thread's own CPU time nor time that it waited for a CPU, is time in which nothing could run.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use haltkick_vmm::Known;
use rustix::time::{ClockId, clock_gettime};

use crate::host::probe;

/// Between two looks.
const EACH: Duration = Duration::from_millis(20);
/// Timers and interrupts may delay a look by so much.
const LATE: Duration = Duration::from_millis(10);

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
                let (since, accounted) = (elapsed(), accounted()?);
                let ends = ended.recv_timeout(EACH) == Err(RecvTimeoutError::Disconnected);
                let known = EACH + self::accounted()?.saturating_sub(accounted);
                let beyond = elapsed().saturating_sub(since).saturating_sub(known);
                if beyond > LATE {
                    stopped += beyond;
                }
                if ends {
                    return Ok(stopped);
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

/// Time that the calling thread ran, or was ready and waited for a CPU.
fn accounted() -> Known<Duration> {
    let text = probe::text("/proc/thread-self/schedstat")?;
    let mut fields = text.split_ascii_whitespace().map(str::parse::<u64>);
    match (fields.next(), fields.next()) {
        (Some(Ok(run_ns @ 1..)), Some(Ok(delay_ns))) => Ok(Duration::from_nanos(run_ns + delay_ns)),
        _ => Err("/proc/thread-self/schedstat does not tell".into()),
    }
}
