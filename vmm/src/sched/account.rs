//! One vCPU's account: where it is, and all that follows when it goes elsewhere.
//!
//! It has three parts: `turns`, its place among those that take turns; `books`, how long it was where and what that cost;
//! `steal_record`, what the guest may know of it.

use crate::observe::whereabouts::{Where, Whereabouts};
use crate::sched::books::{Books, Spell};
use crate::sched::guest_run::GuestRun;
use crate::sched::steal_record::{GuestSide, StealRecord};
use crate::sched::timeline::Timeline;
use crate::sched::turns::Turns;

/// The account of one vCPU. Its task owns it, so that it needs no lock.
#[derive(Debug)]
pub(crate) struct Account {
    at: Where,
    since_ns: u64,
    pub(crate) turns: Turns,
    pub(crate) books: Books,
    pub(crate) record: StealRecord,
}

impl Account {
    /// The account of a vCPU that has been there since `now_ns`.
    pub(crate) fn new(at: Where, now_ns: u64) -> Self {
        let (turns, books, record) = Default::default();
        Self { at, since_ns: now_ns, turns, books, record }
    }

    /// The account with a timeline, for one of `vcpus` vCPUs and slices of this length.
    pub(crate) fn with_timeline(mut self, slice_ns: u64, vcpus: usize) -> Self {
        self.books.timeline = Some(Timeline::new(slice_ns, vcpus));
        self
    }

    /// Begins anew, as that of a vCPU that is ready from `now_ns` on.
    pub(crate) fn begin(&mut self, now_ns: u64) {
        let timeline = self.books.timeline.take();
        *self = Self::new(Where::Ready, now_ns);
        self.books.timeline = timeline;
    }

    /// The vCPU, which is running, has booted the guest by itself: see [`Turns::booted`].
    pub(crate) fn booted(&mut self, virtual_ns: u64, now_ns: u64) {
        self.turns.booted(virtual_ns, now_ns.saturating_sub(self.since_ns));
    }

    /// Host time since when the vCPU has been where it is.
    pub(crate) fn since_ns(&self) -> u64 {
        self.since_ns
    }

    /// The vCPU's place, and since when it has been there.
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
        let side = guest.shared.as_ref().map(|shared| GuestSide {
            area: shared.area(vcpu),
            told: &shared.told,
            vcpu,
            clock: guest.clock,
        });
        if ran {
            self.turns.ran(spell.length_ns());
            side.iter().for_each(|side| self.record.stop(side));
        }
        self.books.enter(guest, vcpu, spell, to);
        match (to, &side) {
            (Where::Running, Some(side)) => self.record.resume(side, self.books.steal_ns),
            (Where::Preempted(_) | Where::KeptOut(_) | Where::Ready, Some(side)) if ran => {
                StealRecord::mark_off(side);
            }
            _ => {}
        }
        (self.at, self.since_ns) = (to, now_ns);
    }
}
