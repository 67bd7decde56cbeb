//! Reach of a mapping domain's devices, where an IOMMU is strict: a page as long as, and as far as, it is
//! mapped.
//!
//! Several mappings may lead to one page, by one entry of the granter's table or by several. So with each
//! mapping that comes or goes the mapper's mappings of that page are counted, one look at every handle, and the
//! devices get the strongest access among them. All that is done while the granter's table is locked for
//! writing: only its pages are concerned.

use super::world::{DomainState, World};
use crate::locking::{Kernel, Scheme};
use crate::machine::Vcpu;
use crate::machine::iommu::{FOR_READING, FOR_WRITING, NOT};

impl<S: Scheme> World<S> {
    /// Lets the devices of `local` reach `frame` of `granter` as far as it is mapped now.
    pub(crate) fn settle_reach(
        &self,
        vcpu: &Vcpu,
        local: &DomainState<S>,
        granter: &DomainState<S>,
        frame: u32,
    ) {
        let names_frame = |reference| granter.table.frame_of(reference) == frame;
        let (reads, writes) = local.maptrack.count(vcpu, granter.id, names_frame);
        let needed = match (reads, writes) {
            (0, 0) => NOT,
            (_, 0) => FOR_READING,
            _ => FOR_WRITING,
        };
        let reach = &local.iommu.reach[frame as usize];
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
        !S::STRICT_IOMMU
            || local.iommu.reach[frame as usize].get() >= if write { FOR_WRITING } else { FOR_READING }
    }
}
