//! The VMM's side of the contract with our own guest: where its memory lies, and what each vCPU says there that it does.

#[cfg(test)]
mod bounds;
pub(crate) mod memory;
pub(crate) mod placement;
pub(crate) mod reports;
pub(crate) mod tsc;

use std::sync::atomic::Ordering;

use haltkick_hypercalls::{ACTIVITY_HEAD, ACTIVITY_HOLDER, ACTIVITY_OTHER, ACTIVITY_WAITER, VcpuArea};

/// A vCPU's own statement of its activity at the time of an event, as far as it concerns locks: descheduling is attributed to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Activity {
    /// It holds a lock.
    Holder = ACTIVITY_HOLDER,
    /// It is first in a lock's queue.
    Head = ACTIVITY_HEAD,
    /// It waits elsewhere.
    Waiter = ACTIVITY_WAITER,
    /// It holds no lock, and waits for none.
    #[default]
    Other = ACTIVITY_OTHER,
}

impl Activity {
    /// Returns the stated activity of the vCPU of `area`. A guest that lies spoils its own figures.
    pub(crate) fn of(area: &VcpuArea) -> Self {
        Self::said(area.activity.state.load(Ordering::Relaxed))
    }

    /// Returns the meaning of the guest's word `state`. A guest may write anything there.
    pub(crate) fn said(state: u32) -> Self {
        match state {
            ACTIVITY_HOLDER => Self::Holder,
            ACTIVITY_HEAD => Self::Head,
            ACTIVITY_WAITER => Self::Waiter,
            _ => Self::Other,
        }
    }

    pub(crate) fn word(self) -> u32 {
        self as u32
    }

    /// Its name in records.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Holder => "holder",
            Self::Head => "head",
            Self::Waiter => "waiter",
            Self::Other => "other",
        }
    }
}

/// A count, or nanoseconds, for each thing that a vCPU can be doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByActivity {
    /// Held a lock.
    pub holder: u64,
    /// First in a lock's queue.
    pub head: u64,
    /// Waiting elsewhere.
    pub waiter: u64,
    /// Asleep in `pv_wait`: it took itself off.
    pub halted: u64,
    /// Count of all other activities.
    pub other: u64,
}

impl ByActivity {
    pub(crate) fn of(&mut self, activity: Activity) -> &mut u64 {
        match activity {
            Activity::Holder => &mut self.holder,
            Activity::Head => &mut self.head,
            Activity::Waiter => &mut self.waiter,
            Activity::Other => &mut self.other,
        }
    }

    /// Adds others of the same kind.
    pub fn add(&mut self, other: &Self) {
        self.holder += other.holder;
        self.head += other.head;
        self.waiter += other.waiter;
        self.halted += other.halted;
        self.other += other.other;
    }
}
