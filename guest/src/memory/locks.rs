//! The memory manager's locks: the lock crate's, over this guest.

use haltkick_hypercalls::MAX_VCPUS;
use haltkick_locks::osq::Packed;
use haltkick_locks::{FairRwLock, Lock, Pv, QSpinDomain, QSpinLock, Rules2018, RwLock, RwSem, SleepDomain};
use haltkick_mm::{Exclusion, Sharing};

use crate::cpu::percpu::this;
use crate::lock::kind::Rules;
use crate::lock::oracle;
use crate::lock::platform::{Guest, LINES};
use crate::observe::activity;

/// A page-table lock: today's paravirtual qspinlock, which is what a kernel in such a guest has.
pub(crate) struct Spin(QSpinLock<Pv>);

impl Spin {
    /// A free one.
    pub(super) const fn new() -> Self {
        Self(QSpinLock::new())
    }
}

/// The lock of the tree of areas: readers and writers in order of arrival.
pub(crate) struct TreeLock(FairRwLock<QSpinLock<Pv>>);

impl TreeLock {
    /// A free one.
    pub(super) const fn new() -> Self {
        Self(FairRwLock::new(QSpinLock::new()))
    }
}

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
    /// A free one.
    pub(crate) const fn new(rules: Rules, is_watched: bool) -> Self {
        let semaphore = match rules {
            Rules::Today => AnyRwSem::Today(RwSem::with_rules()),
            Rules::Of2018 => AnyRwSem::Of2018(RwSem::with_rules()),
        };
        Self { semaphore, is_watched }
    }
}

static SPIN_DOMAIN: QSpinDomain<Guest, MAX_VCPUS, LINES> = QSpinDomain::new(Guest);
pub(super) type SleepingMemory = SleepDomain<Guest, Packed, MAX_VCPUS>;

pub(super) static SLEEP_DOMAIN: SleepingMemory = SleepDomain::new(Guest);

impl Exclusion for Spin {
    #[inline]
    fn lock(&self) {
        self.0.lock(&SPIN_DOMAIN);
    }

    #[inline]
    fn try_lock(&self) -> bool {
        self.0.try_lock(&SPIN_DOMAIN).is_some()
    }

    #[inline]
    fn unlock(&self) {
        self.0.unlock(&SPIN_DOMAIN, ());
    }
}

impl Sharing for TreeLock {
    #[inline]
    fn read(&self) {
        self.0.read(&SPIN_DOMAIN);
    }

    #[inline]
    fn read_unlock(&self) {
        self.0.read_unlock(&SPIN_DOMAIN, ());
    }

    #[inline]
    fn write(&self) {
        self.0.write(&SPIN_DOMAIN);
    }

    #[inline]
    fn write_unlock(&self) {
        self.0.write_unlock(&SPIN_DOMAIN, ());
    }
}

impl Sharing for Semaphore {
    #[inline]
    fn read(&self) {
        of_either!(self.semaphore, lock => lock.read(&SLEEP_DOMAIN));
    }

    #[inline]
    fn read_unlock(&self) {
        of_either!(self.semaphore, lock => lock.read_unlock(&SLEEP_DOMAIN));
    }

    // Takes it for writing; the VMM calls its owner a holder.

    #[inline]
    fn write(&self) {
        of_either!(self.semaphore, lock => lock.write(&SLEEP_DOMAIN));
        // Relaxed, here and below: the VMM reads it when this vCPU has stopped.
        activity::section_entered(&this().activity);
        if self.is_watched {
            oracle::enter(0);
        }
    }

    #[inline]
    fn write_unlock(&self) {
        if self.is_watched {
            oracle::leave(0);
        }
        of_either!(self.semaphore, lock => lock.write_unlock(&SLEEP_DOMAIN));
        activity::section_left(&this().activity);
        activity::end_grace();
    }
}
