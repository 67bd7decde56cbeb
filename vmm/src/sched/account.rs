//! One vCPU's books: when it ran, when it was off, what it was doing when it was taken off, what that cost the others.
//!
//! Also writes what the guest may know of this: the `preempted` flag, its generation and the stolen time.

use std::sync::atomic::Ordering;

use crate::guest::activity::{Activity, ByActivity};
use crate::host::clock::Moment;
use crate::sched::guest_run::GuestRun;
use crate::sched::loss::{self, Claim};
use crate::sched::shared::Shared;
use crate::sched::timeline::{Doing, Timeline};

/// Slices that were extended for a vCPU that said it held a lock, inside the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Graces {
    /// How often.
    pub granted: u64,
    /// Those at the end of which the vCPU was taken off all the same.
    pub expired: u64,
    /// How long the vCPUs ran beyond the end of their slices, in nanoseconds; charged to the next ones.
    pub overrun_ns: u64,
}

/// Where a vCPU was when the run ended; since when, in host time, where that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The boot vCPU had not let it start.
    NotStarted,
    /// On a pCPU; under the host's scheduler: not asleep, and so on one or waiting for one.
    Running,
    /// Taken off while it ran.
    Preempted { since_ns: u64 },
    /// Waiting for a pCPU: new, kicked awake, or it gave up its slice.
    Ready { since_ns: u64 },
    /// Asleep.
    Halted { since_ns: u64 },
    /// Asleep in KVM's hands, which does not say since when.
    HaltedInKernel,
    /// Done, or failed.
    Left,
}

/// Who takes a vCPU off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// The scheduler: its slice is over.
    Schedule,
    /// The experiment.
    Injection,
}

/// Why a vCPU is not on a pCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Off {
    /// Runnable: new, kicked awake, or it gave up its slice.
    Ready,
    /// Taken off while it was running.
    Preempted(Activity),
    /// Asleep in `pv_wait`.
    Halted,
}

/// The books of one vCPU.
#[derive(Debug)]
pub(crate) struct Account {
    /// CPU time for the ready queue's order: grows with time on a pCPU, and is moved up after a sleep.
    pub(crate) virtual_ns: u64,
    /// The part of the present turn that does not count there.
    boot_ns: u64,
    /// Time on a pCPU, inside the window.
    pub(crate) run_ns: u64,
    /// Time runnable without a pCPU, whole run.
    pub(crate) steal_ns: u64,
    /// Times taken off while running, whole run.
    pub(crate) preemptions: u64,
    /// The same inside the window, by activity; also sleeps.
    pub(crate) preemptions_by: ByActivity<u64>,
    /// How long those were off for, inside the window.
    pub(crate) preempted_ns_by: ByActivity<u64>,
    /// What the others lost to it, inside the window.
    pub(crate) lost_ns_by: ByActivity<u64>,
    /// Those that were taken off on purpose, inside the window.
    pub(crate) injected_by: ByActivity<u64>,
    /// How often its slice was extended inside the window, and how often that was not enough.
    pub(crate) graces: Graces,
    /// Time that it ran beyond the end of its last slice: the next one is shorter by that.
    pub(crate) debt_ns: u64,
    /// Directed yields to it, or kicks that handed it a pCPU, whole run.
    pub(crate) handed: u64,
    /// Looks of this vCPU at others' flags that were compared with the books, and those that the books contradict.
    pub(crate) hints_compared: u64,
    pub(crate) hints_contradicted: u64,
    last_hint_tsc: u64,
    /// Sleeps, whole run.
    pub(crate) waits: u64,
    /// Kicks received, whole run. Counted by the scheduler, where kicks arrive.
    pub(crate) kicks: u64,
    off: Off,
    since_ns: u64,
    /// TSC ticks off a pCPU, up to `off_since_tsc`.
    off_ticks: u64,
    off_since_tsc: u64,
    claim: Option<Claim>,
    /// What it did when, in the beginning of the window, if that is to be known.
    pub(crate) timeline: Option<Timeline>,
}

impl Account {
    /// A vCPU that is ready from `now_ns` on.
    pub(crate) fn new(now_ns: u64) -> Self {
        Self {
            virtual_ns: 0,
            boot_ns: 0,
            run_ns: 0,
            steal_ns: 0,
            preemptions: 0,
            preemptions_by: ByActivity::default(),
            preempted_ns_by: ByActivity::default(),
            lost_ns_by: ByActivity::default(),
            injected_by: ByActivity::default(),
            graces: Graces::default(),
            debt_ns: 0,
            handed: 0,
            hints_compared: 0,
            hints_contradicted: 0,
            last_hint_tsc: 0,
            waits: 0,
            kicks: 0,
            off: Off::Ready,
            since_ns: now_ns,
            off_ticks: 0,
            off_since_tsc: 0,
            claim: None,
            timeline: None,
        }
    }

    /// The same with a timeline, for slices of this length.
    pub(crate) fn with_timeline(now_ns: u64, slice_ns: u64) -> Self {
        Self { timeline: Some(Timeline::new(slice_ns)), ..Self::new(now_ns) }
    }

    /// Begins anew, as a vCPU that is ready from `now_ns` on.
    pub(crate) fn begin(&mut self, now_ns: u64) {
        *self = Self { timeline: self.timeline.take(), ..Self::new(now_ns) };
    }

    /// Notes what it has done since the last change.
    fn note(&mut self, guest: &GuestRun<'_>, doing: Doing, now_ns: u64) {
        if let Some(timeline) = &mut self.timeline
            && let Some((from_ns, to_ns)) = guest.window.clip(self.since_ns, now_ns)
        {
            let [open_ns, _] = guest.window.times();
            timeline.add(doing, from_ns.saturating_sub(open_ns), to_ns.saturating_sub(open_ns));
        }
    }

    /// The vCPU, which is running, has booted the guest by itself: from now on it takes turns with the others, which start
    /// at `virtual_ns`. What the boot took is not to be its share, or it would be the last for as long.
    pub(crate) fn booted(&mut self, virtual_ns: u64, now_ns: u64) {
        self.virtual_ns = virtual_ns;
        self.boot_ns = now_ns.saturating_sub(self.since_ns);
    }

    /// Host time since when the vCPU has been off its pCPU, while it is off.
    pub(crate) fn off_since_ns(&self) -> u64 {
        self.since_ns
    }

    /// Host time since when the vCPU has been on its pCPU, while it is on one.
    pub(crate) fn on_since_ns(&self) -> u64 {
        self.since_ns
    }

    /// Where it is, while it is off.
    pub(crate) fn place(&self) -> Place {
        let since_ns = self.since_ns;
        match self.off {
            Off::Ready => Place::Ready { since_ns },
            Off::Preempted(_) => Place::Preempted { since_ns },
            Off::Halted => Place::Halted { since_ns },
        }
    }

    /// The vCPU gets a pCPU: settles the time off and clears the flag, before the vCPU runs.
    pub(crate) fn resume(&mut self, guest: &GuestRun<'_>, vcpu: u32, now_ns: u64) {
        self.settle_off(guest, vcpu, now_ns);
        self.count_off_ticks(guest, vcpu);
        self.since_ns = now_ns;
        let Some(shared) = &guest.shared else { return };
        let steal = &shared.area(vcpu).steal;
        // KVM's protocol: an odd version while the record changes. Release pairs with a reader's loads of the
        // version before and after; `preempted` is a hint and may be seen early.
        let version = steal.version.load(Ordering::Relaxed);
        steal.version.store(version | 1, Ordering::Release);
        steal.steal_ns.store(self.steal_ns, Ordering::Release);
        steal.version.store((version | 1).wrapping_add(1), Ordering::Release);
        shared.marks[vcpu as usize]
            .change(guest.clock, false, || steal.preempted.store(0, Ordering::Release));
    }

    /// Moves on the clock that stands still while the vCPU is off, before it runs.
    fn count_off_ticks(&mut self, guest: &GuestRun<'_>, vcpu: u32) {
        self.off_ticks = self.off_ticks.wrapping_add(guest.clock.tsc().wrapping_sub(self.off_since_tsc));
        // Release pairs with the guest's acquire in `on_cpu`; the vCPU itself reads it, on whichever pCPU it is then.
        if let Some(shared) = &guest.shared {
            shared.area(vcpu).host.off_ticks.store(self.off_ticks, Ordering::Release);
        }
    }

    /// As [`Self::resume`], under the host's scheduler: KVM keeps the rest of the record.
    pub(crate) fn resume_injected(&mut self, guest: &GuestRun<'_>, vcpu: u32, now_ns: u64) {
        self.settle_off(guest, vcpu, now_ns);
        if let Some(shared) = &guest.shared {
            shared.area(vcpu).steal.preempted.store(0, Ordering::Release);
        }
        self.since_ns = now_ns;
    }

    fn settle_off(&mut self, guest: &GuestRun<'_>, vcpu: u32, now_ns: u64) {
        self.steal_ns += now_ns.saturating_sub(self.since_ns);
        let doing = match self.off {
            Off::Preempted(activity) => Doing::taken_off(activity),
            Off::Ready => Doing::Ready,
            Off::Halted => Doing::Sleeps,
        };
        self.note(guest, doing, now_ns);
        if let Off::Preempted(activity) = self.off {
            *self.preempted_ns_by.of(activity) += guest.window.overlap_ns(self.since_ns, now_ns);
            if let Some(shared) = guest.shared.as_ref().filter(|shared| shared.attribution) {
                self.settle_loss(guest, shared, vcpu, activity, now_ns);
            }
        }
    }

    /// See `loss` for what is lost to whom.
    fn settle_loss(
        &mut self,
        guest: &GuestRun<'_>,
        shared: &Shared<'_>,
        vcpu: u32,
        activity: Activity,
        now_ns: u64,
    ) {
        let losses = &shared.losses;
        let Some(lock) = losses.lock_of(vcpu) else { return };
        let now = Moment { ns: now_ns, tsc: guest.tsc.of_host(guest.clock.tsc()) };
        let waited_since = |from_ns: u64| losses.waited_by_others(vcpu, lock, from_ns, now, &guest.window);
        let (idle_ns, entered) = (losses.idle_since(lock, now_ns), entered(guest, vcpu));
        self.claim =
            loss::on_return(activity, self.since_ns, idle_ns, entered, waited_since, &mut self.lost_ns_by)
                .or(self.claim.take());
    }

    /// The end of a time on a pCPU. The only place that learns whether the others waited for this vCPU.
    fn settle_on(&mut self, guest: &GuestRun<'_>, vcpu: u32, now_ns: u64) {
        self.run_ns += guest.window.overlap_ns(self.since_ns, now_ns);
        self.note(guest, Doing::Runs, now_ns);
        let boot_ns = std::mem::take(&mut self.boot_ns);
        self.virtual_ns += now_ns.saturating_sub(self.since_ns).saturating_sub(boot_ns);
        self.off_since_tsc = guest.clock.tsc();
        self.since_ns = now_ns;
        self.check_hint(guest, vcpu);
        if let Some(claim) = self.claim.take() {
            claim.settle(entered(guest, vcpu), &mut self.lost_ns_by);
        }
    }

    /// Compares the last look of this vCPU at another one's flag with what the VMM had told by it.
    fn check_hint(&mut self, guest: &GuestRun<'_>, vcpu: u32) {
        let Some(shared) = &guest.shared else { return };
        let hint = &shared.area(vcpu).hint;
        let tsc = hint.last_tsc.load(Ordering::Relaxed);
        if tsc == 0 || tsc == self.last_hint_tsc {
            return;
        }
        self.last_hint_tsc = tsc;
        let target = hint.last_vcpu.load(Ordering::Relaxed) as usize;
        if let Some(told) = shared.marks.get(target).and_then(|mark| mark.at(tsc)) {
            self.hints_compared += 1;
            self.hints_contradicted += u64::from((hint.last_marked.load(Ordering::Relaxed) != 0) != told);
        }
    }

    /// The vCPU is taken off while it runs: sets the flag before anybody else gets its pCPU.
    pub(crate) fn preempt(&mut self, guest: &GuestRun<'_>, vcpu: u32, by: By, now_ns: u64) {
        self.settle_on(guest, vcpu, now_ns);
        let activity = guest.shared.as_ref().map_or(Activity::Other, |shared| shared.attributed(vcpu));
        if let Some(shared) = guest.shared.as_ref().filter(|shared| shared.attribution)
            && let Some(lock) = shared.losses.lock_of(vcpu)
        {
            shared.losses.idle_since(lock, now_ns);
        }
        self.off = Off::Preempted(activity);
        self.preemptions += 1;
        if guest.window.contains(now_ns) {
            *self.preemptions_by.of(activity) += 1;
            *self.injected_by.of(activity) += u64::from(by == By::Injection);
        }
        mark_off(guest, vcpu);
    }

    /// The vCPU gives up its slice but could go on: off its pCPU, so the flag is set, but nobody took it off.
    pub(crate) fn give_up(&mut self, guest: &GuestRun<'_>, vcpu: u32, now_ns: u64) {
        self.settle_on(guest, vcpu, now_ns);
        self.off = Off::Ready;
        mark_off(guest, vcpu);
    }

    /// The vCPU sleeps. As in KVM, a vCPU that halted is not marked as preempted.
    pub(crate) fn sleep(&mut self, guest: &GuestRun<'_>, vcpu: u32, now_ns: u64) {
        self.settle_on(guest, vcpu, now_ns);
        self.off = Off::Halted;
        self.waits += 1;
        self.preemptions_by.halted += u64::from(guest.window.contains(now_ns));
    }

    /// The vCPU was kicked awake and waits for a pCPU.
    pub(crate) fn wake(&mut self, guest: &GuestRun<'_>, now_ns: u64) {
        self.settle_sleep(guest, now_ns);
        self.off = Off::Ready;
        self.since_ns = now_ns;
    }

    fn settle_sleep(&mut self, guest: &GuestRun<'_>, now_ns: u64) {
        self.preempted_ns_by.halted += guest.window.overlap_ns(self.since_ns, now_ns);
        self.note(guest, Doing::Sleeps, now_ns);
    }

    /// The vCPU is done.
    pub(crate) fn leave(&mut self, guest: &GuestRun<'_>, vcpu: u32, now_ns: u64) {
        self.settle_on(guest, vcpu, now_ns);
    }

    /// The run is over while the vCPU is off: settles what it has been off for.
    pub(crate) fn end_while_off(&mut self, guest: &GuestRun<'_>, vcpu: u32, now_ns: u64) {
        match self.off {
            Off::Halted => self.settle_sleep(guest, now_ns),
            Off::Ready | Off::Preempted(_) => self.settle_off(guest, vcpu, now_ns),
        }
    }
}

/// Sections that `vcpu` says it has entered.
fn entered(guest: &GuestRun<'_>, vcpu: u32) -> u64 {
    let shared = guest.shared.as_ref();
    shared.map_or(0, |shared| shared.area(vcpu).results.entered.load(Ordering::Relaxed))
}

/// Sets the flag and moves the generation. The generation first: whoever sees the flag sees it counted.
fn mark_off(guest: &GuestRun<'_>, vcpu: u32) {
    let Some(shared) = &guest.shared else { return };
    let area = shared.area(vcpu);
    let write = || {
        let generation = area.host.generation.load(Ordering::Relaxed);
        area.host.generation.store(generation.wrapping_add(1), Ordering::Release);
        area.steal.preempted.store(1, Ordering::Release);
    };
    // Under the host's scheduler a vCPU is marked only while it is kept out on purpose, and nobody compares.
    match shared.marks.get(vcpu as usize) {
        Some(mark) => mark.change(guest.clock, true, write),
        None => write(),
    }
}
