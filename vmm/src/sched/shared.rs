//! Data that our own guest and the threads that run it share while it runs. A Linux guest shares nothing.

use std::sync::Mutex;
use std::sync::atomic::Ordering;

use haltkick_hypercalls::VcpuArea;

use crate::guest::activity::Activity;
use crate::guest::memory::Memory;
use crate::guest::tsc::GuestTsc;
use crate::host::locks::lock;
use crate::image::file::Image;
use crate::machine::invalidate::Invalidations;
use crate::sched::loss::Losses;
use crate::sched::steal_record::ToldFlag;

/// Most console text that is kept: the guest is not trusted to stop.
const CONSOLE_LIMIT: usize = 1 << 20;

/// Data shared with our own guest.
pub(crate) struct Shared<'a> {
    pub(crate) memory: &'a Memory,
    pub(crate) image: &'a Image,
    pub(crate) invalidations: Invalidations,
    /// Whether descheduling is attributed to what the vCPU was doing.
    pub(crate) attribution: bool,
    /// Values of each vCPU's `preempted` flag that the VMM has written, where it writes the flag.
    pub(crate) told: Vec<ToldFlag>,
    /// Waits of vCPUs for others.
    pub(crate) losses: Losses<'a>,
    console: Mutex<String>,
}

impl<'a> Shared<'a> {
    /// Makes the shared data for the guest of `image` in `memory`, whose workload takes `locks` locks. `vmm_schedules`:
    /// the VMM writes the `preempted` flags.
    pub(crate) fn new(
        memory: &'a Memory,
        image: &'a Image,
        locks: u32,
        tsc: &GuestTsc,
        (attribution, vmm_schedules): (bool, bool),
    ) -> Self {
        let vcpus = memory.vcpus();
        let marked = if vmm_schedules { vcpus } else { 0 };
        Self {
            memory,
            image,
            invalidations: Invalidations::new(vcpus),
            attribution,
            told: (0..marked).map(|_| ToldFlag::default()).collect(),
            losses: Losses::new(memory, vcpus, locks, tsc.rate()),
            console: Mutex::default(),
        }
    }

    pub(crate) fn area(&self, vcpu: u32) -> &'a VcpuArea {
        self.memory.area(vcpu)
    }

    /// Returns the activity that descheduling of `vcpu` is attributed to.
    pub(crate) fn attributed(&self, vcpu: u32) -> Activity {
        if self.attribution { Activity::of(self.area(vcpu)) } else { Activity::Other }
    }

    /// Returns the activity of `vcpu`, checked against the lock's own record of its holder where that is kept. Where
    /// the two differ, the guest announces too early or too late.
    pub(crate) fn checked_activity(&self, vcpu: u32) -> Activity {
        match (self.losses.is_inside(vcpu), Activity::of(self.area(vcpu))) {
            (Some(true), _) => Activity::Holder,
            (Some(false), Activity::Holder) => Activity::Other,
            (_, said) => said,
        }
    }

    /// Whether some vCPUs have not begun to work yet. It is the guest that says so, and one that lies harms itself.
    pub(crate) fn is_starting(&self) -> bool {
        // Relaxed: a hint.
        self.memory.control().started.load(Ordering::Relaxed) < self.memory.vcpus()
    }

    /// Tells the guest how many vCPUs have no pCPU, of all guests.
    pub(crate) fn tell_ready_vcpus(&self, count: u32) {
        // Relaxed: a hint.
        self.memory.control().ready_vcpus.store(count, Ordering::Relaxed);
    }

    /// The guest writes to its console.
    pub(crate) fn print(&self, byte: u8) {
        let mut console = lock(&self.console);
        if console.len() < CONSOLE_LIMIT {
            console.push(if byte.is_ascii() { char::from(byte) } else { '\u{fffd}' });
        }
    }

    /// Returns the guest's output.
    pub(crate) fn console(&self) -> String {
        lock(&self.console).clone()
    }
}
