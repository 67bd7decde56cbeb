//! The memory manager's locks: the lock crate's, over this guest; and the ways to serve page faults, as entries of the table.

use haltkick_hypercalls::MAX_VCPUS;
use haltkick_locks::osq::Packed;
use haltkick_locks::{QSpinDomain, Rules2018, RwLock, RwSem, SleepDomain};
use haltkick_mm::Scheme;

use crate::cpu::percpu::this;
use crate::lock::kind::{Rules, Serving, guest_kind};
use crate::lock::oracle;
use crate::lock::platform::{Guest, LINES};
use crate::lock::registry::lock;
use crate::observe::activity;

pub(super) type Spins = QSpinDomain<Guest, MAX_VCPUS, LINES>;
pub(super) type Sleepers = SleepDomain<Guest, Packed, MAX_VCPUS>;

pub(super) static SPINS: Spins = QSpinDomain::new(Guest);
pub(super) static SLEEPERS: Sleepers = SleepDomain::new(Guest);

/// `mmap_sem`. That of the common address space is watched: its writers are the sections of lock 0.
pub(crate) struct Semaphore {
    semaphore: AnyRwSem,
    is_watched: bool,
}

/// One type of lock under the rules of two times.
enum AnyRwSem {
    Today(RwSem),
    Of2018(RwSem<Packed, Rules2018>),
}

/// Calls a method of whichever it is.
macro_rules! of_either {
    ($semaphore:expr, $lock:ident => $call:expr) => {
        match &$semaphore {
            AnyRwSem::Today($lock) => $call,
            AnyRwSem::Of2018($lock) => $call,
        }
    };
}

impl Semaphore {
    pub(crate) const fn new(rules: Rules, is_watched: bool) -> Self {
        let semaphore = match rules {
            Rules::Today => AnyRwSem::Today(RwSem::new()),
            Rules::Of2018 => AnyRwSem::Of2018(RwSem::new()),
        };
        Self { semaphore, is_watched }
    }

    /// The calling vCPU has it for writing; the VMM calls that one a holder.
    #[inline]
    fn entered(&self) {
        // Relaxed: the VMM reads it when this vCPU has stopped.
        activity::section_entered(&this().activity);
        if self.is_watched {
            oracle::enter(0);
        }
    }
}

impl RwLock<Sleepers> for Semaphore {
    type ReadToken = ();
    type WriteToken = ();

    #[inline]
    fn read(&self, sleepers: &Sleepers) {
        of_either!(self.semaphore, lock => lock.read(sleepers));
    }

    #[inline]
    fn read_unlock(&self, sleepers: &Sleepers, (): ()) {
        of_either!(self.semaphore, lock => lock.read_unlock(sleepers, ()));
    }

    #[inline]
    fn write(&self, sleepers: &Sleepers) {
        of_either!(self.semaphore, lock => lock.write(sleepers));
        self.entered();
    }

    #[inline]
    fn write_unlock(&self, sleepers: &Sleepers, (): ()) {
        if self.is_watched {
            oracle::leave(0);
        }
        of_either!(self.semaphore, lock => lock.write_unlock(sleepers, ()));
        activity::section_left(&this().activity);
        activity::end_grace();
    }
}

/// Declares ways to serve page faults. As a lock, each is the `mmap_sem` that all of them have: held for writing, or shared by
/// readers.
macro_rules! fault_schemes {
    ($($order:literal $name:literal, $summary:literal, $kind:ident: $scheme:ident, $rules:ident;)+) => {$(
        guest_kind! {
            $kind: Semaphore = Semaphore::new(Rules::$rules, false),
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
