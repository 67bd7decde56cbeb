//! Walls around what runs guests: if a guest got hold of one of our threads, it could ask the kernel for little.
//!
//! Threads that run vCPUs have a filter of their own (`rules`), from when they have what they need until they end. What is not
//! in it ends the process with a line that says which call it was, and of which thread. The process as a whole gains no
//! privileges by running programs, cannot be looked into by others of the same user, and leaves no memory image behind.
#![expect(unsafe_code, reason = "prctl and a signal's handler have no safe wrapper in rustix")]

mod rules;

use std::io;
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Resource, Rlimit, setrlimit};
use seccompiler::BpfProgram;

use crate::host::error::RunError;

static DISABLED: AtomicBool = AtomicBool::new(false);

/// From now on nothing is walled in, for whoever looks for a fault of the walls.
pub fn disable_sandbox() {
    // Relaxed: said before a run begins.
    DISABLED.store(true, Ordering::Relaxed);
}

/// Whether threads that run guests are walled in.
#[must_use]
pub fn is_sandboxed() -> bool {
    !DISABLED.load(Ordering::Relaxed)
}

/// Whether this kernel can filter system calls.
///
/// # Errors
/// Why not, as the end of a sentence.
pub fn sandbox_filters() -> Result<(), String> {
    const SECCOMP_GET_ACTION_AVAIL: libc::c_ulong = 2;
    let action = libc::SECCOMP_RET_TRAP;
    // SAFETY: reads four bytes that live until it returns.
    let answer = unsafe { libc::syscall(libc::SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &raw const action) };
    if answer == 0 { Ok(()) } else { Err(format!("seccomp: {}", io::Error::last_os_error())) }
}

/// What a process that will run guests gives up for good. With another program to be started (`--engine qemu`), which is to read
/// a file of this one, it stays readable for its user.
///
/// # Errors
/// What the kernel refuses.
pub fn confine_process(starts_programs: bool) -> Result<(), RunError> {
    if !is_sandboxed() {
        return Ok(());
    }
    let set = |option: libc::c_int, value: libc::c_ulong| {
        // SAFETY: options that take numbers.
        unsafe { libc::prctl(option, value, 0, 0, 0) == 0 }
    };
    let unreadable = starts_programs || set(libc::PR_SET_DUMPABLE, 0);
    if !set(libc::PR_SET_NO_NEW_PRIVS, 1) || !unreadable {
        let source = io::Error::last_os_error();
        return Err(RunError::System { what: "give up privileges (--no-sandbox keeps them)".into(), source });
    }
    // Fails for nobody: it is lowered.
    _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    explain_refusals();
    Ok(())
}

/// The calling thread runs vCPUs from now on, and does nothing else until it ends. Its kernel may have no filters: `doctor` says so.
///
/// # Errors
/// What the kernel says to the filter.
pub(crate) fn confine_runner() -> Result<(), RunError> {
    static PROGRAM: OnceLock<Result<BpfProgram, String>> = OnceLock::new();
    if !is_sandboxed() || sandbox_filters().is_err() {
        return Ok(());
    }
    explain_refusals();
    let refused = |why: String| RunError::System {
        what: "filter the system calls of a thread (--no-sandbox leaves them)".into(),
        source: io::Error::other(why),
    };
    let program = PROGRAM.get_or_init(|| rules::program().map_err(|error| error.to_string()));
    let program = program.as_ref().map_err(|why| refused(why.clone()))?;
    seccompiler::apply_filter(program).map_err(|error| refused(error.to_string()))
}

/// Lets a refused call say what it was, once in a process.
fn explain_refusals() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        // SAFETY: plain data for which zero is a valid value of every field.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_refusal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        // SAFETY: a live action with a handler of the right type.
        unsafe { libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()) };
    });
}

/// Says which call of which thread was refused, and ends the process. Nothing but system calls that the filter allows.
extern "C" fn on_refusal(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    /// Of a siginfo of SIGSYS: address of the call, then its number (sigaction(2)).
    const NUMBER_OFFSET: usize = 24;
    const NAME_BYTES: usize = 16;
    // SAFETY: the kernel passes a whole siginfo.
    let number = unsafe { info.cast::<u8>().add(NUMBER_OFFSET).cast::<i32>().read() };
    let mut name = MaybeUninit::<[u8; NAME_BYTES]>::zeroed();
    // SAFETY: the kernel writes a name of at most so many bytes, with a zero at the end.
    let name = unsafe {
        libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr());
        name.assume_init()
    };
    let mut line = Line { bytes: [0; 256], used: 0 };
    line.push(b"haltkick: thread ");
    line.push(name.split(|byte| *byte == 0).next().unwrap_or_default());
    line.push(b" made system call ");
    line.push_number(number.unsigned_abs());
    line.push(b", which the sandbox refuses: this is a fault of haltkick, or a guest has got hold of it; --no-sandbox leaves out the walls\n");
    // SAFETY: writes bytes that live until it returns, and ends the process without running anything else of it.
    unsafe {
        libc::write(2, line.bytes.as_ptr().cast(), line.used);
        libc::_exit(1);
    }
}

/// A line that is put together without memory of its own.
struct Line {
    bytes: [u8; 256],
    used: usize,
}

impl Line {
    fn push(&mut self, text: &[u8]) {
        for (slot, byte) in self.bytes[self.used..].iter_mut().zip(text) {
            *slot = *byte;
            self.used += 1;
        }
    }

    fn push_number(&mut self, number: u32) {
        let mut digits = [0; 10];
        let mut rest = number;
        let mut from = digits.len();
        loop {
            from -= 1;
            digits[from] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.push(&digits[from..]);
    }
}

/// Makes a call that no runner may make, in a thread with a runner's filter: for a test of what is said then.
#[cfg(test)]
fn overstep() -> Result<(), RunError> {
    confine_runner()?;
    // SAFETY: gives a name that lives until it returns.
    unsafe { libc::mkdir(c"/nowhere/at/all".as_ptr(), 0) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// In the environment of a process of this program's that is to do this.
    const PART: &str = "HALTKICK_SANDBOX_PART";

    /// This test alone in a process of its own, with `part` in its environment: how it ended, and what it said.
    fn in_a_process_of_its_own(test: &str, part: &str) -> (Option<i32>, String) {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("host::sandbox::tests::{test}"), "--nocapture"])
            .env(PART, part)
            .env("RUST_BACKTRACE", "1")
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    fn part() -> Option<String> {
        std::env::var(PART).ok()
    }

    #[test]
    fn a_call_that_no_runner_may_make_ends_the_process_and_says_which_it_was_and_whose() {
        if part().is_some() {
            std::thread::Builder::new()
                .name("pcpu7".into())
                .spawn(overstep)
                .unwrap()
                .join()
                .unwrap()
                .unwrap();
            return;
        }
        if sandbox_filters().is_err() {
            return;
        }
        let (code, said) = in_a_process_of_its_own(
            "a_call_that_no_runner_may_make_ends_the_process_and_says_which_it_was_and_whose",
            "oversteps",
        );
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains(&format!("thread pcpu7 made system call {}", libc::SYS_mkdir)), "{said}");
    }

    #[test]
    fn a_runner_that_panics_behind_its_wall_still_says_where() {
        if part().is_some() {
            let runner = std::thread::Builder::new().name("pcpu7".into()).spawn(|| {
                confine_runner().unwrap();
                panic!("behind the wall");
            });
            assert!(runner.unwrap().join().is_err());
            return;
        }
        let (code, said) =
            in_a_process_of_its_own("a_runner_that_panics_behind_its_wall_still_says_where", "panics");
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains("behind the wall") && said.contains("sandbox/mod.rs"), "{said}");
        assert!(said.contains("{closure"), "no names in the backtrace: {said}");
    }

    #[test]
    fn a_process_that_gave_up_its_privileges_has_none_and_leaves_no_core() {
        if part().is_some() {
            confine_process(false).unwrap();
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            assert!(status.contains("NoNewPrivs:\t1"), "{status}");
            // SAFETY: an option that takes nothing.
            assert_eq!(unsafe { libc::prctl(libc::PR_GET_DUMPABLE, 0, 0, 0, 0) }, 0);
            assert_eq!(rustix::process::getrlimit(Resource::Core).maximum, Some(0));
            return;
        }
        let (code, said) = in_a_process_of_its_own(
            "a_process_that_gave_up_its_privileges_has_none_and_leaves_no_core",
            "gives up",
        );
        assert_eq!(code, Some(0), "{said}");
    }
}
