//! A call that a filter refused: the process ends with it, and says which call it was. Where a thread has blocked the signal, the kernel
//! ends the process without a word.

use std::io::Write as _;
use std::mem::MaybeUninit;
use std::sync::OnceLock;

/// A variable that is set here and brings other code into the process, which makes calls of its own.
static BLAMED: OnceLock<Option<&'static str>> = OnceLock::new();

/// Lets a refused call say what it was, once in a process.
pub(super) fn explain() {
    BLAMED.get_or_init(|| {
        // SAFETY: plain data for which zero is a valid value of every field.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_refusal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        // SAFETY: a live action with a handler of the right type.
        unsafe { libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()) };
        let is_set = |name: &&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        ["LD_PRELOAD", "LD_AUDIT", "GLIBC_TUNABLES"].into_iter().find(is_set)
    });
}

/// Says which call of which thread was refused, and ends the process. Nothing but system calls that the filters allow.
extern "C" fn on_refusal(_: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    /// Offset of the call's number in a siginfo of SIGSYS, behind the address of the call (sigaction(2)).
    const NUMBER_OFFSET: usize = 24;
    const NAME_BYTES: usize = 16;
    // SAFETY: the kernel passes a whole siginfo.
    let number = unsafe { info.cast::<u8>().add(NUMBER_OFFSET).cast::<i32>().read() };
    // SAFETY: the kernel passes a whole context, which no other code changes meanwhile.
    let registers = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let mut name = MaybeUninit::<[u8; NAME_BYTES]>::zeroed();
    // SAFETY: the kernel writes a name of at most the array's length, with a zero at the end.
    let name = unsafe {
        libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr());
        name.assume_init()
    };
    let mut line = [0_u8; 512];
    let mut rest = &mut line[..];
    // Formatting numbers allocates nothing. What does not fit is left out.
    _ = rest.write_all(b"haltkick: thread ");
    _ = rest.write_all(name.split(|byte| *byte == 0).next().unwrap_or_default());
    let [first, second, third] =
        [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX].map(|register| registers[register as usize]);
    _ = write!(
        rest,
        " made system call {number} ({first:#x}, {second:#x}, {third:#x}), which the sandbox refuses: "
    );
    _ = match BLAMED.get().copied().flatten() {
        Some(variable) => writeln!(
            rest,
            "{variable} brings in code that may have made it: start haltkick without, or with --no-sandbox"
        ),
        None => writeln!(
            rest,
            "this is a fault of haltkick, or a guest has got hold of it; --no-sandbox leaves out the walls"
        ),
    };
    let unused = rest.len();
    // SAFETY: writes bytes that live until it returns, and ends the process without running anything else of it.
    unsafe {
        libc::write(2, line.as_ptr().cast(), line.len() - unused);
        libc::_exit(1);
    }
}
