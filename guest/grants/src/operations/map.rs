//! Pinning an entry, and mapping what it grants.

use haltkick_locks::mutant::mutant;

use super::{DomainState, World};

use crate::{
    interface::{Access, MapRequest, Status},
    locking::{Kernel, MapLocking, Scheme},
    machine::{Counter, FOR_READING, FOR_WRITING, NOT, Vcpu},
    tables::{READING, WRITING},
};

/// A pin that is asked for.
#[derive(Clone, Copy)]
pub(crate) struct Pin {
    pub(crate) mapper: u16,
    /// The entry of the granter's table.
    pub(crate) reference: u32,
    pub(crate) access: Access,
}

impl<S: Scheme> World<S> {
    /// Maps what `request` names into `mapper`'s window, and gives the handle.
    ///
    /// # Errors
    /// Any [`Status`] but those of copies and growth. Nothing is changed then.
    pub fn map(&self, vcpu: &Vcpu, mapper: u16, request: MapRequest) -> Result<u32, Status> {
        vcpu.settle(Counter::Map, self.try_map(vcpu, mapper, request))
    }

    fn try_map(&self, vcpu: &Vcpu, mapper: u16, request: MapRequest) -> Result<u32, Status> {
        let access = Access::from_flags(request.flags)?;
        let (local, granter) = (self.domain(mapper)?, self.domain(request.granter)?);
        let handle = local.with_handles(vcpu, || local.maptrack.get(vcpu))?;
        let install = |frame| {
            S::Kernel::page_table_work();
            local.window.install(handle, frame, access.is_write());
        };
        let pin = Pin { mapper, reference: request.reference, access };
        let track = |frame| {
            local.maptrack.fill(handle, request);
            if S::STRICT_IOMMU {
                self.settle_reach(vcpu, local, granter, frame);
            }
        };

        let locking = mutant!("grants-release-first": S::MAP => MapLocking::Nothing);
        let pinned = granter.table.map(vcpu, || {
            self.pin(vcpu, granter, pin, |frame| {
                if locking == MapLocking::Entry {
                    install(frame);
                    track(frame);
                }
            })
        });
        let Ok(frame) = pinned else {
            mutant!("grants-forget-handle": self.put_handle(vcpu, local, handle) => ());
            return pinned;
        };
        match locking {
            MapLocking::Entry => {}
            MapLocking::BothTables => {
                install(frame);
                granter.table.read_both(&local.table, vcpu, || track(frame));
            }
            MapLocking::Nothing => {
                install(frame);
                track(frame);
            }
        }
        Ok(handle)
    }

    fn put_handle(&self, vcpu: &Vcpu, local: &DomainState<S>, handle: u32) {
        local.with_handles(vcpu, || local.maptrack.put(vcpu, handle));
    }

    /// Pins an entry of `granter`, whose table's lock the caller holds, and returns the machine frame. Runs `then` with the frame before
    /// it releases the entry.
    pub(crate) fn pin(
        &self,
        vcpu: &Vcpu,
        granter: &DomainState<S>,
        Pin { mapper, reference, access }: Pin,
        then: impl FnOnce(u32),
    ) -> Result<u32, Status> {
        let entry = granter.table.entry(reference)?;
        entry.locked(vcpu, || {
            let active = entry.active;
            let first = active.pin.get() == 0;
            if !first && (active.domain.get() != u32::from(mapper) || active.is_full_for(access)) {
                return Err(Status::GeneralError);
            }
            // The granter is asked when the pins that there are do not cover this one yet.
            if first || access.is_write() && !active.is_written() {
                let unstable = || vcpu.count(Counter::Unstable);
                let number = entry.shared.set_in_use(mapper, access.is_write(), unstable)?;
                if first {
                    active.domain.set(u32::from(mapper));
                    let hold = |frame| self.frames.hold(frame, granter.id).map(|()| frame);
                    let held = granter.machine_frame(number).and_then(hold);
                    active.frame.set(held.inspect_err(|_| entry.shared.clear(READING | WRITING))?);
                }
            }
            active.pin.set(active.pin.get() + access.increment());
            let frame = active.frame.get();
            then(frame);
            Ok(frame)
        })
    }

    /// Undoes one [`pin`](Self::pin) of entry `reference`; does `then` before it releases the entry.
    pub(crate) fn unpin(
        &self,
        vcpu: &Vcpu,
        granter: &DomainState<S>,
        (reference, access): (u32, Access),
        then: impl FnOnce(),
    ) {
        granter.table.read(vcpu, || {
            let entry = granter.table.entry(reference).expect("tables do not shrink");
            entry.locked(vcpu, || {
                let active = entry.active;
                active.pin.set(active.pin.get() - access.increment());
                if active.pin.get() == 0 {
                    mutant!("grants-keep-frame": self.frames.release(active.frame.get()) => ());
                    entry.shared.clear(READING | WRITING);
                } else if access.is_write() && !active.is_written() {
                    mutant!("grants-keep-writing": entry.shared.clear(WRITING) => ());
                }
                then();
            });
        });
    }
}

// Unmapping, in batches: remove all, invalidate once, unpin all.

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
                    self.finish(vcpu, local, *handle, mapping);
                }
            }
        }
        Ok(())
    }

    /// First phase: the mapping is gone, but for caches, and no other vCPU can remove it.
    fn remove(&self, vcpu: &Vcpu, local: &DomainState<S>, handle: u32) -> Result<MapRequest, Status> {
        let find = || local.maptrack.find(handle);
        let mapping = if mutant!("grants-look-unlocked": S::MAP != MapLocking::Nothing => false) {
            local.table.read(vcpu, find)
        } else {
            find()
        }?;
        let granter = self.domain(mapping.granter)?;
        let remove = || {
            // `find` looked under another lock, or none: reference and flags may belong to two lives of the handle.
            let entry = granter.table.entry(mapping.reference).map_err(|_| Status::BadHandle)?;
            entry.locked(vcpu, || {
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
        if S::MAP == MapLocking::BothTables {
            granter.table.read_both(&local.table, vcpu, remove)
        } else {
            granter.table.map(vcpu, remove)
        }
    }

    /// Second phase, after the invalidation: the page can no longer be reached.
    fn finish(&self, vcpu: &Vcpu, local: &DomainState<S>, handle: u32, mapping: MapRequest) {
        let access = Access::from_flags(mapping.flags).expect("flags that were checked");
        let granter = self.domain(mapping.granter).expect("a domain that was found");
        let early = mutant!("grants-put-under-entry": S::PUT_UNDER_ENTRY => true);
        self.unpin(vcpu, granter, (mapping.reference, access), || {
            if early {
                self.put_handle(vcpu, local, handle);
            }
        });
        if !early {
            self.put_handle(vcpu, local, handle);
        }
    }
}

// Reach of a mapping domain's devices, where an IOMMU is strict: a page as long as, and as far as, it is
// mapped.
//
// Several mappings may lead to one page, by one entry of the granter's table or by several. So with each
// mapping that comes or goes the mapper's mappings of that page are counted, one look at every handle, and the
// devices get the strongest access among them. All that is done while the granter's table is locked for
// writing: only its pages are concerned.

impl<S: Scheme> World<S> {
    /// Lets the devices of `local` reach `frame` of `granter` as far as it is mapped now.
    pub(crate) fn settle_reach(
        &self,
        vcpu: &Vcpu,
        local: &DomainState<S>,
        granter: &DomainState<S>,
        frame: u32,
    ) {
        let names_frame = |reference: u32| granter.table.active[reference as usize].frame.get() == frame;
        let (reads, writes) = local.maptrack.count(vcpu, granter.id, names_frame);
        let needed = match (reads, writes) {
            (0, 0) => NOT,
            (_, 0) => FOR_READING,
            _ => FOR_WRITING,
        };
        let reach = &local.reach[frame as usize];
        if reach.get() != needed {
            S::Kernel::page_table_work();
            reach.set(needed);
        }
    }

    /// Whether `mapper`'s devices can reach the page that it has mapped by `handle`, for writing or for reading. They always
    /// can where the IOMMU is not strict.
    pub fn device_reaches(&self, vcpu: &Vcpu, mapper: u16, handle: u32, write: bool) -> bool {
        let Ok(local) = self.domain(mapper) else { return false };
        let Some(frame) = local.window.translate(&vcpu.tlb, handle).frame() else { return false };
        !S::STRICT_IOMMU || local.reach[frame as usize].get() >= if write { FOR_WRITING } else { FOR_READING }
    }
}
