//! Copying between pages, each side by grant or the caller's own.

use super::{DomainState, World, map::Pin};

use crate::{
    interface::{Access, HOST_MAP, READONLY_MAP, Status},
    locking::Scheme,
    machine::{Counter, PAGE_BYTES, Page, Vcpu},
};

/// One side of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The grant of a domain in this entry.
    Granted {
        /// The granting domain.
        granter: u16,
        /// The entry of its table.
        reference: u32,
    },
    /// A frame of the caller.
    Own {
        /// Its number.
        number: u32,
    },
}

/// Arguments of a copy. Offsets and length in bytes, multiples of eight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyRequest {
    /// From where.
    pub source: Place,
    /// Offset in that page.
    pub source_offset: usize,
    /// To where.
    pub destination: Place,
    /// Offset in that page.
    pub destination_offset: usize,
    /// How much.
    pub length: usize,
}

impl<S: Scheme> World<S> {
    /// Copies for `caller`, with a short pin on each side that is granted.
    ///
    /// # Errors
    /// [`Status::BadCopyArgument`], and those of a map. Nothing is changed then.
    pub fn copy(&self, vcpu: &Vcpu, caller: u16, request: CopyRequest) -> Result<(), Status> {
        vcpu.settle(Counter::Copy, self.try_copy(vcpu, caller, request))
    }

    fn try_copy(&self, vcpu: &Vcpu, caller: u16, request: CopyRequest) -> Result<(), Status> {
        let CopyRequest { source, source_offset, destination, destination_offset, length } = request;
        let fits = |offset: usize| offset.checked_add(length).is_some_and(|end| end <= PAGE_BYTES);
        let aligned = (source_offset | destination_offset | length).is_multiple_of(8);
        if !fits(source_offset) || !fits(destination_offset) || !aligned {
            return Err(Status::BadCopyArgument);
        }
        let caller = self.domain(caller)?;
        self.with_page(vcpu, caller, source, HOST_MAP | READONLY_MAP, |from| {
            // No lock is held here, only a pin: the two sides may be one entry, or two in any order.
            self.with_page(vcpu, caller, destination, HOST_MAP, |to| {
                for word in 0..length / 8 {
                    to.write(destination_offset / 8 + word, from.read(source_offset / 8 + word));
                }
                Ok(())
            })
        })
    }

    /// Does `section` with a page that stays where it is meanwhile.
    fn with_page(
        &self,
        vcpu: &Vcpu,
        caller: &DomainState<S>,
        place: Place,
        flags: u32,
        section: impl FnOnce(&Page) -> Result<(), Status>,
    ) -> Result<(), Status> {
        match place {
            Place::Own { number } => {
                let frame = caller.machine_frame(number)?;
                self.frames.hold(frame, caller.id)?;
                let result = section(self.frames.page(frame));
                self.frames.release(frame);
                result
            }
            Place::Granted { granter, reference } => {
                let granter = self.domain(granter)?;
                let access = Access::from_flags(flags)?;
                let pin = Pin { mapper: caller.id, reference, access };
                let frame = granter.table.read(vcpu, || self.pin(vcpu, granter, pin, |_| ()))?;
                let result = section(self.frames.page(frame));
                self.unpin(vcpu, granter, (reference, access), || ());
                result
            }
        }
    }
}
