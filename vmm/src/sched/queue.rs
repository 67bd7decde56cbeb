//! The vCPUs of all guests that are on no pCPU and do not sleep: ready, aside, dozing, not started, done.
//!
//! One queue for all runners keeps every pCPU busy while any vCPU is ready; `shares` and `fair_queue` say who is next.
//!
//! A vCPU that is descheduled on purpose lies aside until its time is over. Then it is ready, and late: it is next.

use std::collections::BTreeMap;

use crate::host::clock::Clock;
use crate::machine::vcpu::Vcpu;
use crate::sched::account::Account;
use crate::sched::guest_run::GuestRun;
use crate::sched::halts::LONGEST_LOOK_NS;
use crate::sched::placing::PcpuSet;
use crate::sched::shares::Shares;

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

/// Tasks are boxed wherever they lie: they change places thousands of times a second.
#[expect(clippy::vec_box, reason = "they come out of the other places boxed")]
pub(super) struct Queue<'a> {
    pub(super) ready: Shares<Box<Task<'a>>>,
    /// Descheduled on purpose: until when, and which.
    pub(super) aside: BTreeMap<(u64, u32), Box<Task<'a>>>,
    /// Halted in KVM's hands: when to look next, and which.
    pub(super) dozing: BTreeMap<(u64, u32), Box<Task<'a>>>,
    /// Not started until vCPU 0 says so.
    pub(super) unborn: Vec<Box<Task<'a>>>,
    /// Done, or failed.
    pub(super) left: Vec<Box<Task<'a>>>,
    /// Of guests that failed while others go on.
    pub(super) retired: Vec<Box<Task<'a>>>,
    /// pCPUs that have nothing to run, and that no vCPU has been found for yet.
    pub(super) idle: PcpuSet,
    /// The number of ready vCPUs that guests were told last; `None`: they were told nothing yet.
    pub(super) told: Option<u32>,
}

impl<'a> Queue<'a> {
    /// Nobody yet; `ready` says whose turn it is among those to come.
    pub(super) fn new(ready: Shares<Box<Task<'a>>>) -> Self {
        Self {
            ready,
            aside: BTreeMap::new(),
            dozing: BTreeMap::new(),
            unborn: Vec::new(),
            left: Vec::new(),
            retired: Vec::new(),
            idle: PcpuSet::default(),
            told: None,
        }
    }

    /// Makes vCPUs ready whose time aside is over. The clock is read only if some lie aside.
    pub(super) fn take_back(&mut self, clock: &Clock) {
        if self.aside.is_empty() {
            return;
        }
        let now_ns = clock.now_ns();
        while let Some(entry) = self.aside.first_entry().filter(|entry| entry.key().0 <= now_ns) {
            let task = entry.remove();
            self.push_after_sleep(task);
        }
    }

    /// A vCPU that dozes and that nobody has looked at since it was due at `now_ns`: one of `pcpu`'s own, or anyone's if there
    /// is nothing else to do.
    pub(super) fn take_dozing(&mut self, now_ns: u64, pcpu: u32) -> Option<Box<Task<'a>>> {
        let nothing_else = self.ready.is_empty();
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

    pub(super) fn push_ready(&mut self, task: Box<Task<'a>>) {
        self.ready.push(task.guest.index, task.number(), task.account.turns.virtual_ns, task);
    }

    pub(super) fn push_after_sleep(&mut self, mut task: Box<Task<'a>>) {
        task.account.turns.virtual_ns =
            self.ready.after_sleep(task.guest.index, task.account.turns.virtual_ns);
        self.push_ready(task);
    }

    /// The vCPU that is next on `pcpu`. Those of guests that are over are laid away.
    pub(super) fn pop(&mut self, pcpu: Option<u32>) -> Option<Box<Task<'a>>> {
        loop {
            let task = self.ready.pop(|task| task.last_pcpu == pcpu)?;
            if !task.guest.stopping() {
                return Some(task);
            }
            self.retired.push(task);
        }
    }
}
