//! Dropping of cached translations: the VMM's part of the work that other kernels do by an inter-processor interrupt.
//!
//! A vCPU that takes a mapping away raises `requested` of each vCPU that may have it cached, rings the doorbell and
//! waits for `invalidated` to follow. A vCPU that is in the guest is kicked out of it; one that is not is acknowledged
//! on the spot, because it has to pass [`Invalidations::before_entry`] first: so no vCPU waits for one without a pCPU.
//! Either way the vCPU gets an NMI before its next instruction, whose handler reloads CR3.
//!
//! ```text
//! doorbell                      vCPU's thread, before KVM_RUN     after it
//!   was := pending := true        inside := true                    inside := false
//!   inside? was? : kick           pending taken? NMI, acknowledge   pending? acknowledge, leave it pending
//!   else acknowledge
//! ```
//!
//! [`line`] has these steps. All of it sequentially consistent, so that of two such pairs at least one sees the other:
//! 1. The doorbell finds the vCPU inside: the kick ends its KVM_RUN, this one or the next, and the way out or the next
//!    way in acknowledges.
//! 2. It does not: the vCPU's next way in finds `pending`.
//! 3. It finds it inside, and `pending` set by another doorbell: that one kicked (1) or, having come before the way in, is what
//!    the way in takes. Either acknowledges after this doorbell, and so what was requested before it. A guest that rings in a
//!    loop gets one kick per way in.

mod line;
/// The atomics of [`line`], for which `tests/models.rs` puts the model checker's.
mod sync {
    pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
}

use std::io;
use std::sync::atomic::Ordering::SeqCst;

use haltkick_hypercalls::VcpuArea;

use crate::guest::memory::Memory;
use crate::host::signal::Thread;
use crate::machine::vcpu::Vcpu;
use line::{Line, Rung};

pub(crate) struct Invalidations(Vec<Line>);

impl Invalidations {
    pub(crate) fn new(vcpus: u32) -> Self {
        Self((0..vcpus).map(|_| Line::new()).collect())
    }

    /// `thread` is about to run `vcpu`, and no other thread is.
    pub(crate) fn runs_on(&self, vcpu: u32, thread: Thread) {
        self.0[vcpu as usize].runs_on(thread.to_bits());
    }

    /// Immediately before KVM_RUN.
    pub(crate) fn before_entry(&self, vcpu: &Vcpu, area: &VcpuArea) -> io::Result<()> {
        if self.0[vcpu.id as usize].enter() {
            vcpu.nmi()?;
            acknowledge(area);
        }
        Ok(())
    }

    /// Immediately after it.
    pub(crate) fn after_exit(&self, vcpu: u32, area: &VcpuArea) {
        if self.0[vcpu as usize].leave() {
            acknowledge(area);
        }
    }

    /// Whether `vcpu` has to drop what it has cached; it is taken to have done so.
    pub(crate) fn take_pending(&self, vcpu: u32) -> bool {
        self.0[vcpu as usize].take_pending()
    }

    /// The doorbell. A vCPU that is outside acknowledges only once it runs, if it `waits`: [`acknowledge`] does that.
    pub(crate) fn ring(&self, memory: &Memory, waits: impl Fn(u32) -> bool) {
        for (vcpu, line) in self.0.iter().enumerate() {
            let area = memory.area(vcpu as u32);
            // Both numbers may be wrong, the guest's by its own doing: then it gets too many NMIs, or waits forever.
            if area.invalidation.requested.load(SeqCst) == area.host.invalidated.load(SeqCst) {
                continue;
            }
            match line.ring() {
                Rung::Waits => {}
                Rung::Outside if waits(vcpu as u32) => {}
                Rung::Inside(thread) => Thread::from_bits(thread).iter().for_each(|thread| thread.kick()),
                Rung::Outside => acknowledge(area),
            }
        }
    }
}

/// Says that all requests up to now are served before the vCPU's next instruction. Several threads may say so at once, each having
/// loaded another number: the largest stays.
pub(crate) fn acknowledge(area: &VcpuArea) {
    let requested = area.invalidation.requested.load(SeqCst);
    area.host.invalidated.fetch_max(requested, SeqCst);
}
