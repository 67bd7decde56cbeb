//! The one signal of the VMM, the kick: it ends KVM_RUN and nothing else. A thread receives it in one of two ways.
//!
//! - *Held*: blocked, and open only while the vCPU's code runs (threads' vCPUs, and vCPUs that halt in KVM). It stays pending, and is
//!   taken off the queue by hand.
//! - *Noted*: always open. Its handler writes it down ([`KICKED`]) and sets `kvm_run.immediate_exit` of the vCPU that the thread is
//!   about to enter. KVM_RUN then changes no signal mask, for which the kernel takes a lock of the whole process at each entry.
#![expect(unsafe_code, reason = "signal masks and thread-directed signals have no safe wrapper in rustix")]

use std::cell::Cell;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{Ordering, compiler_fence};

use vmm_sys_util::signal::{block_signal, create_sigset, unblock_signal};

use crate::host::threads::lock;

thread_local! {
    // All are constant-initialised, without destructors: safe to use in a handler.
    /// Kicks are noted; otherwise held.
    static NOTES: Cell<bool> = const { Cell::new(false) };
    /// A kick has come that has not been taken.
    static KICKED: Cell<bool> = const { Cell::new(false) };
    /// `immediate_exit` of the vCPU that this thread is about to enter, or has entered.
    static ENTERED: Cell<*mut u8> = const { Cell::new(null_mut()) };
}

extern "C" fn only_note(_: libc::c_int) {
    note_kick();
}

/// Installs the handler that notes kicks, unless [`handle_kicks`] has installed one that can do more.
pub(crate) fn note_kicks() {
    // SAFETY: plain data for which zero is a valid value of every field, among them a mask without signals.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = only_note as *const () as usize;
    // A system call other than KVM_RUN that it interrupts goes on. The handler may interrupt itself, so that the kernel need not change
    // the mask.
    action.sa_flags = libc::SA_RESTART | libc::SA_NODEFER;
    handle_kicks(&action, false);
}

/// Installs `action` for the kick, unless there is one already and this one does not `replace` it: it can do more then, and calls
/// [`note_kick`] for kicks that end nothing of its own.
pub(crate) fn handle_kicks(action: &libc::sigaction, replace: bool) {
    let mut installed = lock(&INSTALLED);
    if replace || !*installed {
        *installed = true;
        // SAFETY: a live action with a handler of the right type.
        unsafe { libc::sigaction(kick_signal(), action, null_mut()) };
    }
}

static INSTALLED: Mutex<bool> = Mutex::new(false);

/// The handler's part: the present or next KVM_RUN of the calling thread ends at once.
pub(crate) fn note_kick() {
    KICKED.set(true);
    let entered = ENTERED.get();
    if !entered.is_null() {
        // SAFETY: `enter_noting` keeps the byte alive while it is named here, in this thread.
        unsafe { entered.write_volatile(1) };
    }
}

/// Does `enter`, which issues KVM_RUN, with kicks noted: one that has come before, or comes meanwhile, ends it at once.
///
/// # Safety
/// The kick has a handler ([`note_kicks`]). `immediate_exit` is that field of the vCPU that `enter` runs, and nothing else writes to it meanwhile.
pub(crate) unsafe fn enter_noting<T>(immediate_exit: *mut u8, enter: impl FnOnce() -> T) -> T {
    if !NOTES.replace(true) {
        // Cannot fail, as the other: the kick is a signal.
        _ = unblock_signal(kick_signal());
    }
    ENTERED.set(immediate_exit);
    // Against the handler in this thread: the field is named before the look, so a kick sets it or is seen here.
    compiler_fence(Ordering::SeqCst);
    if KICKED.get() {
        // SAFETY: the caller's promise.
        unsafe { immediate_exit.write_volatile(1) };
    }
    let entered = enter();
    ENTERED.set(null_mut());
    // From here on the handler leaves the field alone.
    compiler_fence(Ordering::SeqCst);
    // SAFETY: the caller's promise.
    unsafe { immediate_exit.write_volatile(0) };
    entered
}

/// Holds the calling thread's kicks from here on. One that was noted is pending again.
pub(crate) fn hold_kicks() {
    if NOTES.replace(false) {
        _ = block_signal(kick_signal());
        if KICKED.replace(false) {
            Thread::current().kick();
        }
    }
}

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

/// Blocks all signals in the calling thread: kicks because they are opened in KVM_RUN only, the others because
/// they are the main thread's business. Not SIGSYS, by which a system call that was refused explains itself.
pub(crate) fn block_all() {
    NOTES.set(false);
    let mut set = MaybeUninit::uninit();
    // SAFETY: `sigfillset` initialises the set; changing the calling thread's mask touches no memory of ours.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        libc::sigdelset(set.as_mut_ptr(), libc::SIGSYS);
        libc::pthread_sigmask(libc::SIG_SETMASK, set.as_ptr(), null_mut());
    }
}

/// Blocks the kick signal alone, in a thread that runs a vCPU but has other signals to serve.
pub(crate) fn block_kick() {
    hold_kicks();
    // "Fails" where it is blocked already.
    _ = block_signal(kick_signal());
}

/// Takes what is pending of the calling thread's kicks, which is one at most per sender that can wait: all that others sent are
/// one, a timer's may be another. One that stays ends the next KVM_RUN at once, which is harmless: the code that acts on a kick looks
/// at the clock and at the flags, not at the kick.
pub(crate) fn take_kick() {
    match NOTES.get() {
        true => {
            KICKED.set(false);
            // Against the handler in this thread: the caller's looks at the clock and at flags come after it.
            compiler_fence(Ordering::SeqCst);
        }
        false => _ = await_held_kick(0),
    }
}

/// Sleeps for `ns`, or until the calling thread is kicked: whether it was.
pub(crate) fn await_kick(ns: u64) -> bool {
    hold_kicks();
    await_held_kick(ns)
}

fn await_held_kick(ns: u64) -> bool {
    let time = timespec(ns);
    let set = create_sigset(&[kick_signal()]).expect("the kick is a signal");
    // SAFETY: all pointers are to live values; a null `info` is allowed.
    unsafe { libc::sigtimedwait(&raw const set, null_mut(), &raw const time) >= 0 }
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
        unsafe { libc::timer_settime(self.0, libc::TIMER_ABSTIME, &raw const setting, null_mut()) };
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
    use std::time::Duration;

    use super::*;

    #[test]
    fn any_number_of_kicks_that_nobody_has_taken_is_one() {
        // Its mask is a thread's own.
        let counted = std::thread::spawn(|| {
            block_all();
            (0..10_000).for_each(|_| Thread::current().kick());
            std::iter::repeat_with(|| await_held_kick(0)).take_while(|was_kicked| *was_kicked).count()
        });
        assert_eq!(counted.join().unwrap(), 1);
    }

    /// Does `work` in a thread of its own, where kicks are noted.
    fn noting(work: impl FnOnce(&dyn Fn(&dyn Fn()) -> u8) + Send + 'static) {
        std::thread::spawn(|| {
            block_all();
            note_kicks();
            // Whether KVM_RUN would have ended at once, had it begun after `meanwhile`.
            work(&|meanwhile| {
                let mut field = 0;
                let field = &raw mut field;
                let enter = || {
                    meanwhile();
                    // SAFETY: a live byte, which only this thread uses.
                    unsafe { field.read_volatile() }
                };
                // SAFETY: as above; there is a handler.
                unsafe { enter_noting(field, enter) }
            });
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_noted_kick_ends_each_entry_or_a_sleep_until_taken() {
        noting(|enter| {
            let (nothing, kick) = (&|| {}, &|| Thread::current().kick());
            assert_eq!((enter(nothing), enter(kick), enter(nothing)), (0, 1, 1));
            take_kick();
            assert_eq!(enter(nothing), 0);
            // Between two entries.
            Thread::current().kick();
            assert_eq!(enter(nothing), 1);
            assert!(await_kick(Duration::from_secs(20).as_nanos() as u64));
            assert!(!await_kick(0), "it was taken");
            assert_eq!(enter(nothing), 0);
        });
    }
}
