//! Xen's hypercalls, and what they are told.
//!
//! The page and the registers are those of Xen's guest guide ("Hypercall ABI"). Numbers and layouts are those of its public interface, which
//! no document shows: the layouts are checked against references that were generated from it, of the crate `libxen-sys` on docs.rs
//! (`sched_poll_t`), of Linux 3.7 (`evtchn_bind_ipi`) and of Zephyr (`xen_add_to_physmap`, with its number and that of `shared_info`). All
//! other numbers are from memory.
#![expect(unsafe_code, reason = "calls into a page that Xen fills")]

use core::{arch::asm, cell::UnsafeCell, ptr};

/// How much of a hypercall page each call has.
const ENTRY_BYTES: usize = 32;
const PAGE_BYTES: usize = 4096;

/// The page by which a kernel calls Xen, which fills it. A static in the kernel, mapped where code may be executed.
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct HypercallPage(UnsafeCell<[u8; PAGE_BYTES]>);

// SAFETY: nobody but Xen writes it, once, before anybody calls; else it is code.
unsafe impl Sync for HypercallPage {}

impl HypercallPage {
    /// One that is not filled yet.
    #[expect(clippy::new_without_default, reason = "it is for statics")]
    pub const fn new() -> Self {
        Self(UnsafeCell::new([0; PAGE_BYTES]))
    }

    /// Its virtual address.
    pub(super) fn address(&self) -> usize {
        self.0.get().addr()
    }
}

/// `struct evtchn_bind_ipi`: a channel by which a virtual CPU can be sent events.
#[derive(Debug)]
#[repr(C)]
pub(super) struct BindIpi {
    pub(super) vcpu: u32,
    /// Written by Xen.
    pub(super) port: u32,
}

/// `struct sched_poll`.
#[repr(C)]
struct Poll {
    ports: *const u32,
    count: u32,
    /// 0: until an event.
    deadline: u64,
}

/// `struct xen_add_to_physmap`.
#[repr(C)]
struct AddToPhysmap {
    domain: u16,
    size: u16,
    space: u32,
    index: u64,
    frame: u64,
}

const _: () = assert!(size_of::<AddToPhysmap>() == 24);
const _: () = assert!(size_of::<Poll>() == 24 && core::mem::offset_of!(Poll, deadline) == 16);

/// A hypercall: its number, and three arguments at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call(u64, [u64; 3]);

const MEMORY_OP: u64 = 12;
const VCPU_OP: u64 = 24;
const SCHED_OP: u64 = 29;
const EVENT_CHANNEL_OP: u64 = 32;

/// Gives the rest of the slice to whoever waits.
pub(super) const YIELD: Call = Call(SCHED_OP, [0; 3]);

impl Call {
    /// `EVTCHNOP_bind_ipi`.
    pub(super) fn bind_ipi(told: &mut BindIpi) -> Self {
        Self(EVENT_CHANNEL_OP, [7, ptr::from_mut(told).addr() as u64, 0])
    }

    /// `EVTCHNOP_close`; `struct evtchn_close` is a port.
    fn close(port: &u32) -> Self {
        Self(EVENT_CHANNEL_OP, [3, ptr::from_ref(port).addr() as u64, 0])
    }

    /// `EVTCHNOP_send`; `struct evtchn_send` is a port.
    fn send(port: &u32) -> Self {
        Self(EVENT_CHANNEL_OP, [4, ptr::from_ref(port).addr() as u64, 0])
    }

    /// `SCHEDOP_poll`.
    fn poll(told: &Poll) -> Self {
        Self(SCHED_OP, [3, ptr::from_ref(told).addr() as u64, 0])
    }

    /// `VCPUOP_register_runstate_memory_area`; what it is told is an address, 0 for none.
    fn register_run_state(vcpu: u32, address: &u64) -> Self {
        Self(VCPU_OP, [5, u64::from(vcpu), ptr::from_ref(address).addr() as u64])
    }

    /// `XENMEM_add_to_physmap`.
    fn add_to_physmap(told: &AddToPhysmap) -> Self {
        Self(MEMORY_OP, [7, ptr::from_ref(told).addr() as u64, 0])
    }

    /// Makes the call; what it returns, negative for an error.
    ///
    /// # Safety
    ///
    /// Xen has filled `page`; what addresses are for stays there, and what the call does must be all right.
    #[inline]
    pub(super) unsafe fn make(self, page: &HypercallPage) -> i64 {
        let Self(number, [first, second, third]) = self;
        let result;
        // Registers that can hold arguments are not kept; all others are. Not `nostack`: the call pushes a word, where the compiler
        // has nothing then, not even in a red zone. SAFETY: the caller's promise.
        unsafe {
            asm!(
                "call {entry}",
                entry = in(reg) page.address() + number as usize * ENTRY_BYTES,
                out("rax") result, inout("rdi") first => _, inout("rsi") second => _, inout("rdx") third => _,
                out("r10") _, out("r8") _,
            );
        }
        result
    }
}

/// Xen shares its page at `frame` of the kernel's memory from here on; whether it does.
///
/// # Safety
///
/// As [`Call::make`], and nobody needs what was there.
pub(super) unsafe fn share(page: &HypercallPage, frame: u64) -> bool {
    const SELF: u16 = 0x7ff0;
    const SHARED_INFO: u32 = 0;
    let told = AddToPhysmap { domain: SELF, size: 0, space: SHARED_INFO, index: 0, frame };
    // SAFETY: the caller's promise.
    unsafe { Call::add_to_physmap(&told).make(page) == 0 }
}

/// A channel for events to the virtual CPU `vcpu`; `None` if Xen has none left.
///
/// # Safety
///
/// As [`Call::make`].
pub(super) unsafe fn bind_ipi(page: &HypercallPage, vcpu: u32) -> Option<u32> {
    let mut told = BindIpi { vcpu, port: 0 };
    // SAFETY: the caller's promise; it writes the port.
    let result = unsafe { Call::bind_ipi(&mut told).make(page) };
    (result == 0).then_some(told.port)
}

/// # Safety
///
/// As [`Call::make`], and nobody needs the channel.
pub(super) unsafe fn close(page: &HypercallPage, port: u32) {
    // SAFETY: the caller's promise. It fails for ports that are not open, and then there is nothing to do.
    _ = unsafe { Call::close(&port).make(page) };
}

/// # Safety
///
/// As [`Call::make`], and somebody expects the event.
pub(super) unsafe fn send(page: &HypercallPage, port: u32) {
    // SAFETY: the caller's promise. It fails for ports that are not open: that CPU has stopped, and does not sleep.
    _ = unsafe { Call::send(&port).make(page) };
}

/// # Safety
///
/// As [`Call::make`].
pub(super) unsafe fn poll(page: &HypercallPage, port: u32) {
    let told = Poll { ports: &raw const port, count: 1, deadline: 0 };
    // SAFETY: the caller's promise. If it fails, it has been a spurious wake-up.
    _ = unsafe { Call::poll(&told).make(page) };
}

/// Xen writes at `address` how `vcpu` runs, from here on; 0: nowhere.
///
/// # Safety
///
/// As [`Call::make`], and at `address` is a [`RunState`](super::run_state::RunState) for as long as Xen writes it.
pub(super) unsafe fn register_run_state(page: &HypercallPage, vcpu: u32, address: usize) {
    let address = address as u64;
    // SAFETY: the caller's promise. If it fails, the state stays "running": a hint.
    _ = unsafe { Call::register_run_state(vcpu, &address).make(page) };
}

#[cfg(test)]
mod tests {
    use core::arch::global_asm;
    use core::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};

    use super::*;

    /// What the page below was called with: its entry's number, RDI, RSI, RDX.
    static TOLD: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];
    /// What it answers.
    static ANSWER: AtomicI64 = AtomicI64::new(0);

    // A page as Xen fills one, for tests: it clobbers what it may, and keeps the rest.
    global_asm!(
        ".pushsection .text.haltkick_test_hypercalls, \"ax\", @progbits",
        ".p2align 12",
        "haltkick_test_hypercall_page:",
        ".set number, 0",
        ".rept 128",
        ".p2align 5",
        "mov eax, offset number",
        "jmp 2f",
        ".set number, number + 1",
        ".endr",
        ".p2align 12",
        "2: mov [rip + {told}], rax",
        "mov [rip + {told} + 8], rdi",
        "mov [rip + {told} + 16], rsi",
        "mov [rip + {told} + 24], rdx",
        "mov rax, -1",
        "mov rdi, rax",
        "mov rsi, rax",
        "mov rdx, rax",
        "mov r10, rax",
        "mov r8, rax",
        "mov rax, [rip + {answer}]",
        "ret",
        ".popsection",
        told = sym TOLD,
        answer = sym ANSWER,
    );

    unsafe extern "C" {
        #[link_name = "haltkick_test_hypercall_page"]
        static PAGE: HypercallPage;
    }

    #[test]
    fn a_call_enters_the_page_where_its_number_is_and_keeps_to_the_registers() {
        for (call, answer) in
            [(Call(0, [1, 2, 3]), 0), (Call(32, [4, 5, u64::MAX]), -38), (Call(127, [7; 3]), 9)]
        {
            ANSWER.store(answer, SeqCst);
            // SAFETY: the page above, which does nothing but note what it is told.
            let result = unsafe { call.make(&PAGE) };
            let told = TOLD.each_ref().map(|word| word.load(SeqCst));
            let [first, second, third] = call.1;
            assert_eq!((told, result), ([call.0, first, second, third], answer));
        }
    }

    #[test]
    fn calls_are_numbered_as_in_xens_public_interface() {
        let port = 9;
        let at = ptr::from_ref(&port).addr() as u64;
        assert_eq!(YIELD, Call(29, [0, 0, 0]));
        assert_eq!(Call::send(&port), Call(32, [4, at, 0]));
        assert_eq!(Call::close(&port), Call(32, [3, at, 0]));
        let mut ipi = BindIpi { vcpu: 3, port: 0 };
        let at = ptr::from_ref(&ipi).addr() as u64;
        assert_eq!(Call::bind_ipi(&mut ipi), Call(32, [7, at, 0]));
        let poll = Poll { ports: &port, count: 1, deadline: 0 };
        assert_eq!(Call::poll(&poll), Call(29, [3, ptr::from_ref(&poll).addr() as u64, 0]));
        let area = 0x1000;
        let at = ptr::from_ref(&area).addr() as u64;
        assert_eq!(Call::register_run_state(6, &area), Call(24, [5, 6, at]));
        let place = AddToPhysmap { domain: 0x7ff0, size: 0, space: 0, index: 0, frame: 5 };
        assert_eq!(Call::add_to_physmap(&place), Call(12, [7, ptr::from_ref(&place).addr() as u64, 0]));
    }
}
