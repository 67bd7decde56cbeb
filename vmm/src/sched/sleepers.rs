//! Where vCPUs sleep in `pv_wait`, and where a kick waits for one that does not sleep yet.
//!
//! Sleep and kick meet in the vCPU's slot, under its mutex:
//! 1. The kick comes first: it finds no sleeper, sets the latch; the sleep finds the latch and does not happen.
//! 2. The sleep comes first: the kick finds the sleeper and takes it out, to be made ready.
//!
//! No third order exists, so no kick is lost. Kicks that find the latch set are one kick with it, as in KVM.

use std::sync::Mutex;

use crate::host::locks::{lock, unlocked};

/// One slot for each vCPU of all guests; a vCPU that sleeps is a `T`.
pub(super) struct Sleepers<T>(Vec<Mutex<Slot<T>>>);

struct Slot<T> {
    latched: bool,
    asleep: Option<T>,
}

impl<T> Sleepers<T> {
    /// Slots for so many vCPUs, none of which sleeps.
    pub(super) fn new(vcpus: usize) -> Self {
        Self((0..vcpus).map(|_| Mutex::new(Slot { latched: false, asleep: None })).collect())
    }

    /// Case 1 without a sleep: takes a kick that came first. Whether there was one.
    pub(super) fn take_latch(&self, vcpu: u32) -> bool {
        std::mem::take(&mut self.slot(vcpu).latched)
    }

    /// Puts `vcpu` to sleep; `Some` in case 1: it is not to sleep.
    pub(super) fn put(&self, vcpu: u32, task: T) -> Option<T> {
        let mut slot = self.slot(vcpu);
        if std::mem::take(&mut slot.latched) {
            return Some(task);
        }
        slot.asleep = Some(task);
        None
    }

    /// Kicks `vcpu`: if it sleeps, here it is.
    pub(super) fn kick(&self, vcpu: u32) -> Option<T> {
        let mut slot = self.slot(vcpu);
        let task = slot.asleep.take();
        slot.latched |= task.is_none();
        task
    }

    /// How many vCPUs there are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Shows `to` those that sleep, one after the other.
    pub(super) fn look(&self, mut to: impl FnMut(u32, &T)) {
        for (slot, vcpu) in self.0.iter().zip(0..) {
            if let Some(task) = &lock(slot).asleep {
                to(vcpu, task);
            }
        }
    }

    /// All that still sleep.
    pub(super) fn into_sleepers(self) -> impl Iterator<Item = T> {
        self.0.into_iter().filter_map(|slot| unlocked(slot).asleep)
    }

    fn slot(&self, vcpu: u32) -> std::sync::MutexGuard<'_, Slot<T>> {
        lock(&self.0[vcpu as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kick_takes_out_who_sleeps_and_nobody_else() {
        let sleepers = Sleepers::new(2);
        assert_eq!(sleepers.put(0, 'a'), None);
        assert_eq!(sleepers.put(1, 'b'), None);
        assert_eq!(sleepers.kick(1), Some('b'));
        assert_eq!(sleepers.into_sleepers().collect::<Vec<_>>(), ['a']);
    }

    #[test]
    fn a_kick_before_the_sleep_is_latched_once() {
        let sleepers = Sleepers::new(1);
        assert_eq!(sleepers.kick(0), None);
        assert_eq!(sleepers.kick(0), None);
        assert_eq!(sleepers.put(0, 'a'), Some('a'), "it was kicked before");
        assert_eq!(sleepers.put(0, 'a'), None, "both kicks were for that sleep");
    }

    #[test]
    fn a_kick_that_found_a_sleeper_leaves_no_latch() {
        let sleepers = Sleepers::new(1);
        assert_eq!(sleepers.put(0, 'a'), None);
        assert_eq!(sleepers.kick(0), Some('a'));
        assert!(!sleepers.take_latch(0));
        assert_eq!(sleepers.kick(0), None);
        assert!(sleepers.take_latch(0) && !sleepers.take_latch(0));
    }
}
