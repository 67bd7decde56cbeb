//! A vCPU without KVM: the image's own code, run by the calling thread in user mode, at the image's own addresses.
//!
//! [`NativeVcpu::run`] is for this kind what KVM_RUN is for the other, with the same contract. Signals stand in for
//! exits: a hypercall is an `out`, which user mode may not do, so it ends in SIGSEGV (#GP); the kick signal ends a
//! slice. The handler copies the vCPU's registers out of the signal frame and rewrites that frame so that returning
//! from the handler returns from `run`. The way in is `rt_sigreturn` on a frame made by hand: it loads all registers
//! and opens the signal mask in one step, so a kick that came before is delivered before the first instruction, as in
//! KVM_RUN.
//!
//! ```text
//!  run:      CURRENT := this, GS base := the vCPU's area, rt_sigreturn(context: its registers, mask: exits open)
//!  vCPU:     ... its code, on its own stack, until a signal ...
//!  handler:  context := registers, CURRENT := null, signal frame := (end of `run`, mask: all blocked), return
//! ```
//!
//! FS base, and so the thread's own data, stays what it is. Vector registers are not saved: the image is built without
//! them. The image has the rights of this process; that is what `--engine threads` means.
#![expect(unsafe_code, reason = "enters foreign code, and leaves it from a signal handler")]

use std::cell::{Cell, RefCell};
use std::io;
use std::mem::{self, MaybeUninit};
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use haltkick_hypercalls::{GuestAddress, VcpuArea};
use libc::{
    REG_CR2, REG_CSGSFS, REG_EFL, REG_ERR, REG_RAX, REG_RDI, REG_RDX, REG_RIP, REG_RSI, REG_RSP, REG_TRAPNO,
    c_int, c_void, siginfo_t, ucontext_t,
};

use crate::guest::memory::Memory;
use crate::host::signal;
use crate::machine::vcpu::{Body, Exit};

/// Signals by which the CPU reports what the code did; open while it runs, with the kick.
const FAULTS: [c_int; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP];
/// Exception that `out` raises in user mode.
const GENERAL_PROTECTION: i64 = 13;
/// `out dx, eax`.
const OUT_DX_EAX: u8 = 0xef;
/// Linux' selectors of 64-bit user mode, as CS, GS, FS, SS from the lowest 16 bits up.
const USER_SELECTORS: i64 = 0x2b << 48 | 0x33;
/// Reserved bit, interrupts on: what RFLAGS of a process that has just started are.
const CLEAN_FLAGS: i64 = 0x202;
/// More than any CPU's signal frame (AVX-512 and AMX: 11 KiB) and the handler need.
const SIGNAL_STACK_BYTES: usize = 64 << 10;

pub(crate) struct NativeVcpu {
    /// Addresses of the image's memory, here as in the guest.
    memory: Range<u64>,
    area: GuestAddress,
    /// Its registers, as `rt_sigreturn` loads them. The kernel's context is the beginning of libc's, whose signal set is
    /// longer.
    context: ucontext_t,
    /// The stack pointer in `run`, for the handler to return to.
    host_rsp: u64,
    signal: c_int,
}

// SAFETY: the pointers inside the context are to nothing (`uc_link`, `fpregs`: null) or set anew by the thread that runs
// it (`uc_stack`).
unsafe impl Send for NativeVcpu {}

thread_local! {
    /// The vCPU whose code this thread runs. Constant-initialised, without destructor: safe to read in a handler.
    static CURRENT: Cell<*mut NativeVcpu> = const { Cell::new(null_mut()) };
    /// GS base of this thread, which nothing else in the process uses.
    static GS_BASE: Cell<u64> = const { Cell::new(0) };
    static SIGNAL_STACK: RefCell<Option<SignalStack>> = const { RefCell::new(None) };
}

struct SignalStack(Vec<u8>);

impl Drop for SignalStack {
    fn drop(&mut self) {
        let none = libc::stack_t { ss_sp: null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
        // SAFETY: takes the stack away from the kernel before it is freed; a null old value is allowed.
        unsafe { libc::sigaltstack(&raw const none, null_mut()) };
    }
}

impl Body for NativeVcpu {
    fn run(&mut self) -> io::Result<Exit> {
        signal::hold_kicks();
        self.context.uc_stack = signal_stack()?;
        load_gs_base(self.area.0)?;
        let this: *mut Self = self;
        CURRENT.set(this);
        // SAFETY: the context holds registers that are the vCPU's own, a mask that opens only signals with our handler,
        // and the signal stack as it is. The handler comes back here with `*this` consistent; it and the vCPU's code are all
        // that runs on this thread meanwhile. That code is the image's, which the user asked to run in this process.
        unsafe { enter(&raw mut (*this).host_rsp, &raw const (*this).context) };
        if self.signal == signal::kick_signal() {
            return Ok(Exit::Interrupted);
        }
        Ok(self.hypercall().unwrap_or_else(|| self.exception()))
    }

    fn pointers(&self) -> io::Result<(u64, u64)> {
        Ok((self.register(REG_RIP) as u64, self.register(REG_RSP) as u64))
    }
}

impl NativeVcpu {
    /// A vCPU that starts at `entry` with the two arguments of an image's entry point. `memory` is at its own addresses, and holds the
    /// image and everything it was promised.
    pub(crate) fn new(id: u32, memory: &Memory, entry: u64, boot: GuestAddress) -> Self {
        catch_signals();
        // SAFETY: plain data for which zero is a valid value of every field.
        let mut context: ucontext_t = unsafe { mem::zeroed() };
        for (register, value) in [
            (REG_RIP, entry as i64),
            (REG_RDI, boot.0 as i64),
            (REG_RSI, i64::from(id)),
            (REG_RSP, memory.stack_top(id) as i64 - 8),
            (REG_EFL, CLEAN_FLAGS),
            (REG_CSGSFS, USER_SELECTORS),
        ] {
            context.uc_mcontext.gregs[register as usize] = value;
        }
        set_kernel_mask(&mut context, running_mask());
        let area = memory.area_address(id);
        Self { memory: memory.mapped(), area, context, host_rsp: 0, signal: 0 }
    }

    fn register(&self, register: c_int) -> i64 {
        self.context.uc_mcontext.gregs[register as usize]
    }

    /// The hypercall that the vCPU stands at, if it does; it goes on behind it.
    fn hypercall(&mut self) -> Option<Exit> {
        let rip = self.register(REG_RIP) as u64;
        if self.register(REG_TRAPNO) != GENERAL_PROTECTION || !self.memory.contains(&rip) {
            return None;
        }
        // SAFETY: mapped for as long as the guest (`memory`), and readable, since the CPU has just fetched it.
        if unsafe { (rip as *const u8).read_volatile() } != OUT_DX_EAX {
            return None;
        }
        let exit = Exit::from_hypercall(self.register(REG_RDX) as u16, self.register(REG_RAX) as u32)?;
        self.context.uc_mcontext.gregs[REG_RIP as usize] += 1;
        Some(exit)
    }

    /// Writes the report that a guest of KVM writes itself.
    fn exception(&self) -> Exit {
        // SAFETY: the vCPU's area lies in the mapping of the guest's memory; all its fields are atomics or constant.
        let report = unsafe { &(*(self.area.0 as *const VcpuArea)).report };
        // Relaxed: read by this thread.
        for (field, register) in [
            (&report.code, REG_TRAPNO),
            (&report.error_code, REG_ERR),
            (&report.rip, REG_RIP),
            (&report.rflags, REG_EFL),
            (&report.rsp, REG_RSP),
            (&report.cr2, REG_CR2),
        ] {
            field.store(self.register(register) as u64, Ordering::Relaxed);
        }
        report.cs.store(USER_SELECTORS as u64 & 0xffff, Ordering::Relaxed);
        Exit::Exception
    }
}

/// Saves what the ABI says a function keeps, stores the stack pointer to `host_rsp`, and loads `context`. Returns when
/// the handler sends the thread to [`left`].
#[unsafe(naked)]
unsafe extern "C" fn enter(host_rsp: *mut u64, context: *const ucontext_t) {
    std::arch::naked_asm!(
        "push rbx",
        "push rbp",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov [rdi], rsp",
        // The kernel finds the context where a handler's return leaves the stack pointer.
        "mov rsp, rsi",
        "mov eax, {rt_sigreturn}",
        "syscall",
        "ud2",
        rt_sigreturn = const libc::SYS_rt_sigreturn,
    )
}

/// The second half of [`enter`]: goes on with the stack pointer that it stored.
#[unsafe(naked)]
unsafe extern "C" fn left() {
    std::arch::naked_asm!("pop r15", "pop r14", "pop r13", "pop r12", "pop rbp", "pop rbx", "ret",)
}

/// Every signal that ends a run, and those of the same numbers that have nothing to do with one.
extern "C" fn on_signal(signal: c_int, _info: *mut siginfo_t, context: *mut c_void) {
    let vcpu = CURRENT.replace(null_mut());
    if vcpu.is_null() {
        return not_ours(signal);
    }
    // SAFETY: `CURRENT` is set only while the thread is between `enter` and here, when `run` holds the vCPU mutably and
    // does nothing. The kernel passes the context that it will load; of its signal set it made eight bytes.
    unsafe {
        let context = context.cast::<ucontext_t>();
        (*vcpu).signal = signal;
        (*vcpu).context.uc_mcontext.gregs = (*context).uc_mcontext.gregs;
        let registers = &mut (*context).uc_mcontext.gregs;
        registers[REG_RIP as usize] = left as *const () as i64;
        registers[REG_RSP as usize] = (*vcpu).host_rsp as i64;
        registers[REG_EFL as usize] = CLEAN_FLAGS;
        set_kernel_mask(&mut *context, u64::MAX);
    }
}

/// A kick is another vCPU's of this process, of KVM; a fault of the VMM itself goes to the earlier handler.
fn not_ours(signal: c_int) {
    if signal == signal::kick_signal() {
        return signal::note_kick();
    }
    let previous = PREVIOUS.get().into_iter().flatten().find(|(number, _)| *number == signal);
    if let Some((_, action)) = previous {
        // SAFETY: restores what `sigaction` gave us. On return the same instruction faults again, under that action.
        unsafe { libc::sigaction(signal, action, null_mut()) };
    }
}

/// Earlier handlers of [`FAULTS`].
static PREVIOUS: OnceLock<Vec<(c_int, libc::sigaction)>> = OnceLock::new();

/// Installs the handler, once in a process.
fn catch_signals() {
    PREVIOUS.get_or_init(|| {
        // SAFETY: plain data for which zero is a valid value of every field.
        let mut action: libc::sigaction = unsafe { mem::zeroed() };
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: initialises the set of signals that are blocked in the handler: all.
        unsafe { libc::sigfillset(&raw mut action.sa_mask) };
        signal::handle_kicks(&action, true);
        let catch = |signal| {
            let mut previous = MaybeUninit::uninit();
            // SAFETY: as above; on success the previous action is written, and these signals can be caught.
            unsafe {
                libc::sigaction(signal, &raw const action, previous.as_mut_ptr());
                (signal, previous.assume_init())
            }
        };
        FAULTS.into_iter().map(catch).collect()
    });
}

/// All signals blocked but those that end a run, as the kernel writes sets.
fn running_mask() -> u64 {
    FAULTS.iter().fold(signal::all_but_kick(), |mask, signal| mask & !(1 << (signal - 1)))
}

/// The kernel's signal set has eight bytes, the first of libc's.
fn set_kernel_mask(context: &mut ucontext_t, mask: u64) {
    // SAFETY: eight bytes within the field, which is aligned to eight.
    unsafe { (&raw mut context.uc_sigmask).cast::<u64>().write(mask) };
}

/// This thread's signal stack, made at its first run.
fn signal_stack() -> io::Result<libc::stack_t> {
    SIGNAL_STACK.with_borrow_mut(|stack| {
        let fresh = stack.is_none();
        let memory = stack.get_or_insert_with(|| SignalStack(vec![0; SIGNAL_STACK_BYTES]));
        let stack =
            libc::stack_t { ss_sp: memory.0.as_mut_ptr().cast(), ss_flags: 0, ss_size: memory.0.len() };
        // SAFETY: the memory lives until the thread ends, when `Drop` withdraws it first.
        if fresh && unsafe { libc::sigaltstack(&raw const stack, null_mut()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(stack)
    })
}

/// Makes GS base the vCPU's area, as the image's entry point demands.
fn load_gs_base(area: u64) -> io::Result<()> {
    const ARCH_SET_GS: c_int = 0x1001;
    if GS_BASE.replace(area) == area {
        return Ok(());
    }
    // SAFETY: sets a register that no code of this process uses but the image's.
    match unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_SET_GS, area) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
