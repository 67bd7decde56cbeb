//! Tests of the schedulers with guests that are made up: their vCPUs come back when the test says, and for what it says.

pub(crate) mod fairness;
#[cfg(test)]
mod threads;
pub(super) mod world;

use std::sync::OnceLock;

use crate::guest::memory::Memory;
use crate::guest::tsc::GuestTsc;
use crate::host::clock::{Clock, TscRate};
use crate::image::file::Image;
use crate::observe::notes::Notes;
use crate::sched::guest_run::{GuestRun, Shared};
use crate::sched::hints::Watcher;

/// Locks that the guests say they take.
const LOCKS: u32 = 1;

/// The surroundings of made-up guests.
pub(crate) struct Ground {
    pub(super) notes: Notes,
    clock: Clock,
    watcher: Watcher,
}

impl Ground {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { notes: Notes::default(), clock, watcher: Watcher::nothing("made up") }
    }

    /// A guest that shares nothing with the VMM.
    pub(crate) fn guest(&self, vcpus: u32) -> GuestRun<'_> {
        let tsc = GuestTsc::new(TscRate::of_khz(1_000_000), 0);
        GuestRun::new(vcpus, tsc, &self.clock, &self.watcher, &self.notes)
    }

    /// A guest with as many vCPUs as `memory` has room for. `vmm_schedules`: the VMM writes its `preempted` flags.
    fn guest_of_our_own<'a>(&'a self, memory: &'a Memory, vmm_schedules: bool) -> GuestRun<'a> {
        let mut guest = self.guest(memory.vcpus());
        guest.shared = Some(Shared::new(memory, image(), LOCKS, (true, vmm_schedules)));
        guest
    }
}

pub(crate) fn image() -> &'static Image {
    static IMAGE: OnceLock<Image> = OnceLock::new();
    IMAGE.get_or_init(Image::embedded)
}
