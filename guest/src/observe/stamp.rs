//! Readings of the clock at the edges of a section.
//!
//! `rdtsc` is not ordered: by itself it may be executed before an earlier load has its value, and so before the instruction
//! that takes the lock is complete, or after the first ones of the section. `lfence` before it waits until all before is
//! complete, and after it keeps all that follows from beginning. What that costs is in each run's record, and `--stamps plain`
//! does without, for comparison.
#![expect(unsafe_code, reason = "fences of the instruction stream")]

use core::arch::x86_64::_mm_lfence;

use haltkick_hypercalls::BootFlags;

use crate::cpu::percpu::boot;
use crate::cpu::time::now;

/// How a vCPU reads the clock at the edges of its sections.
#[derive(Clone, Copy)]
pub(crate) struct Stamps {
    ordered: bool,
}

impl Stamps {
    /// As this run asks for it.
    pub(crate) fn of_run() -> Self {
        Self::new(boot().flags.has(BootFlags::ORDERED_STAMPS))
    }

    pub(crate) const fn new(ordered: bool) -> Self {
        Self { ordered }
    }

    #[inline(always)]
    pub(crate) fn now(self) -> u64 {
        if !self.ordered {
            return now();
        }
        // SAFETY: touches nothing; every x86-64 CPU has it.
        unsafe { _mm_lfence() };
        let ticks = now();
        // SAFETY: as above.
        unsafe { _mm_lfence() };
        ticks
    }
}
