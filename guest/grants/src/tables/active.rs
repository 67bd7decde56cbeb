//! Active entries: what the mapping side knows of a grant, out of the granter's reach.

use haltkick_locks::{Lock, mutant::mutant};

use crate::interface::access::Access;
use crate::locking::guarded::Guarded;
use crate::locking::order::Class;
use crate::locking::{Kernel, Scheme, Taken};
use crate::machine::Vcpu;

/// One entry. But for its lock, protected by that lock, or by the table's where the scheme has no locks here.
#[repr(align(32))]
pub(crate) struct Active<K: Kernel> {
    lock: K::Lock,
    /// Four 8-bit counters, see [`Access::increment`].
    pub(crate) pin: Guarded,
    /// Domain that has pinned it, while the pin is not 0.
    pub(crate) domain: Guarded,
    /// The machine frame that the grant named when it was first pinned.
    pub(crate) frame: Guarded,
}

/// Pins for writing: host and device.
const WRITE_PINS: u32 = 0x00ff_00ff;

impl<K: Kernel> Active<K> {
    pub(crate) fn new() -> Self {
        Self { lock: K::new_lock(), pin: Guarded::new(0), domain: Guarded::new(0), frame: Guarded::new(0) }
    }

    /// Does `section` alone with this entry, which is `reference` of its table.
    #[inline(always)]
    pub(crate) fn locked<S: Scheme<Kernel = K>, R>(
        &self,
        vcpu: &Vcpu,
        reference: u32,
        section: impl FnOnce() -> R,
    ) -> R {
        if mutant!("grants-no-entry-lock": !S::ENTRY_LOCKS => true) {
            return section();
        }
        let address = core::ptr::from_ref(self).addr();
        let _held = vcpu.order.acquire(Class::Entry, address, reference);
        let token = self.lock.lock(K::domain());
        let holding = vcpu.holding::<K>(Taken::Entry(reference), address);
        let result = section();
        self.lock.unlock(K::domain(), token);
        drop(holding);
        result
    }

    /// Whether there are pins for writing.
    pub(crate) fn is_written(&self) -> bool {
        self.pin.get() & WRITE_PINS != 0
    }

    /// Whether pinning for `access` would overflow a counter.
    pub(crate) fn is_full_for(&self, access: Access) -> bool {
        let (pin, increment) = (self.pin.get(), access.increment());
        (0..4).any(|counter| {
            let shift = counter * 8;
            let full = increment >> shift & 0xff != 0 && pin >> shift & 0xff == 0xff;
            mutant!("grants-full-counter": full => false)
        })
    }
}
