//! The steal-time record of a vCPU, as the VMM writes it for the guest: the `preempted` flag with its generation, the stolen time,
//! and the clock that stands still while the vCPU is off. Also checks the looks that vCPUs take at each other's flags.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use haltkick_hypercalls::VcpuArea;

use crate::host::clock::Clock;

/// A vCPU's flag as the VMM has set it, for comparison with what others have read. In lines of its
/// own: those of others change with each of their turns.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct ToldFlag {
    /// TSC since when it has told what it tells; `u64::MAX` while that changes.
    since_tsc: AtomicU64,
    set: AtomicBool,
}

impl ToldFlag {
    /// Does `write`, which makes the flag say `set`. One thread at a time: the one that has the vCPU.
    fn change(&self, clock: &Clock, set: bool, write: impl FnOnce()) {
        // SeqCst: in this order, to every reader. Partner: `at`.
        self.since_tsc.store(u64::MAX, Ordering::SeqCst);
        write();
        self.set.store(set, Ordering::SeqCst);
        self.since_tsc.store(clock.tsc(), Ordering::SeqCst);
    }

    /// Value of the flag from `tsc` until now, if it was the same all the time.
    fn at(&self, tsc: u64) -> Option<bool> {
        // SeqCst: partner of `change`. If `since_tsc` is the same before and after, `set` belongs to it.
        let since_tsc = self.since_tsc.load(Ordering::SeqCst);
        let set = self.set.load(Ordering::SeqCst);
        (since_tsc < tsc && self.since_tsc.load(Ordering::SeqCst) == since_tsc).then_some(set)
    }
}

/// The guest's side of a vCPU's record.
#[derive(Clone, Copy)]
pub(super) struct GuestSide<'a> {
    pub(super) area: &'a VcpuArea,
    /// The flag of each vCPU as the VMM has set it; empty where the VMM does not write the flags.
    pub(super) told: &'a [ToldFlag],
    pub(super) vcpu: u32,
    pub(super) clock: &'a Clock,
}

impl GuestSide<'_> {
    fn own(&self) -> Option<&ToldFlag> {
        self.told.get(self.vcpu as usize)
    }
}

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
    pub(super) fn resume(&mut self, side: &GuestSide<'_>, steal_ns: u64) {
        let (area, clock) = (side.area, side.clock);
        let steal = &area.steal;
        let Some(told) = side.own() else {
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
    pub(super) fn stop(&mut self, side: &GuestSide<'_>) {
        self.off_since_tsc = side.clock.tsc();
        self.check_hint(side);
    }

    /// Sets the flag of a vCPU that is off and could run, and moves its generation. The generation first: a reader that sees the
    /// flag sees it counted.
    pub(super) fn mark_off(side: &GuestSide<'_>) {
        let area = side.area;
        let write = || {
            let generation = area.host.generation.load(Ordering::Relaxed);
            area.host.generation.store(generation.wrapping_add(1), Ordering::Release);
            area.steal.preempted.store(1, Ordering::Release);
        };
        // Under the host's scheduler a vCPU is marked only while it is kept out on purpose, and nothing is compared.
        match side.own() {
            Some(told) => told.change(side.clock, true, write),
            None => write(),
        }
    }

    /// Compares the last look of this vCPU at another one's flag with what the VMM had told by it.
    fn check_hint(&mut self, side: &GuestSide<'_>) {
        let hint = &side.area.hint;
        let tsc = hint.last_tsc.load(Ordering::Relaxed);
        if tsc == 0 || tsc == self.last_hint_tsc {
            return;
        }
        self.last_hint_tsc = tsc;
        let target = hint.last_vcpu.load(Ordering::Relaxed) as usize;
        if let Some(told) = side.told.get(target).and_then(|told| told.at(tsc)) {
            self.hints_compared += 1;
            self.hints_contradicted += u64::from((hint.last_marked.load(Ordering::Relaxed) != 0) != told);
        }
    }
}
