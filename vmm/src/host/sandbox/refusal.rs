//! A call that a filter refused: the process ends with it. A debug build says which call it was. Others have no handler for that,
//! because an attacker who controls a thread could make use of it; the host's kernel has the call in its log.

use std::mem::MaybeUninit;
use std::sync::OnceLock;

use seccompiler::SeccompAction;

/// Action of the kernel on such a call.
pub(super) fn action() -> SeccompAction {
    if cfg!(debug_assertions) { SeccompAction::Trap } else { SeccompAction::KillProcess }
}

/// Lets a refused call say what it was, once in a process, where a handler sees it.
pub(super) fn explain() {
    static ONCE: OnceLock<()> = OnceLock::new();
    if action() != SeccompAction::Trap {
        return;
    }
    ONCE.get_or_init(|| {
        // SAFETY: plain data for which zero is a valid value of every field.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_refusal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        // SAFETY: a live action with a handler of the right type.
        unsafe { libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()) };
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
    let mut line = Line { bytes: [0; 512], used: 0 };
    line.push(b"haltkick: thread ");
    line.push(name.split(|byte| *byte == 0).next().unwrap_or_default());
    line.push(b" made system call ");
    line.push_number(u64::from(number.unsigned_abs()), 10);
    for (register, before) in [(libc::REG_RDI, " (0x"), (libc::REG_RSI, ", 0x"), (libc::REG_RDX, ", 0x")] {
        line.push(before.as_bytes());
        line.push_number(registers[register as usize].cast_unsigned(), 16);
    }
    line.push(b"), which the sandbox refuses: this is a fault of haltkick, or a guest has got hold of it; --no-sandbox leaves out the walls\n");
    // SAFETY: writes bytes that live until it returns, and ends the process without running anything else of it.
    unsafe {
        libc::write(2, line.bytes.as_ptr().cast(), line.used);
        libc::_exit(1);
    }
}

/// A line that is put together without memory of its own.
struct Line {
    bytes: [u8; 512],
    used: usize,
}

impl Line {
    fn push(&mut self, text: &[u8]) {
        for (slot, byte) in self.bytes[self.used..].iter_mut().zip(text) {
            *slot = *byte;
            self.used += 1;
        }
    }

    /// To base 10 or 16.
    fn push_number(&mut self, number: u64, base: u64) {
        let mut digits = [0; 20];
        let mut rest = number;
        let mut from = digits.len();
        loop {
            from -= 1;
            digits[from] = b"0123456789abcdef"[(rest % base) as usize];
            rest /= base;
            if rest == 0 {
                break;
            }
        }
        self.push(&digits[from..]);
    }
}
