//! Page faults, from the exception to the manager of the memory; and access to memory that may not be there, where a wrong access
//! returns an error instead of ending the guest.
//!
//! Two instructions may fault. The page-fault handler knows them by their addresses; when it has a signal to give, it
//! puts its number into RAX and lets the code go on behind the access.
#![expect(unsafe_code, reason = "accesses that Rust knows nothing of, and a function pointer in an atomic")]

use core::arch::global_asm;
use core::sync::atomic::{AtomicPtr, Ordering};

use haltkick_mm::{Access, Error};

/// Signals, of which the handler leaves a number from 1 on: the address is not mapped (SIGSEGV, SEGV_MAPERR); the mapping forbids
/// the access (SIGSEGV, SEGV_ACCERR); no memory is left to map (the OOM killer's SIGKILL).
const SIGNALS: [Error; 3] = [Error::NotMapped, Error::NotAllowed, Error::OutOfMemory];

pub(crate) fn number(signal: Error) -> u64 {
    let index = SIGNALS.iter().position(|it| *it == signal).expect("a fault ends with one of these");
    index as u64 + 1
}

/// The outcome of an access that has left `number` in RAX.
fn outcome(number: u64) -> Result<(), Error> {
    SIGNALS.get((number as usize).wrapping_sub(1)).map_or(Ok(()), |signal| Err(*signal))
}

global_asm!(
    ".pushsection .text.haltkick_user, \"ax\"",
    "haltkick_user_store:",
    "xor eax, eax",
    ".global haltkick_user_store_access",
    "haltkick_user_store_access:",
    "mov [rdi], rsi",
    ".global haltkick_user_store_end",
    "haltkick_user_store_end:",
    "ret",
    "haltkick_user_load:",
    "xor eax, eax",
    ".global haltkick_user_load_access",
    "haltkick_user_load_access:",
    "mov rdx, [rdi]",
    ".global haltkick_user_load_end",
    "haltkick_user_load_end:",
    "mov [rsi], rdx",
    "ret",
    ".popsection",
);

unsafe extern "C" {
    fn haltkick_user_store(address: u64, value: u64) -> u64;
    fn haltkick_user_load(address: u64, value: *mut u64) -> u64;
    static haltkick_user_store_access: u8;
    static haltkick_user_store_end: u8;
    static haltkick_user_load_access: u8;
    static haltkick_user_load_end: u8;
}

/// The instructions that may fault, each with where to go on after a signal.
fn accesses() -> [(u64, u64); 2] {
    let address = |label: *const u8| label as u64;
    [
        (address(&raw const haltkick_user_store_access), address(&raw const haltkick_user_store_end)),
        (address(&raw const haltkick_user_load_access), address(&raw const haltkick_user_load_end)),
    ]
}

/// Returns where the instruction at `rip` goes on after a signal; `None` for any other code.
pub(crate) fn after_access(rip: u64) -> Option<u64> {
    accesses().into_iter().find(|(access, _)| *access == rip).map(|(_, end)| end)
}

/// The first entry of the top-level page table is the kernel's part, in every address space; what lies behind it up to the
/// end of the lower half is not.
fn check(address: u64) {
    assert!((1 << 39..1 << 47).contains(&address), "{address:#x} is no address of a user's");
}

/// Stores `value` at `address`, which must not belong to the kernel.
#[inline]
pub(crate) fn store(address: u64, value: u64) -> Result<(), Error> {
    check(address);
    // SAFETY: not the kernel's part, just checked: no Rust object lies there, and an address without a page comes back as a
    // signal.
    outcome(unsafe { haltkick_user_store(address, value) })
}

/// Loads from `address`, which must not belong to the kernel.
#[inline]
pub(crate) fn load(address: u64) -> Result<u64, Error> {
    check(address);
    let mut value = 0;
    // SAFETY: as in `store`; `value` is a live word.
    outcome(unsafe { haltkick_user_load(address, &raw mut value) }).map(|()| value)
}

/// Outcome of a page fault.
pub(crate) enum Verdict {
    /// The page is there now: the instruction is executed again.
    Retry,
    /// The access was wrong.
    Signal(Error),
    /// The address is not managed.
    NotMine,
}

/// Bits of the error code (SDM vol. 3, 4.7).
const WRITE: u64 = 1 << 1;

/// Handles a fault at this address.
pub(crate) type Handler = fn(u64, Access) -> Verdict;

static HANDLER: AtomicPtr<()> = AtomicPtr::new((nobody as Handler) as *mut ());

fn nobody(_: u64, _: Access) -> Verdict {
    Verdict::NotMine
}

/// From now on `handler` gets all page faults. Every vCPU calls it with the same one before its first fault.
pub(crate) fn set_handler(handler: Handler) {
    // Relaxed: this vCPU's own faults see its own store, which equals everybody else's.
    HANDLER.store(handler as *mut (), Ordering::Relaxed);
}

/// Decides about a fault at `address`.
pub(crate) fn handle(address: u64, error_code: u64) -> Verdict {
    // SAFETY: only `Handler`s are ever stored.
    let handler: Handler = unsafe { core::mem::transmute(HANDLER.load(Ordering::Relaxed)) };
    handler(address, if error_code & WRITE != 0 { Access::Write } else { Access::Read })
}
