//! Giving a page away.

use super::World;
use super::world::ABSENT;
use crate::interface::Status;
use crate::locking::Scheme;
use crate::machine::Vcpu;
use crate::machine::vcpu::Counter;

/// Arguments of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferRequest {
    /// The giver's frame number. It has none there afterwards.
    pub number: u32,
    /// The receiving domain.
    pub receiver: u16,
    /// The entry by which it accepts, whose frame says at which number it wants the page.
    pub reference: u32,
}

impl<S: Scheme> World<S> {
    /// Moves a page of `giver` to the receiver.
    ///
    /// # Errors
    /// [`Status::BadPage`] if the page is not the giver's, is mapped somewhere, or is not wanted where the receiver has
    /// one; and those of the receiver's table. The giver has its page then.
    pub fn transfer(&self, vcpu: &Vcpu, giver: u16, request: TransferRequest) -> Result<(), Status> {
        vcpu.settle(Counter::Transfer, self.try_transfer(vcpu, giver, request))
    }

    fn try_transfer(&self, vcpu: &Vcpu, giver: u16, request: TransferRequest) -> Result<(), Status> {
        let TransferRequest { number, receiver, reference } = request;
        let (giver, receiver) = (self.domain(giver)?, self.domain(receiver)?);
        let frame = giver.machine_frame(number)?;
        self.frames.steal(frame, giver.id)?;
        // From here on no other vCPU can pin or move the page.
        let moved = receiver.table.read(&self.readers, vcpu, || {
            let entry = receiver.table.entry(reference)?;
            entry.active.locked::<S, _>(vcpu, reference, || {
                let wanted = entry.shared.commit_transfer(giver.id, || vcpu.count(Counter::Unstable))?;
                if let Err(status) = receiver.set_machine_frame(wanted, ABSENT, frame) {
                    entry.shared.abandon_transfer();
                    return Err(status);
                }
                giver
                    .set_machine_frame(number, frame, ABSENT)
                    .expect("a page on its way is nobody else's to move");
                self.frames.assign(frame, receiver.id);
                entry.shared.complete_transfer(wanted);
                Ok(())
            })
        });
        moved.inspect_err(|_| self.frames.assign(frame, giver.id))
    }
}
