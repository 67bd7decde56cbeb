//! Notes each critical section in the calling vCPU's trace ring, if the VMM has laid out one.
#![expect(unsafe_code, reason = "turns addresses that the VMM promised into references")]

use core::sync::atomic::{AtomicU64, Ordering};

use haltkick_hypercalls::{TRACE_SECTIONS_OFFSET, TraceSection, trace_ring_bytes};

use crate::cpu::percpu::{add, boot, cpu};

#[derive(Clone, Copy)]
pub(crate) struct Ring(Option<(&'static AtomicU64, &'static [TraceSection])>);

impl Ring {
    pub(crate) fn of_this_vcpu() -> Self {
        let (rings, sections) = (boot().trace_rings.0, boot().trace_sections);
        if rings == 0 {
            return Self(None);
        }
        let ring = (rings + cpu() as u64 * trace_ring_bytes(sections)) as *const u8;
        // SAFETY: the VMM has laid out a ring of this length for each vCPU, aligned and zeroed, for as long as the
        // guest lives; only this vCPU refers to it, and all that lies there is atomic.
        let ring = unsafe {
            let first = ring.add(TRACE_SECTIONS_OFFSET).cast();
            (&*ring.cast(), core::slice::from_raw_parts(first, sections as usize))
        };
        Self(Some(ring))
    }

    pub(crate) fn words(self) -> &'static [AtomicU64] {
        let bytes = trace_ring_bytes(boot().trace_sections);
        match self.0 {
            // SAFETY: as in `of_this_vcpu`.
            Some((ring, _)) => unsafe { core::slice::from_raw_parts(ring, bytes as usize / 8) },
            None => &[],
        }
    }

    pub(crate) fn forget(self) {
        if let Some((written, _)) = self.0 {
            written.store(0, Ordering::Relaxed);
        }
    }

    /// A section has ended. Times are TSC values that the caller has taken anyway: this costs stores alone.
    #[inline(always)]
    pub(crate) fn section(self, lock: usize, asked: u64, had: u64, left: u64) {
        let Some((written, sections)) = self.0 else { return };
        // Relaxed, here and below: the VMM reads the ring when this vCPU has stopped. A section that is being written
        // then is not counted yet.
        let place = written.load(Ordering::Relaxed) as usize & (sections.len() - 1);
        if let Some(section) = sections.get(place) {
            section.asked_tsc.store(asked, Ordering::Relaxed);
            section.had_tsc.store(had, Ordering::Relaxed);
            section.left_tsc.store(left, Ordering::Relaxed);
            section.lock.store(lock as u64, Ordering::Relaxed);
            add(written, 1);
        }
    }
}
