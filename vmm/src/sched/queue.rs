//! A vCPU between its turns, and the vCPUs that neither run, are ready nor sleep in `pv_wait`: aside, dozing, not started, started
//! before others, done.
//!
//! A vCPU that is descheduled on purpose lies aside until its time is over. Then it is ready, and late: it is next.

use std::collections::BTreeMap;

use crate::machine::vcpu::Vcpu;
use crate::sched::account::Account;
use crate::sched::guest_run::GuestRun;
use crate::sched::halts::LONGEST_LOOK_NS;

/// A vCPU and its books.
pub(super) struct Task<'a> {
    pub(super) guest: &'a GuestRun<'a>,
    pub(super) vcpu: Vcpu,
    pub(super) account: Account,
    /// The pCPU that it ran on last. It is run there again where that is fair: its caches are warm there, and before
    /// Linux 6.13 a vCPU that changes threads waits for an RCU grace period.
    pub(super) last_pcpu: Option<u32>,
    /// The end of the run took it off its pCPU.
    pub(super) stopped: bool,
}

impl Task<'_> {
    /// Number among the vCPUs of all guests.
    pub(super) fn number(&self) -> u32 {
        self.guest.number_of(self.vcpu.id)
    }
}

/// vCPUs that neither run, are ready nor sleep in `pv_wait`. Tasks are boxed wherever they lie: they change places thousands of times a
/// second.
#[derive(Default)]
#[expect(clippy::vec_box, reason = "they come out of the other places boxed")]
pub(super) struct Apart<'a> {
    /// Descheduled on purpose, or kept by a quota: until when, and which.
    pub(super) aside: BTreeMap<(u64, u32), Box<Task<'a>>>,
    /// Halted in KVM's hands: when to look next, and which.
    pub(super) dozing: BTreeMap<(u64, u32), Box<Task<'a>>>,
    /// Not started until vCPU 0 says so.
    pub(super) not_started: Vec<Box<Task<'a>>>,
    /// Started, while others of their guests have not.
    pub(super) started: Vec<Box<Task<'a>>>,
    /// Done, or failed.
    pub(super) left: Vec<Box<Task<'a>>>,
}

impl<'a> Apart<'a> {
    /// When one of them is due next.
    pub(super) fn next_ns(&self) -> Option<u64> {
        let next = [self.aside.keys().next(), self.dozing.keys().next()];
        next.into_iter().flatten().min().map(|(due_ns, _)| *due_ns)
    }

    /// A vCPU whose time aside is over at `now_ns`.
    pub(super) fn take_aside(&mut self, now_ns: u64) -> Option<Box<Task<'a>>> {
        let entry = self.aside.first_entry().filter(|entry| entry.key().0 <= now_ns);
        entry.map(std::collections::btree_map::OccupiedEntry::remove)
    }

    /// A vCPU that dozes and has had no look since it was due at `now_ns`: one of `pcpu`'s own, or any if there is `nothing_else` to do.
    pub(super) fn take_dozing(
        &mut self,
        now_ns: u64,
        pcpu: u32,
        nothing_else: bool,
    ) -> Option<Box<Task<'a>>> {
        let mut due = self.dozing.iter().take_while(|((look_ns, _), _)| *look_ns <= now_ns);
        let (&key, _) = due.find(|(_, task)| nothing_else || task.last_pcpu == Some(pcpu))?;
        self.dozing.remove(&key)
    }

    /// Lays a halted vCPU to rest. The longer it has slept the less often it is looked at, so that it is found at most a
    /// quarter of that late; an idle guest must not keep its pCPUs busy.
    pub(super) fn doze(&mut self, now_ns: u64, first_look_ns: u64, task: Box<Task<'a>>) {
        let slept_ns = now_ns.saturating_sub(task.account.since_ns());
        let look_ns = (slept_ns / 4).clamp(first_look_ns, first_look_ns.max(LONGEST_LOOK_NS));
        self.dozing.insert((now_ns + look_ns, task.number()), task);
    }
}
