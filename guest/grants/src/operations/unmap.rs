//! Unmapping, in batches: remove all, invalidate once, unpin all.

use haltkick_locks::mutant::mutant;

use super::World;
use super::world::DomainState;
use crate::interface::Status;
use crate::interface::access::Access;
use crate::locking::{Kernel, Scheme};
use crate::machine::Vcpu;
use crate::machine::vcpu::Counter;
use crate::tables::maptrack::Mapping;

/// Most mappings that share one invalidation.
pub const BATCH: usize = 32;

impl<S: Scheme> World<S> {
    /// Removes the mappings that `handles` name. `refused` is told of each that names none.
    ///
    /// # Errors
    /// [`Status::BadDomain`] if there is no `mapper`; nothing is done then.
    pub fn unmap(
        &self,
        vcpu: &Vcpu,
        mapper: u16,
        handles: &[u32],
        mut refused: impl FnMut(u32, Status),
    ) -> Result<(), Status> {
        let local = vcpu.settle_refusal(self.domain(mapper))?;
        for batch in handles.chunks(BATCH) {
            let mut removed = [None; BATCH];
            for (handle, removed) in batch.iter().zip(&mut removed) {
                match vcpu.settle(Counter::Unmap, self.remove(vcpu, local, *handle)) {
                    Ok(mapping) => *removed = Some(mapping),
                    Err(status) => refused(*handle, status),
                }
            }
            if removed.iter().any(Option::is_some) {
                mutant!("grants-no-invalidation": local.window.invalidate() => ());
                vcpu.count(Counter::Invalidate);
            }
            for (handle, mapping) in batch.iter().zip(removed) {
                if let Some(mapping) = mapping {
                    self.unpin(vcpu, local, *handle, mapping);
                }
            }
        }
        Ok(())
    }

    /// First phase: the mapping is gone, but for caches, and no other vCPU can remove it.
    fn remove(&self, vcpu: &Vcpu, local: &DomainState<S>, handle: u32) -> Result<Mapping, Status> {
        let find = || local.maptrack.find(handle);
        let mapping = if mutant!("grants-look-unlocked": S::LOOK_LOCKED => false) {
            local.table.read(&self.readers, vcpu, find)
        } else {
            find()
        }?;
        let granter = self.domain(mapping.granter)?;
        let remove = || {
            // `find` looked under another lock, or none: reference and flags may belong to two lives of the handle.
            let entry = granter.table.entry(mapping.reference).map_err(|_| Status::BadHandle)?;
            entry.active.locked::<S, _>(vcpu, mapping.reference, || {
                if !local.maptrack.clear(handle, mapping) {
                    return Err(Status::BadHandle);
                }
                S::Kernel::page_table_work();
                local.window.remove(handle);
                if S::STRICT_IOMMU {
                    self.settle_reach(vcpu, local, granter, entry.active.frame.get());
                }
                Ok(mapping)
            })
        };
        if S::BOTH_TABLES {
            granter.table.read_both(&local.table, &self.readers, vcpu, remove)
        } else {
            granter.table.map(&self.readers, vcpu, remove)
        }
    }

    /// Second phase, after the invalidation: the page can no longer be reached.
    fn unpin(&self, vcpu: &Vcpu, local: &DomainState<S>, handle: u32, mapping: Mapping) {
        let access = Access::from_flags(mapping.flags).expect("flags that were checked");
        let granter = self.domain(mapping.granter).expect("a domain that was found");
        let early = mutant!("grants-put-under-entry": S::PUT_UNDER_ENTRY => true);
        granter.table.read(&self.readers, vcpu, || {
            let entry = granter.table.entry(mapping.reference).expect("tables do not shrink");
            entry.active.locked::<S, _>(vcpu, mapping.reference, || {
                self.unpin_locked(&entry, access);
                if early {
                    self.put_handle(vcpu, local, handle);
                }
            });
        });
        if !early {
            self.put_handle(vcpu, local, handle);
        }
    }
}
