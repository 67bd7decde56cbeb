//! vCPUs that become ready: which queue they go into, which pCPU wakes up for them, and who is told how many there are.
//! By kicks and yields a vCPU gets a pCPU, or a place in the queue, through another one.

use std::sync::atomic::Ordering;

use haltkick_hypercalls::READY_UNKNOWN;

use crate::host::threads::lock;
use crate::observe::Where;
use crate::sched::core::{Bell, Core, Turn};
use crate::sched::fair_queue::Shares;
use crate::sched::guest_run::GuestRun;
use crate::sched::task::Task;

impl<'a, B: Bell> Core<'a, B> {
    pub(super) fn make_ready(&self, mut task: Box<Task<'a>>) {
        task.account.goes(task.guest, task.vcpu.id, Where::Ready, self.clock.now_ns());
        self.place(task, true);
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
        let ran_ns = now_ns.saturating_sub(task.account.since_ns);
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
        let mut is_first = false;
        for mut task in apart.not_started.extract_if(.., |task| task.guest.index == guest.index) {
            (is_first, task.account.since_ns) = (true, now);
            // vCPUs of a guest that started earlier have run meanwhile.
            self.queues.push(None, task, true);
        }
        drop(apart);
        self.publish_load();
        let starts_ns =
            self.queues.at_pcpu(from.last_pcpu, |shares| self.queues.after_sleep(shares, guest.index, 0));
        self.bell.ring_all();
        is_first.then_some(starts_ns)
    }

    /// `task` has started, and goes on when all vCPUs of its guest have.
    pub(super) fn has_started(&self, task: Box<Task<'a>>) {
        let guest = task.guest;
        lock(&self.apart).started.push(task);
        self.go_on_if_all_started(guest);
    }

    pub(super) fn leaves(&self, task: Box<Task<'a>>) {
        let (guest, id) = (task.guest, task.vcpu.id);
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

    /// `pv_kick`: whether that vCPU slept, and the vCPU itself if it is to be run at once. A number without a vCPU in
    /// this guest is the guest's mistake and has no effect.
    pub(super) fn kick(&self, from: &mut Task<'a>, vcpu: u32) -> (Option<bool>, Option<Box<Task<'a>>>) {
        let guest = from.guest;
        if vcpu >= guest.vcpus {
            return (None, None);
        }
        let Some(mut task) = self.sleepers.kick(guest.number_of(vcpu)) else { return (Some(false), None) };
        task.account.books.kicks += 1;
        if self.kick_yields {
            let slept_ns = task.account.turns.virtual_ns;
            let place_ns = self.queues.at_pcpu(from.last_pcpu, |shares| {
                let virtual_ns = self.queues.after_sleep(shares, guest.index, slept_ns);
                self.gives_its_place(shares, from, virtual_ns)
            });
            if let Some(virtual_ns) = place_ns {
                task.account.goes(guest, vcpu, Where::Ready, self.clock.now_ns());
                task.account.turns.virtual_ns = virtual_ns;
                task.account.turns.handed += 1;
                return (Some(true), Some(task));
            }
        }
        self.make_ready(task);
        (Some(true), None)
    }

    /// `from`, which runs, hands its pCPU to a vCPU of its guest at `virtual_ns`: the virtual time from which on that one runs, if
    /// it may, as far as others are concerned.
    ///
    /// If the other one has had more than `from`, the two exchange their virtual times: `from` gives it its own place
    /// in the queue and takes that one's. So waiters that yield to the owner of their lock give it their turns, all of
    /// them, and no other place changes. Without the exchange one could have only one of the two: either an owner that
    /// is yielded to is as late as if it were not, or a vCPU that never yields has no turn while others feed it.
    fn gives_its_place(
        &self,
        shares: &Shares<Box<Task<'a>>>,
        from: &mut Task<'a>,
        virtual_ns: u64,
    ) -> Option<u64> {
        let running_ns = self.clock.now_ns().saturating_sub(from.account.since_ns);
        // The time of the present turn is charged when it ends.
        let own_ns = from.account.turns.virtual_ns.saturating_add(running_ns);
        let place_ns = virtual_ns.min(own_ns);
        self.queues.may_go_first(shares, from, place_ns, running_ns).then(|| {
            from.account.turns.virtual_ns += virtual_ns - place_ns;
            place_ns
        })
    }

    /// Directed yield: `vcpu` of the same guest, if it is ready. Else the yield has no effect, as in KVM: it runs
    /// already, or it sleeps, and nothing would be gained by giving up the pCPU for it. If others would lose too much
    /// by it, it is a yield to the next vCPU, as under Linux, where the scheduler takes a directed yield for a hint.
    pub(super) fn take_ready(&self, from: &mut Task<'a>, vcpu: u32) -> Option<Turn<'a>> {
        let guest = from.guest;
        if vcpu >= guest.vcpus {
            return None;
        }
        self.take_back();
        let number = guest.number_of(vcpu);
        self.queues.at_vcpu(number, |shares| {
            let virtual_ns = shares.virtual_ns_of(guest.index, number)?;
            let Some(virtual_ns) = self.gives_its_place(shares, from, virtual_ns) else {
                return Some(Turn::Yields);
            };
            let mut task = shares.take(guest.index, number)?;
            task.account.turns.virtual_ns = virtual_ns;
            task.account.turns.handed += 1;
            Some(Turn::HandsOver(task))
        })
    }

    /// Yield: to the next vCPU in the queue.
    pub(super) fn pass_slice(&self, task: Box<Task<'a>>) -> Option<Box<Task<'a>>> {
        let last = task.last_pcpu;
        let next = last.and_then(|pcpu| self.queues.pop(pcpu));
        self.queues.push(last, task, false);
        self.publish_load();
        // Also if there is a next one: a pCPU that was woken for that one may have found it gone.
        self.wake_one(last);
        next
    }
}
