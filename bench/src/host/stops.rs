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
                let (since, before) = (elapsed(), Accounted::of_this_thread()?);
                let ends = ended.recv_timeout(EACH) == Err(RecvTimeoutError::Disconnected);
                let after = Accounted::of_this_thread()?;
                let known = EACH + after.sum().saturating_sub(before.sum());
                let beyond = elapsed().saturating_sub(since).saturating_sub(known);
                if beyond > LATE {
                    stopped += beyond;
                }
                match ends {
                    true if after.ran.is_zero() => return Err(NO_STOPS.into()),
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

/// Time that a thread ran, and time that it was ready and waited for a CPU, up to its last switch.
struct Accounted {
    ran: Duration,
    waited: Duration,
}

impl Accounted {
    /// Times of the calling thread, as the kernel counts them; it may not count.
    fn of_this_thread() -> Known<Self> {
        let text = probe::text("/proc/thread-self/schedstat")?;
        let mut fields =
            text.split_ascii_whitespace().map(str::parse).map(|field| field.map(Duration::from_nanos));
        match (fields.next(), fields.next()) {
            (Some(Ok(ran)), Some(Ok(waited))) => Ok(Self { ran, waited }),
            _ => Err(NO_STOPS.into()),
        }
    }

    fn sum(&self) -> Duration {
        self.ran + self.waited
    }
}
