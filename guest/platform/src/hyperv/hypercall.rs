//! The one hypercall: "this CPU has been spinning for long".
#![expect(unsafe_code, reason = "a call into the host's page")]

use core::arch::asm;

/// What is in RCX: a call's code, and that what it is told is in registers ("fast").
const fn input(code: u16) -> u64 {
    const FAST: u64 = 1 << 16;
    FAST | code as u64
}

/// Tells the host that the calling CPU has spun `spins` times for something that another one has: `HvCallNotifyLongSpinWait`.
///
/// # Safety
///
/// `page` is where the kernel has enabled the hypercall page.
pub(super) unsafe fn notify_long_spin_wait(page: usize, spins: u32) {
    const NOTIFY_LONG_SPIN_WAIT: u16 = 0x0008;
    // There is no status but success, and nothing comes back. SAFETY: the caller's promise; the host keeps the calling convention's
    // non-volatile registers.
    unsafe {
        asm!(
            "call {page}",
            page = in(reg) page,
            in("rcx") input(NOTIFY_LONG_SPIN_WAIT), in("rdx") u64::from(spins), in("r8") 0_u64,
            clobber_abi("sysv64")
        );
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;
    use std::thread_local;

    use super::*;

    extern crate std;

    thread_local! {
        static CALLED: Cell<(u64, u64, u64)> = const { Cell::new((0, 0, 0)) };
    }

    /// A host's page, for tests: it keeps its registers, and clobbers those that it may.
    extern "sysv64" fn called(_: u64, _: u64, rdx: u64, rcx: u64, r8: u64) -> u64 {
        CALLED.set((rcx, rdx, r8));
        !0
    }

    #[test]
    fn a_long_spin_is_told_in_registers_as_the_specification_says() {
        let page: extern "sysv64" fn(u64, u64, u64, u64, u64) -> u64 = called;
        // SAFETY: it is a function that takes what it is told in the same registers.
        unsafe { notify_long_spin_wait(page as usize, 0xffff_fffe) };
        assert_eq!(CALLED.get(), (0x0001_0008, 0xffff_fffe, 0), "RCX, RDX, R8");
    }
}
