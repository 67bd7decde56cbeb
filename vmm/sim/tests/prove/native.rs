//! One instruction on the CPU at hand: registers loaded, the instruction executed, registers saved.
//!
//! ```text
//!  [`CODE`]     the instruction; behind it a jump to `fell_through`, at [`TAKEN`] one to `taken`
//!  [`CONTEXT`]  registers, before and afterwards, and how it went
//!  [`MEMORY`]   what its operands lie in
//! ```
//! All three lie in the first 2 MiB, which the simulated CPU's tables map: any address of 32 bits without a register reaches them.
#![expect(unsafe_code, reason = "executes single instructions with arbitrary registers")]

use std::arch::naked_asm;
use std::mem;
use std::ptr::null_mut;

use libc::{REG_RIP, REG_TRAPNO, c_int, c_void, siginfo_t, ucontext_t};

pub(crate) const CODE: u64 = 0x10_0000;
/// Target of the instruction's branch, if it branches.
pub(crate) const TAKEN: u64 = CODE + 64;
const CONTEXT: u64 = 0x11_0000;
pub(crate) const MEMORY: u64 = 0x12_0000;
pub(crate) const MEMORY_BYTES: usize = 4 * 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    FellThrough,
    Taken,
    /// By this exception, before it had changed anything.
    Fault(u8),
}

#[repr(C)]
struct Context {
    general: [u64; 16],
    rflags: u64,
    host_rsp: u64,
    end: u64,
    code: u64,
    exception: u64,
}

const RFLAGS: u64 = CONTEXT + mem::offset_of!(Context, rflags) as u64;
const HOST_RSP: u64 = CONTEXT + mem::offset_of!(Context, host_rsp) as u64;
const END: u64 = CONTEXT + mem::offset_of!(Context, end) as u64;
const ENTRY: u64 = CONTEXT + mem::offset_of!(Context, code) as u64;

/// Loads all registers from the context and jumps to the instruction.
#[unsafe(naked)]
unsafe extern "C" fn enter() {
    naked_asm!(
        "push rbx", "push rbp", "push r12", "push r13", "push r14", "push r15",
        "mov qword ptr [{host_rsp}], rsp",
        "push qword ptr [{rflags}]",
        "popfq",
        "mov rax, qword ptr [{c} + 0]", "mov rcx, qword ptr [{c} + 8]", "mov rdx, qword ptr [{c} + 16]",
        "mov rbx, qword ptr [{c} + 24]", "mov rbp, qword ptr [{c} + 40]", "mov rsi, qword ptr [{c} + 48]",
        "mov rdi, qword ptr [{c} + 56]", "mov r8, qword ptr [{c} + 64]", "mov r9, qword ptr [{c} + 72]",
        "mov r10, qword ptr [{c} + 80]", "mov r11, qword ptr [{c} + 88]", "mov r12, qword ptr [{c} + 96]",
        "mov r13, qword ptr [{c} + 104]", "mov r14, qword ptr [{c} + 112]", "mov r15, qword ptr [{c} + 120]",
        "mov rsp, qword ptr [{c} + 32]",
        "jmp qword ptr [{entry}]",
        host_rsp = const HOST_RSP, rflags = const RFLAGS, c = const CONTEXT, entry = const ENTRY,
    )
}

#[unsafe(naked)]
unsafe extern "C" fn fell_through() {
    naked_asm!("mov qword ptr [{end}], 0", "jmp {save}", end = const END, save = sym save)
}

#[unsafe(naked)]
unsafe extern "C" fn taken() {
    naked_asm!("mov qword ptr [{end}], 1", "jmp {save}", end = const END, save = sym save)
}

#[unsafe(naked)]
unsafe extern "C" fn faulted() {
    naked_asm!("mov qword ptr [{end}], 2", "jmp {save}", end = const END, save = sym save)
}

/// Saves all registers and returns from `enter`. MOV changes no flag.
#[unsafe(naked)]
unsafe extern "C" fn save() {
    naked_asm!(
        "mov qword ptr [{c} + 0], rax", "mov qword ptr [{c} + 8], rcx", "mov qword ptr [{c} + 16], rdx",
        "mov qword ptr [{c} + 24], rbx", "mov qword ptr [{c} + 32], rsp", "mov qword ptr [{c} + 40], rbp",
        "mov qword ptr [{c} + 48], rsi", "mov qword ptr [{c} + 56], rdi", "mov qword ptr [{c} + 64], r8",
        "mov qword ptr [{c} + 72], r9", "mov qword ptr [{c} + 80], r10", "mov qword ptr [{c} + 88], r11",
        "mov qword ptr [{c} + 96], r12", "mov qword ptr [{c} + 104], r13", "mov qword ptr [{c} + 112], r14",
        "mov qword ptr [{c} + 120], r15",
        "mov rsp, qword ptr [{host_rsp}]",
        "pushfq",
        "pop qword ptr [{rflags}]",
        "cld",
        "pop r15", "pop r14", "pop r13", "pop r12", "pop rbp", "pop rbx",
        "ret",
        host_rsp = const HOST_RSP, rflags = const RFLAGS, c = const CONTEXT,
    )
}

/// An exception of the instruction: notes which, and goes on at [`faulted`].
extern "C" fn on_signal(_: c_int, _: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes the context that it will load; the other one is mapped before any signal is caught.
    unsafe {
        let registers = &mut (*context.cast::<ucontext_t>()).uc_mcontext.gregs;
        let rip = registers[REG_RIP as usize] as u64;
        if !(CODE..CODE + 4096).contains(&rip) {
            libc::abort();
        }
        (*(CONTEXT as *mut Context)).exception = registers[REG_TRAPNO as usize] as u64;
        registers[REG_RIP as usize] = faulted as *const () as i64;
    }
}

/// The CPU at hand, as this process may use it. There may be one only.
pub(crate) struct Native {
    _signal_stack: Vec<u8>,
}

impl Native {
    pub(crate) fn new() -> Self {
        const ARCH_SET_GS: c_int = 0x1001;
        let all = libc::PROT_READ | libc::PROT_WRITE;
        map(CODE, 4096, all | libc::PROT_EXEC);
        map(CONTEXT, 4096, all);
        map(MEMORY, MEMORY_BYTES, all);
        // SAFETY: sets a register, GS base, that no code of this process uses.
        assert_eq!(unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_SET_GS, MEMORY) }, 0);
        let mut signal_stack = vec![0_u8; 128 << 10];
        let stack = libc::stack_t {
            ss_sp: signal_stack.as_mut_ptr().cast(),
            ss_flags: 0,
            ss_size: signal_stack.len(),
        };
        // SAFETY: the stack lives as long as this value, which the test keeps to its end; the action is a live one with a
        // handler of the right type.
        unsafe {
            assert_eq!(libc::sigaltstack(&raw const stack, null_mut()), 0);
            let mut action: libc::sigaction = mem::zeroed();
            action.sa_sigaction = on_signal as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            for signal in [libc::SIGFPE, libc::SIGSEGV, libc::SIGILL, libc::SIGTRAP, libc::SIGBUS] {
                assert_eq!(libc::sigaction(signal, &raw const action, null_mut()), 0);
            }
        }
        Self { _signal_stack: signal_stack }
    }

    /// Writes the instruction, with jumps behind it.
    pub(crate) fn set_code(&mut self, bytes: &[u8]) {
        let jump = |target: usize| {
            // jmp [rip + 0]
            let mut jump = vec![0xff, 0x25, 0, 0, 0, 0];
            jump.extend_from_slice(&(target as u64).to_le_bytes());
            jump
        };
        let mut code = bytes.to_vec();
        code.extend(jump(fell_through as *const () as usize));
        code.resize((TAKEN - CODE) as usize, 0xcc);
        code.extend(jump(taken as *const () as usize));
        // SAFETY: within the page mapped for it, which nothing executes now.
        unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), CODE as *mut u8, code.len()) };
    }

    /// The memory that operands lie in.
    pub(crate) fn memory(&mut self) -> &mut [u8] {
        // SAFETY: mapped for as long as the process, and used by no other code: this borrows the only value of its kind.
        unsafe { std::slice::from_raw_parts_mut(MEMORY as *mut u8, MEMORY_BYTES) }
    }

    pub(crate) fn run(&mut self, general: &mut [u64; 16], rflags: &mut u64) -> End {
        let context = CONTEXT as *mut Context;
        // SAFETY: the context is mapped; the instruction is one of those that the test chooses, whose operands it has put into
        // `MEMORY`, and which leaves by one of three ways, all of which end in `save`.
        unsafe {
            (*context).general = *general;
            (*context).rflags = *rflags;
            (*context).code = CODE;
            enter();
            *general = (*context).general;
            *rflags = (*context).rflags;
            match (*context).end {
                0 => End::FellThrough,
                1 => End::Taken,
                _ => End::Fault((*context).exception as u8),
            }
        }
    }

    /// RFLAGS of ordinary code, and the selectors ES, CS, SS, DS, FS, GS.
    pub(crate) fn surroundings(&self) -> (u64, [u16; 6]) {
        let (rflags, mut selectors): (u64, [u16; 6]);
        selectors = [0; 6];
        // SAFETY: reads registers.
        unsafe {
            std::arch::asm!("pushfq", "pop {}", out(reg) rflags);
            std::arch::asm!(
                "mov word ptr [{0}], es", "mov word ptr [{0} + 2], cs", "mov word ptr [{0} + 4], ss",
                "mov word ptr [{0} + 6], ds", "mov word ptr [{0} + 8], fs", "mov word ptr [{0} + 10], gs",
                in(reg) selectors.as_mut_ptr(),
            );
        }
        (rflags, selectors)
    }
}

fn map(address: u64, bytes: usize, protection: c_int) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: takes no place that anything else has.
    let mapped = unsafe { libc::mmap(address as *mut c_void, bytes, protection, flags, -1, 0) };
    assert_eq!(mapped as u64, address, "{}", std::io::Error::last_os_error());
}
