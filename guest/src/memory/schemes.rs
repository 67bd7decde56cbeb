//! The ways to serve page faults, each with an entry in the table of locks.

use haltkick_mm::Scheme;

use super::locks::{SLEEPERS, Semaphore, Sleepers};
use crate::lock::kind::{Rules, Serving, guest_kind};
use crate::lock::registry::lock;

/// Declares ways to serve page faults. As a lock, each is the `mmap_sem` that all of them have: held for writing, or shared by
/// readers.
macro_rules! fault_schemes {
    ($($order:literal $name:literal, $summary:literal, $kind:ident: $scheme:ident, $rules:ident;)+) => {$(
        guest_kind! {
            readers $kind: Semaphore = Semaphore::new(Rules::$rules, false),
            Sleepers = &SLEEPERS,
            FAULTS: Option<Serving> = Some((Scheme::$scheme, Rules::$rules))
        }

        lock! {
            $order $name, $summary, [SERVES_FAULTS HAS_READERS];
            paravirt $kind
        }
    )+};
}

fault_schemes! {
    "400" "mmap-sem", "page faults under mmap_sem, held for reading", MmapSem: MmapSem, Today;
    "405" "mmap-sem-2018", "the same under the rwsem of Linux 4.16: no stealing readers, no hand-off",
        MmapSem2018: MmapSem, Of2018;
    "410" "speculative", "page faults without it, validated by a sequence count per area (2018)",
        Speculative: Speculative, Today;
    "415" "speculative-2018",
        "the same beside the rwsem of Linux 4.16, for map, unmap and faults that are given up",
        Speculative2018: Speculative, Of2018;
    "417" "speculative-srcu",
        "the same as first posted: areas are freed after a grace period, not by their last reference",
        SpeculativeSrcu2018: SpeculativeSrcu, Of2018;
    "420" "per-vma", "page faults under the lock of one area (Linux 6.4)", PerVma: PerVma, Today;
}
