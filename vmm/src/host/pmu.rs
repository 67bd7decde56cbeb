//! Cache events that the host's PMU counts while vCPUs are in the guest, between the opening and the close of the window.
//!
//! A counter is opened by the thread that then starts all the others of a run, which inherit it. What runs on the host's
//! side is left out. By hand, since it is one call, and the crate for it brings an asynchronous runtime's.
#![expect(unsafe_code, reason = "neither rustix nor libc has perf_event_open")]

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _};

use crate::host::error::Known;
use crate::host::sandbox::privileges;

/// Counts of the host's PMU by name, or why there is none.
pub type CacheEvents = Vec<(&'static str, Known<u64>)>;

/// A counted event: `perf_type_id`, and its `config`.
#[derive(Clone, Copy)]
struct Event(u32, u64);

const HARDWARE: u32 = 0;
const HARDWARE_CACHE: u32 = 3;

/// Names in records, as `perf list` has them but for the hyphens. L1D read misses also count lines that come from another
/// core's cache; cache misses are those of the last level.
const EVENTS: [(&str, Event); 3] = [
    ("l1d_read_misses", Event(HARDWARE_CACHE, 1 << 16)),
    ("cache_references", Event(HARDWARE, 2)),
    ("cache_misses", Event(HARDWARE, 3)),
];

const DISABLED: u64 = 1 << 0;
const INHERIT: u64 = 1 << 1;
const EXCLUDE_HOST: u64 = 1 << 19;
/// The count comes with the times that the counter was wanted, and was on the PMU.
const READ_TIMES: u64 = 0b11;

vmm_sys_util::ioctl_io_nr!(PERF_EVENT_IOC_ENABLE, 0x24, 0);
vmm_sys_util::ioctl_io_nr!(PERF_EVENT_IOC_DISABLE, 0x24, 1);

/// One counter of the calling thread, and of all that it starts from now on.
struct Counter(File);

impl Counter {
    fn open(Event(kind, config): Event, flags: u64) -> io::Result<Self> {
        /// Bytes of `struct perf_event_attr` in its first version, which every kernel takes (perf_event_open(2)).
        const BYTES: usize = 64;
        let flags = flags | DISABLED | INHERIT;
        let kind = u64::from(kind) | (BYTES as u64) << 32;
        // Type and size, configuration, period and kind of samples, form of readings, flags, and what concerns breakpoints.
        let attributes: [u64; BYTES / 8] = [kind, config, 0, 0, READ_TIMES, flags, 0, 0];
        let (this_thread, any_cpu, no_group, close_on_exec) = (0, -1, -1, 1 << 3);
        // SAFETY: the attributes are initialised, live, and as long as they say.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attributes,
                this_thread,
                any_cpu,
                no_group,
                close_on_exec,
            )
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just returned to us, so it has no other owner.
        Ok(Self(unsafe { File::from_raw_fd(fd as i32) }))
    }

    fn switch(&self, on: bool) {
        let request = if on { PERF_EVENT_IOC_ENABLE() } else { PERF_EVENT_IOC_DISABLE() };
        // SAFETY: an ioctl of this file that takes no pointer. It fails only for files of another kind.
        unsafe { libc::ioctl(self.0.as_raw_fd(), request as _, 0) };
    }

    /// Scaled to the whole time if the PMU had fewer counters than were wanted.
    fn count(&self) -> io::Result<u64> {
        let mut bytes = [0; 24];
        (&self.0).read_exact(&mut bytes)?;
        let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| bytes[8 * at + i]));
        let (count, wanted, on) = (word(0), word(1), word(2));
        if on == 0 {
            return Err(io::Error::other("the PMU had no counter free for it"));
        }
        Ok((u128::from(count) * u128::from(wanted) / u128::from(on)) as u64)
    }
}

pub(crate) struct Pmu(Known<Vec<(&'static str, io::Result<Counter>)>>);

impl Pmu {
    pub(crate) fn none(reason: &'static str) -> Self {
        Self(Err(reason.into()))
    }

    /// To be called by the thread that starts all others, before it does.
    pub(crate) fn open() -> Self {
        let open = |(name, event)| (name, Counter::open(event, EXCLUDE_HOST));
        let counters = privileges::with_kept(|| EVENTS.map(open));
        if let Some(error) = counters.iter().find_map(|(_, counter)| counter.as_ref().err())
            && counters.iter().all(|(_, counter)| counter.is_err())
        {
            return Self(Err(explain(error).into()));
        }
        Self(Ok(counters.into()))
    }

    pub(crate) fn switch(&self, on: bool) {
        let counters = self.0.iter().flatten();
        counters.filter_map(|(_, counter)| counter.as_ref().ok()).for_each(|counter| counter.switch(on));
    }

    /// Once all threads have ended: what they counted is added to this thread's only then.
    pub(crate) fn read(&self) -> Known<CacheEvents> {
        let count = |counter: &io::Result<Counter>| match counter {
            Ok(counter) => counter.count().map_err(|error| error.to_string().into()),
            Err(error) => Err(explain(error).into()),
        };
        let counters = self.0.as_ref().map_err(Clone::clone)?;
        Ok(counters.iter().map(|(name, counter)| (*name, count(counter))).collect())
    }
}

fn explain(error: &io::Error) -> String {
    let what = match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP) => {
            "this host's PMU does not count it, or there is none"
        }
        Some(libc::EACCES | libc::EPERM) => {
            "not allowed: run as root, or set kernel.perf_event_paranoid to 2"
        }
        _ => "the kernel refused",
    };
    format!("{what} (perf_event_open: {error})")
}

#[cfg(test)]
mod tests {
    use rustix::time::ClockId;

    use super::*;
    use crate::host::clock::nanoseconds;

    /// CPU time in nanoseconds, which every kernel with perf events counts.
    const TASK_CLOCK: Event = Event(1, 1);

    /// 5 ms of this thread's own CPU time, not wall time: other tests run at the same time.
    fn work() {
        let begun = nanoseconds(ClockId::ThreadCPUTime);
        while nanoseconds(ClockId::ThreadCPUTime) - begun < 5_000_000 {}
    }

    #[test]
    fn a_counter_sums_up_what_later_threads_do_while_it_is_on() {
        let counter = match Counter::open(TASK_CLOCK, 0) {
            Ok(counter) => counter,
            Err(error) => return eprintln!("skipped: {}", explain(&error)),
        };
        work();
        assert!(counter.count().is_err(), "it counts before it is on");
        counter.switch(true);
        std::thread::scope(|scope| _ = scope.spawn(work).join());
        counter.switch(false);
        let counted = counter.count().unwrap();
        assert!(counted >= 4_000_000, "{counted} ns of 5 ms");
        work();
        assert_eq!(counter.count().unwrap(), counted, "it counts when it is off");
    }
}
