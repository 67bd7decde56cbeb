//! The steal-time record of a vCPU, as the VMM writes it for the guest: the `preempted` flag with its generation, the stolen time,
//! and the clock that stands still while the vCPU is off. Also checks the looks that vCPUs take at each other's flags.

use std::sync::atomic::Ordering;

use crate::host::clock::Clock;
use crate::sched::guest_run::Shared;

/// One vCPU's record, on the VMM's side.
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
    pub(super) fn resume(&mut self, shared: &Shared<'_>, vcpu: u32, clock: &Clock, steal_ns: u64) {
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
    pub(super) fn stop(&mut self, shared: &Shared<'_>, vcpu: u32, clock: &Clock) {
        self.off_since_tsc = clock.tsc();
        self.check_hint(shared, vcpu);
    }

    /// Sets the flag of a vCPU that is off and could run, and moves its generation. The generation first: a reader that sees the
    /// flag sees it counted.
    pub(super) fn mark_off(shared: &Shared<'_>, vcpu: u32, clock: &Clock) {
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
