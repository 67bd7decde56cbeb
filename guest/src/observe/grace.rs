//! The other half of the VMM's grace: what is left of it after the section is given back.

use core::sync::atomic::Ordering;

use haltkick_hypercalls::BootFlags;

use crate::cpu::percpu::{boot, this};
use crate::monitor::hypercall;
use crate::observe::activity;

/// The calling vCPU has announced that it left its section. If its slice was over, it goes.
#[inline(always)]
pub(crate) fn section_left() {
    // Relaxed: the VMM wrote it while this vCPU was stopped.
    let wanted = || this().host.yield_wanted.load(Ordering::Relaxed) != 0 && !activity::is_in_section();
    if boot().flags.has(BootFlags::GRACE) && wanted() {
        hypercall::yield_to(None);
    }
}
