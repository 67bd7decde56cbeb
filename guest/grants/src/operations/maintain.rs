//! Operations on a table as a whole: growth, and the exchange of two entries.

use haltkick_locks::mutant::mutant;

use super::World;
use super::world::DomainState;
use crate::interface::Status;
use crate::locking::{Scheme, SwapLocking};
use crate::machine::Vcpu;
use crate::machine::vcpu::Counter;
use crate::tables::table::Entry;

impl<S: Scheme> World<S> {
    /// Grows `domain`'s table to `references` entries. It never shrinks.
    ///
    /// # Errors
    /// [`Status::BadDomain`], or [`Status::NoSpace`] beyond what it can have.
    pub fn grow(&self, vcpu: &Vcpu, domain: u16, references: u32) -> Result<(), Status> {
        let grown = self
            .domain(domain)
            .and_then(|domain| domain.table.write(&self.readers, vcpu, || domain.table.grow_to(references)));
        vcpu.settle(Counter::Grow, grown)
    }

    /// Entries of `domain`'s table.
    ///
    /// # Errors
    /// [`Status::BadDomain`].
    pub fn references(&self, vcpu: &Vcpu, domain: u16) -> Result<u32, Status> {
        let domain = vcpu.settle_refusal(self.domain(domain))?;
        Ok(domain.table.read(&self.readers, vcpu, || domain.table.count()))
    }

    /// Exchanges two unmapped entries of `domain`'s table.
    ///
    /// # Errors
    /// [`Status::BadDomain`], [`Status::BadReference`], or [`Status::Again`] if one is mapped.
    pub fn swap(&self, vcpu: &Vcpu, domain: u16, a: u32, b: u32) -> Result<(), Status> {
        let swapped = self.domain(domain).and_then(|domain| match S::SWAP {
            SwapLocking::TableWrite => {
                domain.table.write(&self.readers, vcpu, || self.swap_entries(vcpu, domain, a, b))
            }
            SwapLocking::AsGiven | SwapLocking::Ascending => {
                domain.table.read(&self.readers, vcpu, || self.swap_entries(vcpu, domain, a, b))
            }
        });
        vcpu.settle(Counter::Swap, swapped)
    }

    fn swap_entries(&self, vcpu: &Vcpu, domain: &DomainState<S>, a: u32, b: u32) -> Result<(), Status> {
        let (entry_a, entry_b) = (domain.table.entry(a)?, domain.table.entry(b)?);
        let exchange = || {
            let mapped = entry_a.active.pin.get() != 0 || entry_b.active.pin.get() != 0;
            if mutant!("grants-swap-mapped": mapped => false) {
                return Err(Status::Again);
            }
            entry_a.shared.swap(entry_b.shared);
            Ok(())
        };
        let as_given = S::SWAP == SwapLocking::AsGiven;
        // ABBA: two swaps of one pair must take its locks in one order. Itself: one lock is taken once.
        if mutant!("grants-swap-itself": a == b => false) && !as_given {
            return Ok(());
        }
        let (first, second) = if mutant!("grants-swap-as-given": a < b => true) || as_given {
            (&entry_a, &entry_b)
        } else {
            (&entry_b, &entry_a)
        };
        both_locked(vcpu, first, second, exchange)
    }
}

/// Does `section` alone with two entries, locked in the order of the arguments.
fn both_locked<S: Scheme, R>(
    vcpu: &Vcpu,
    first: &Entry<'_, S>,
    second: &Entry<'_, S>,
    section: impl FnOnce() -> R,
) -> R {
    let inner = || second.active.locked::<S, _>(vcpu, second.reference, section);
    first.active.locked::<S, _>(vcpu, first.reference, inner)
}
