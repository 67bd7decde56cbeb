//! Pinning an entry, and mapping what it grants.

use haltkick_locks::mutant::mutant;

use super::World;
use super::world::DomainState;
use crate::interface::Status;
use crate::interface::access::Access;
use crate::locking::{Kernel, MapLocking, MaptrackLocking, Scheme};
use crate::machine::Vcpu;
use crate::machine::vcpu::Counter;
use crate::tables::maptrack::Mapping;
use crate::tables::shared::{READING, WRITING};
use crate::tables::table::Entry;

/// Arguments of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapRequest {
    /// The granting domain.
    pub granter: u16,
    /// The entry of its table.
    pub reference: u32,
    /// [`HOST_MAP`](crate::HOST_MAP) and its siblings.
    pub flags: u32,
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
        let handle = self.get_handle(vcpu, local)?;
        let install = |frame| {
            S::Kernel::page_table_work();
            local.window.install(handle, frame, access.is_write());
        };
        let mapping = Mapping { granter: granter.id, reference: request.reference, flags: access.flags() };
        let track = |frame| {
            local.maptrack.fill(handle, mapping);
            if S::STRICT_IOMMU {
                self.settle_reach(vcpu, local, granter, frame);
            }
        };

        let locking = mutant!("grants-release-first": S::MAP => MapLocking::Nothing);
        let pinned = granter.table.map(&self.readers, vcpu, || {
            self.pin_entry(vcpu, granter, mapper, request.reference, access, |frame| {
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
                granter.table.read_both(&local.table, &self.readers, vcpu, || track(frame));
            }
            MapLocking::Nothing => {
                install(frame);
                track(frame);
            }
        }
        Ok(handle)
    }

    pub(crate) fn get_handle(&self, vcpu: &Vcpu, local: &DomainState<S>) -> Result<u32, Status> {
        match S::MAPTRACK {
            MaptrackLocking::Table => local.table.write(&self.readers, vcpu, || local.maptrack.get(vcpu)),
            _ => local.maptrack.get(vcpu),
        }
    }

    pub(crate) fn put_handle(&self, vcpu: &Vcpu, local: &DomainState<S>, handle: u32) {
        match S::MAPTRACK {
            MaptrackLocking::Table => {
                local.table.write(&self.readers, vcpu, || local.maptrack.put(vcpu, handle));
            }
            _ => local.maptrack.put(vcpu, handle),
        }
    }

    /// Pins entry `reference` of `granter` for `access` by `mapper`, and gives the machine frame.
    pub(crate) fn pin(
        &self,
        vcpu: &Vcpu,
        granter: &DomainState<S>,
        mapper: u16,
        reference: u32,
        access: Access,
    ) -> Result<u32, Status> {
        let pin = || self.pin_entry(vcpu, granter, mapper, reference, access, |_| ());
        granter.table.read(&self.readers, vcpu, pin)
    }

    /// Pins an entry under the table's lock; runs `then` with the frame before it releases the entry.
    fn pin_entry(
        &self,
        vcpu: &Vcpu,
        granter: &DomainState<S>,
        mapper: u16,
        reference: u32,
        access: Access,
        then: impl FnOnce(u32),
    ) -> Result<u32, Status> {
        let entry = granter.table.entry(reference)?;
        entry.active.locked::<S, _>(vcpu, reference, || {
            let frame = self.pin_locked(vcpu, granter, mapper, &entry, access)?;
            then(frame);
            Ok(frame)
        })
    }

    fn pin_locked(
        &self,
        vcpu: &Vcpu,
        granter: &DomainState<S>,
        mapper: u16,
        entry: &Entry<'_, S>,
        access: Access,
    ) -> Result<u32, Status> {
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
                match granter.machine_frame(number).and_then(|frame| {
                    self.frames.hold(frame, granter.id)?;
                    Ok(frame)
                }) {
                    Ok(frame) => active.frame.set(frame),
                    Err(status) => {
                        entry.shared.clear(READING | WRITING);
                        return Err(status);
                    }
                }
            }
        }
        active.pin.set(active.pin.get() + access.increment());
        Ok(active.frame.get())
    }

    /// Undoes one [`pin`](Self::pin).
    pub(crate) fn unpin_locked(&self, entry: &Entry<'_, S>, access: Access) {
        let active = entry.active;
        active.pin.set(active.pin.get() - access.increment());
        if active.pin.get() == 0 {
            mutant!("grants-keep-frame": self.frames.release(active.frame.get()) => ());
            entry.shared.clear(READING | WRITING);
        } else if access.is_write() && !active.is_written() {
            mutant!("grants-keep-writing": entry.shared.clear(WRITING) => ());
        }
    }
}
