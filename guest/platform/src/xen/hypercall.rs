//! Xen's hypercalls, and what they are told.
//!
//! Registers are those of Xen's guest guide ("Hypercall ABI"). Numbers and layouts are those of its public interface, which no document
//! shows: the layouts are checked against references that were generated from it, of the crate `libxen-sys` on docs.rs (`sched_poll_t`) and
//! of Linux 3.7 (`evtchn_bind_ipi`). The numbers are from memory.
#![expect(unsafe_code, reason = "hypercalls")]

use core::{arch::asm, ptr};

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

const _: () = assert!(size_of::<Poll>() == 24 && core::mem::offset_of!(Poll, deadline) == 16);

/// A hypercall: its number, and three arguments at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call(u64, [u64; 3]);

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

    /// Makes the call; what it returns, negative for an error.
    ///
    /// # Safety
    ///
    /// At CPL 0 of a domain with hardware virtualisation (HVM or PVH), by its CPU's instruction for it; what addresses are for stays
    /// there, and what the call does must be all right.
    #[inline]
    pub(super) unsafe fn make(self, is_vmmcall: bool) -> i64 {
        let Self(number, [first, second, third]) = self;
        let result;
        // Registers that hold arguments are not kept. SAFETY: the caller's promise.
        unsafe {
            if is_vmmcall {
                asm!(
                    "vmmcall", inout("rax") number => result, inout("rdi") first => _, inout("rsi") second => _,
                    inout("rdx") third => _, out("r10") _, out("r8") _, options(nostack)
                );
            } else {
                asm!(
                    "vmcall", inout("rax") number => result, inout("rdi") first => _, inout("rsi") second => _,
                    inout("rdx") third => _, out("r10") _, out("r8") _, options(nostack)
                );
            }
        }
        result
    }
}

/// A channel for events to the virtual CPU `vcpu`; `None` if Xen has none left.
///
/// # Safety
///
/// As [`Call::make`].
pub(super) unsafe fn bind_ipi(is_vmmcall: bool, vcpu: u32) -> Option<u32> {
    let mut told = BindIpi { vcpu, port: 0 };
    // SAFETY: the caller's promise; it writes the port.
    let result = unsafe { Call::bind_ipi(&mut told).make(is_vmmcall) };
    (result == 0).then_some(told.port)
}

/// # Safety
///
/// As [`Call::make`], and nobody needs the channel.
pub(super) unsafe fn close(is_vmmcall: bool, port: u32) {
    // SAFETY: the caller's promise. It fails for ports that are not open, and then there is nothing to do.
    _ = unsafe { Call::close(&port).make(is_vmmcall) };
}

/// # Safety
///
/// As [`Call::make`], and somebody expects the event.
pub(super) unsafe fn send(is_vmmcall: bool, port: u32) {
    // SAFETY: the caller's promise. It fails for ports that are not open: that CPU has stopped, and does not sleep.
    _ = unsafe { Call::send(&port).make(is_vmmcall) };
}

/// # Safety
///
/// As [`Call::make`].
pub(super) unsafe fn poll(is_vmmcall: bool, port: u32) {
    let told = Poll { ports: &raw const port, count: 1, deadline: 0 };
    // SAFETY: the caller's promise. If it fails, it has been a spurious wake-up.
    _ = unsafe { Call::poll(&told).make(is_vmmcall) };
}

/// Xen writes at `address` how `vcpu` runs, from here on; 0: nowhere.
///
/// # Safety
///
/// As [`Call::make`], and at `address` is a [`RunState`](super::run_state::RunState) for as long as Xen writes it.
pub(super) unsafe fn register_run_state(is_vmmcall: bool, vcpu: u32, address: usize) {
    let address = address as u64;
    // SAFETY: the caller's promise. If it fails, the state stays "running": a hint.
    _ = unsafe { Call::register_run_state(vcpu, &address).make(is_vmmcall) };
}

#[cfg(test)]
mod tests {
    use super::*;

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
    }
}
