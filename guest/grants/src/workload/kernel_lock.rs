//! A global lock of a domain's own kernel, which every page needs besides the locks of the hypervisor.
//!
//! Kernels that map foreign pages, or hand out references to their own, keep lists of them. Where such a list has one lock,
//! splitting those of the grant tables does not help beyond it. Here the list is its length.

use haltkick_locks::{CachePadded, Lock, mutant::mutant};

use crate::locking::guarded::Guarded;
use crate::locking::order::Class;
use crate::locking::{Kernel, Taken};
use crate::machine::Vcpu;

/// The domain whose kernel has such a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelLock {
    /// The granting one: taken when it grants a page and when it takes the grant back.
    Granter,
    /// The mapping one: taken when it has mapped a page and before it unmaps it.
    Mapper,
}

/// The list. Its lock and its length share a line.
pub(crate) struct Listed<K: Kernel>(CachePadded<List<K>>);

struct List<K: Kernel> {
    lock: K::Lock,
    pages: Guarded,
}

impl<K: Kernel> Listed<K> {
    pub(crate) fn new() -> Self {
        Self(CachePadded::new(List { lock: K::new_lock(), pages: Guarded::new(0) }))
    }

    /// A page comes.
    pub(crate) fn add(&self, vcpu: &Vcpu) {
        self.locked(vcpu, |pages| pages.set(pages.get() + 1));
    }

    /// A page goes.
    pub(crate) fn remove(&self, vcpu: &Vcpu) {
        self.locked(vcpu, |pages| pages.set(pages.get().wrapping_sub(1)));
    }

    /// How many there are. Exact at rest.
    pub(crate) fn pages(&self) -> u32 {
        self.0.pages.get()
    }

    fn locked(&self, vcpu: &Vcpu, section: impl FnOnce(&Guarded)) {
        let address = core::ptr::from_ref(&*self.0).addr();
        let _held = vcpu.order.acquire(Class::Kernel, address, 0);
        if mutant!("grants-kernel-unlocked": false => true) {
            return section(&self.0.pages);
        }
        let token = self.0.lock.lock(K::domain());
        let holding = vcpu.holding::<K>(Taken::Kernel, address);
        section(&self.0.pages);
        self.0.lock.unlock(K::domain(), token);
        drop(holding);
    }
}
