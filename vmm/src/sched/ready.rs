//! vCPUs that become ready: which queue they go into, which pCPU wakes up for them, and who is told how many there are.

use std::sync::atomic::Ordering;

use haltkick_hypercalls::READY_UNKNOWN;

use crate::host::locks::lock;
use crate::observe::whereabouts::Where;
use crate::sched::core::{Bell, Core};
use crate::sched::guest_run::GuestRun;
use crate::sched::queue::Task;

impl<'a, B: Bell> Core<'a, B> {
    /// A vCPU that slept is ready.
    pub(super) fn make_ready(&self, mut task: Box<Task<'a>>) {
        task.account.goes(task.guest, task.vcpu.id, Where::Ready, self.clock.now_ns());
        self.place(task, true);
    }

    /// A vCPU that was to run next, and does not.
    pub(super) fn give_back(&self, task: Box<Task<'a>>) {
        self.place(task, false);
    }

    /// Puts a vCPU, which has `slept` or not, into the queue of an idle pCPU, which wakes up, or of the one that it ran on last.
    pub(super) fn place(&self, task: Box<Task<'a>>, slept: bool) {
        let last = task.last_pcpu;
        let chosen = self.bell.choose(last, self.idle.look());
        self.queues.push(chosen.or(last), task, slept);
        self.publish_load();
        match chosen {
            Some(pcpu) => self.bell.ring(pcpu),
            // One may have become idle before it was there.
            None => self.wake_one(last),
        }
    }

    /// Wakes an idle pCPU for a vCPU that ran on `last`, if there is one.
    pub(super) fn wake_one(&self, last: Option<u32>) {
        if let Some(pcpu) = self.bell.choose(last, self.idle.look()) {
            self.bell.ring(pcpu);
        }
    }

    /// Makes vCPUs ready whose time aside is over. Only a plan, a quota, or a cut of a simulated run, lays any aside.
    pub(super) fn take_back(&self) {
        if !self.sets_aside {
            return;
        }
        let mut apart = lock(&self.apart);
        if apart.aside.is_empty() {
            return;
        }
        let now_ns = self.clock.now_ns();
        while let Some(task) = apart.take_aside(now_ns) {
            self.place(task, true);
        }
    }

    /// Tells the guests, and pCPUs whose slices end, how many vCPUs have no pCPU, if that has changed: each guest's number is in a
    /// line that its vCPUs read. A thread that changes a queue calls this afterwards. Of two at once the later one may tell the older
    /// number: each slice that ends tells it again.
    pub(super) fn publish_load(&self) {
        let count = self.queues.len();
        // Relaxed: a hint.
        if self.told.0.load(Ordering::Relaxed) == count {
            return;
        }
        self.told.0.store(count, Ordering::Relaxed);
        for shared in self.guests.iter().filter_map(|guest| guest.shared.as_ref()) {
            shared.tell_ready_vcpus(if self.tells { count } else { READY_UNKNOWN });
        }
    }

    /// Whether a vCPU is ready, on whatever pCPU.
    pub(super) fn is_any_ready(&self) -> bool {
        self.take_back();
        self.publish_load();
        self.queues.len() > 0
    }

    /// Whether the slice of `task`, which has ended on `pcpu` at `now_ns`, is followed by another vCPU's.
    pub(super) fn is_another_due(&self, task: &mut Task<'a>, pcpu: u32, now_ns: u64) -> bool {
        if !self.is_any_ready() {
            return false;
        }
        let ran_ns = now_ns.saturating_sub(task.account.since_ns());
        let is_due = self.queues.is_due(pcpu, task.account.turns.after_ns(ran_ns));
        if !is_due {
            task.account.turns.goes_on(self.slice_ns);
        }
        is_due
    }

    /// The other vCPUs of `guest` start. The virtual time at which they do; `None` if they have started already.
    pub(super) fn start_the_others(&self, guest: &GuestRun<'_>, from: &Task<'_>) -> Option<u64> {
        let mut apart = lock(&self.apart);
        let now = self.clock.now_ns();
        let is_first = apart.not_started.iter().any(|task| task.guest.index == guest.index);
        for mut task in std::mem::take(&mut apart.not_started) {
            if task.guest.index == guest.index {
                task.account.begin(now);
                // vCPUs of a guest that started earlier have run meanwhile.
                self.queues.push(None, task, true);
            } else {
                apart.not_started.push(task);
            }
        }
        drop(apart);
        self.publish_load();
        let starts_ns =
            self.queues.at_pcpu(from.last_pcpu, |shares| self.queues.after_sleep(shares, guest.index, 0));
        self.bell.ring_all();
        is_first.then_some(starts_ns)
    }

    /// `task` has started at `now_ns`, and goes on when all vCPUs of its guest have.
    pub(super) fn has_started(&self, mut task: Box<Task<'a>>, now_ns: u64) {
        let guest = task.guest;
        task.account.goes(guest, task.vcpu.id, Where::Ready, now_ns);
        lock(&self.apart).started.push(task);
        self.go_on_if_all_started(guest);
    }

    /// `task` has nothing more to do.
    pub(super) fn leaves(&self, mut task: Box<Task<'a>>, now_ns: u64) {
        let (guest, id) = (task.guest, task.vcpu.id);
        task.account.goes(guest, id, Where::Left, now_ns);
        lock(&self.apart).left.push(task);
        if guest.starts.says(id) {
            self.go_on_if_all_started(guest);
        }
    }

    /// A vCPU of `guest` has started, or never will, and lies where it belongs. If it was the last one, those that wait for it go on.
    /// The last one finds all others here: each has said that it has started before it came for the lock.
    fn go_on_if_all_started(&self, guest: &GuestRun<'_>) {
        let mut apart = lock(&self.apart);
        if guest.starts.count() < guest.vcpus {
            return;
        }
        for task in apart.started.extract_if(.., |task| task.guest.index == guest.index) {
            // Into the queue that it began in, which keeps queues even: one that was taken by an idle pCPU goes back. As after a sleep:
            // other guests have run meanwhile.
            self.queues.push(None, task, true);
        }
        drop(apart);
        self.publish_load();
        self.bell.ring_all();
    }
}
