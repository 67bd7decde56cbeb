//! The one signal of the VMM: it ends KVM_RUN and nothing else. Blocked in every thread that runs vCPUs, open only
//! inside KVM_RUN (see `vcpu`), taken off the queue by hand. It has no handler.
#![expect(unsafe_code, reason = "signal masks and thread-directed signals have no safe wrapper in rustix")]

use std::io;
use std::mem::MaybeUninit;

/// The kick signal: one that coalesces. A real-time signal would queue, and a guest that makes the VMM kick in a loop would fill
/// the queue that all processes of this user share. Its default action must be to end the process, or the kernel may discard it
/// where it is sent.
pub(crate) fn kick_signal() -> libc::c_int {
    libc::SIGUSR1
}

/// The kernel's signal set with every signal blocked but the kick (and those that cannot be blocked).
pub(crate) fn all_but_kick() -> u64 {
    !(1 << (kick_signal() - 1))
}

fn kick_set() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: `sigemptyset` initialises the set, `sigaddset` adds a valid signal to it.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), kick_signal());
        set.assume_init()
    }
}

/// Blocks all signals in the calling thread: kicks because they are opened in KVM_RUN only, the others because
/// they are the main thread's business. Not SIGSYS, by which a system call that was refused explains itself.
pub(crate) fn block_all() {
    let mut set = MaybeUninit::uninit();
    // SAFETY: `sigfillset` initialises the set; changing the calling thread's mask touches no memory of ours.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        libc::sigdelset(set.as_mut_ptr(), libc::SIGSYS);
        libc::pthread_sigmask(libc::SIG_SETMASK, set.as_ptr(), std::ptr::null_mut());
    }
}

/// Blocks the kick signal alone, in a thread that runs a vCPU but has other signals to serve.
pub(crate) fn block_kick() {
    let set = kick_set();
    // SAFETY: a live set; changing the calling thread's mask touches no memory of ours.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
}

/// Takes what is pending of the calling thread's kicks, which is one at most per sender that can wait: all that others sent are
/// one, a timer's may be another. One that stays ends the next KVM_RUN at once, which is harmless: the code that acts on a kick looks
/// at the clock and at the flags, not at the kick.
pub(crate) fn take_kick() {
    await_kick(0);
}

/// Sleeps for `ns`, or until the calling thread is kicked: whether it was.
pub(crate) fn await_kick(ns: u64) -> bool {
    let time = timespec(ns);
    let set = kick_set();
    // SAFETY: all pointers are to live values; a null `info` is allowed.
    unsafe { libc::sigtimedwait(&raw const set, std::ptr::null_mut(), &raw const time) >= 0 }
}

fn timespec(ns: u64) -> libc::timespec {
    libc::timespec { tv_sec: (ns / 1_000_000_000) as _, tv_nsec: (ns % 1_000_000_000) as libc::c_long }
}

/// A thread that can be kicked out of KVM_RUN.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Thread {
    process: libc::pid_t,
    thread: libc::pid_t,
}

impl Thread {
    /// The calling thread.
    pub(crate) fn current() -> Self {
        Self {
            process: std::process::id() as libc::pid_t,
            thread: rustix::thread::gettid().as_raw_nonzero().get(),
        }
    }

    /// The thread in one word, never 0.
    pub(crate) fn to_bits(self) -> u64 {
        (self.process as u64) << 32 | u64::from(self.thread as u32)
    }

    /// The thread that [`Self::to_bits`] was asked of; `None` for 0.
    pub(crate) fn from_bits(bits: u64) -> Option<Self> {
        let (process, thread) = ((bits >> 32) as libc::pid_t, bits as libc::pid_t);
        (bits != 0).then_some(Self { process, thread })
    }

    /// Its number.
    pub(crate) fn id(self) -> libc::pid_t {
        self.thread
    }

    /// Ends its present KVM_RUN, or the next one. A thread that is gone is not an error.
    pub(crate) fn kick(self) {
        // SAFETY: sends a signal; touches no memory. `tgkill` names the process too, so that a recycled number of
        // another process cannot be hit.
        unsafe { libc::syscall(libc::SYS_tgkill, self.process, self.thread, kick_signal()) };
    }
}

/// A timer that kicks the thread that made it.
#[derive(Debug)]
pub(crate) struct KickTimer(libc::timer_t);

// SAFETY: a timer belongs to the process; the handle is a number to the kernel.
unsafe impl Send for KickTimer {}

impl KickTimer {
    /// A disarmed timer for the calling thread.
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: `sigevent` is plain data for which zero is a valid value of every field.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = kick_signal();
        event.sigev_notify_thread_id = Thread::current().thread;
        let mut timer = MaybeUninit::uninit();
        // SAFETY: both pointers are to live values; on success the kernel has written the handle.
        if unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, timer.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just initialised.
        Ok(Self(unsafe { timer.assume_init() }))
    }

    /// Kicks at `first_ns` (CLOCK_MONOTONIC, not 0) and every `interval_ns` from then on (0: never again), instead of
    /// when it was set to before.
    pub(crate) fn set(&self, first_ns: u64, interval_ns: u64) {
        let setting = libc::itimerspec { it_interval: timespec(interval_ns), it_value: timespec(first_ns) };
        // SAFETY: a live timer and a live setting; a null old value is allowed. It fails only for bad arguments.
        unsafe { libc::timer_settime(self.0, libc::TIMER_ABSTIME, &raw const setting, std::ptr::null_mut()) };
    }
}

impl Drop for KickTimer {
    fn drop(&mut self) {
        // SAFETY: the handle that `new` got, deleted once.
        unsafe { libc::timer_delete(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of the calling thread's kicks can be taken one after the other.
    fn pending() -> u32 {
        let (set, now) = (kick_set(), timespec(0));
        // SAFETY: all pointers are to live values; a null `info` is allowed.
        let take = || unsafe { libc::sigtimedwait(&raw const set, std::ptr::null_mut(), &raw const now) };
        std::iter::repeat_with(take).take_while(|signal| *signal > 0).count() as u32
    }

    #[test]
    fn any_number_of_kicks_that_nobody_has_taken_is_one() {
        // Its mask is a thread's own.
        let counted = std::thread::spawn(|| {
            block_all();
            (0..10_000).for_each(|_| Thread::current().kick());
            pending()
        });
        assert_eq!(counted.join().unwrap(), 1);
    }
}
