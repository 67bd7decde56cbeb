//! One vCPU's account: where it is, and all that follows when it goes elsewhere.
//!
//! It has three parts: `turns`, its place among those that take turns; `books`, how long it was where and what that cost;
//! `record`, what the guest may know of it.

use std::sync::atomic::Ordering;

use crate::host::clock::Clock;
use crate::observe::{Where, Whereabouts};
use crate::sched::books::{Books, Spell};
use crate::sched::guest_run::{GuestRun, Shared};

/// The account of one vCPU. Its task owns it, so that it needs no lock.
#[derive(Debug)]
pub(crate) struct Account {
    at: Where,
    /// Host time since when the vCPU has been where it is.
    pub(super) since_ns: u64,
    pub(crate) turns: Turns,
    pub(crate) books: Books,
    pub(crate) record: StealRecord,
}

impl Account {
    pub(crate) fn new(at: Where, now_ns: u64) -> Self {
        let (turns, books, record) = Default::default();
        Self { at, since_ns: now_ns, turns, books, record }
    }

    pub(crate) fn whereabouts(&self) -> Whereabouts {
        Whereabouts { at: self.at, since_ns: Some(self.since_ns) }
    }

    /// The vCPU goes `to` another place at `now_ns`. To be called before it runs, or before another vCPU gets its pCPU: the guest
    /// is told in here.
    ///
    /// As in KVM, a vCPU that sleeps is not marked as preempted. One that gave up its slice is: it is off, and could run.
    pub(crate) fn goes(&mut self, guest: &GuestRun<'_>, vcpu: u32, to: Where, now_ns: u64) {
        let spell = Spell { at: self.at, from_ns: self.since_ns, to_ns: now_ns };
        let ran = self.at == Where::Running;
        let (shared, clock) = (guest.shared.as_ref(), guest.clock);
        if ran {
            self.turns.ran(spell.length_ns());
            shared.into_iter().for_each(|shared| self.record.stop(shared, vcpu, clock));
        }
        self.books.enter(guest, vcpu, spell, to);
        match (to, shared) {
            (Where::Running, Some(shared)) => self.record.resume(shared, vcpu, clock, self.books.steal_ns),
            (Where::Preempted(_) | Where::KeptOut(_) | Where::Ready, Some(shared)) if ran => {
                StealRecord::mark_off(shared, vcpu, clock);
            }
            _ => {}
        }
        (self.at, self.since_ns) = (to, now_ns);
    }
}

/// Slices that a turn costs a vCPU at most. A turn is longer where no other vCPU is ready, and where the host took the thread off its
/// CPU in it: that is not to cost as many scheduling rounds, of a second each with 1024 vCPUs on a pCPU.
const MOST_SLICES: u64 = 2;

/// One vCPU's place among those that take turns: its virtual time, and what it owes or was given.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// CPU time for the ready queue's order: grows with time on a pCPU, and is moved up after a sleep.
    pub(crate) virtual_ns: u64,
    /// The part of the present turn that does not count there.
    boot_ns: u64,
    /// The most of it that counts.
    most_ns: u64,
    /// Time that it ran beyond the end of its last slice: the next one is shorter by that.
    pub(crate) debt_ns: u64,
    /// Directed yields to it, or kicks that handed it a pCPU, whole run.
    pub(crate) handed: u64,
}

impl Turns {
    /// A turn of one slice begins; to begin it took `took_ns`, which is the vCPU's as far as shares go: one that has many short turns
    /// would cost the others that.
    pub(super) fn begin(&mut self, slice_ns: u64, took_ns: u64) {
        self.most_ns = slice_ns.saturating_mul(MOST_SLICES);
        self.virtual_ns += took_ns.min(slice_ns);
    }

    /// The vCPU, which has run for `ran_ns`, has booted the guest by itself: from now on it takes turns with the others, which
    /// start at `virtual_ns`. The time of the boot is not charged, or it would be the last for as long.
    pub(super) fn booted(&mut self, virtual_ns: u64, ran_ns: u64) {
        self.virtual_ns = virtual_ns;
        self.boot_ns = ran_ns;
    }

    /// The turn goes on for another slice, though others are ready elsewhere: that counts in full.
    pub(super) fn goes_on(&mut self, slice_ns: u64) {
        self.most_ns = self.most_ns.saturating_add(slice_ns);
    }

    /// The virtual time of the vCPU if its turn ended after `ran_ns`.
    pub(super) fn after_ns(&self, ran_ns: u64) -> u64 {
        self.virtual_ns + ran_ns.saturating_sub(self.boot_ns).min(self.most_ns)
    }

    pub(super) fn costs_ns(&self, ran_ns: u64) -> u64 {
        self.after_ns(ran_ns) - self.virtual_ns
    }

    pub(super) fn ran(&mut self, ran_ns: u64) {
        self.virtual_ns = self.after_ns(ran_ns);
        self.boot_ns = 0;
    }
}

/// One vCPU's steal-time record as the VMM writes it for the guest: the `preempted` flag with its generation, the stolen time, and the
/// clock that stands still while the vCPU is off. Also checks the looks that vCPUs take at each other's flags.
#[derive(Debug, Default)]
pub(crate) struct StealRecord {
    /// TSC ticks off a pCPU, up to `off_since_tsc`.
    off_ticks: u64,
    off_since_tsc: u64,
    /// Looks of this vCPU at others' flags that were compared with what was told, and those that it contradicts.
    pub(crate) hints_compared: u64,
    pub(crate) hints_contradicted: u64,
    last_hint_tsc: u64,
}

impl StealRecord {
    /// The vCPU gets a pCPU, having been ready without one for `steal_ns` in all: writes its record and clears the flag, before
    /// the vCPU runs.
    fn resume(&mut self, shared: &Shared<'_>, vcpu: u32, clock: &Clock, steal_ns: u64) {
        let area = shared.area(vcpu);
        let steal = &area.steal;
        let Some(told) = shared.told.get(vcpu as usize) else {
            // Under the host's scheduler KVM keeps the record; the VMM only marks a vCPU while it keeps it out on purpose.
            steal.preempted.store(0, Ordering::Release);
            return;
        };
        self.off_ticks = self.off_ticks.wrapping_add(clock.tsc().wrapping_sub(self.off_since_tsc));
        // Release pairs with the guest's acquire in `on_cpu`; the vCPU itself reads it, on whichever pCPU it is then.
        area.host.off_ticks.store(self.off_ticks, Ordering::Release);
        // The flag before the version: a reader that counts this turn sees that it has begun.
        told.change(clock, false, || steal.preempted.store(0, Ordering::Release));
        // KVM's protocol: an odd version while the record changes. Release pairs with a reader's loads of the
        // version before and after.
        let version = steal.version.load(Ordering::Relaxed);
        steal.version.store(version | 1, Ordering::Release);
        steal.steal_ns.store(steal_ns, Ordering::Release);
        steal.version.store((version | 1).wrapping_add(1), Ordering::Release);
    }

    /// The vCPU is off its pCPU from now on.
    fn stop(&mut self, shared: &Shared<'_>, vcpu: u32, clock: &Clock) {
        self.off_since_tsc = clock.tsc();
        self.check_hint(shared, vcpu);
    }

    /// Sets the flag of a vCPU that is off and could run, and moves its generation. The generation first: a reader that sees the
    /// flag sees it counted.
    fn mark_off(shared: &Shared<'_>, vcpu: u32, clock: &Clock) {
        let area = shared.area(vcpu);
        let write = || {
            let generation = area.host.generation.load(Ordering::Relaxed);
            area.host.generation.store(generation.wrapping_add(1), Ordering::Release);
            area.steal.preempted.store(1, Ordering::Release);
        };
        // Under the host's scheduler a vCPU is marked only while it is kept out on purpose, and nothing is compared.
        match shared.told.get(vcpu as usize) {
            Some(told) => told.change(clock, true, write),
            None => write(),
        }
    }

    /// Compares the last look of this vCPU at another one's flag with what the VMM had told by it.
    fn check_hint(&mut self, shared: &Shared<'_>, vcpu: u32) {
        let hint = &shared.area(vcpu).hint;
        let tsc = hint.last_tsc.load(Ordering::Relaxed);
        if tsc == 0 || tsc == self.last_hint_tsc {
            return;
        }
        self.last_hint_tsc = tsc;
        let target = hint.last_vcpu.load(Ordering::Relaxed) as usize;
        if let Some(told) = shared.told.get(target).and_then(|told| told.at(tsc)) {
            self.hints_compared += 1;
            self.hints_contradicted += u64::from((hint.last_marked.load(Ordering::Relaxed) != 0) != told);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_that_the_host_interrupts_costs_two_slices_at_most() {
        const SLICE: u64 = 1_000_000;
        let cost = |took_ns: u64, ran_ns: u64| {
            let mut turns = Turns::default();
            turns.begin(SLICE, took_ns);
            turns.ran(ran_ns);
            turns.virtual_ns
        };
        assert_eq!(cost(8_000, 100_000), 108_000);
        assert_eq!(cost(8_000, 50 * SLICE), 2 * SLICE + 8_000);
        assert_eq!(cost(50 * SLICE, 100_000), SLICE + 100_000);
    }
}
