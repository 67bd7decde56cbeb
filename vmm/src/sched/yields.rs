//! Kicks and yields: a vCPU gets a pCPU, or a place in the queue, through another one.

use crate::observe::whereabouts::Where;
use crate::sched::core::{Bell, Core};
use crate::sched::queue::Task;
use crate::sched::shares::Shares;
use crate::sched::turn::Turn;

impl<'a, B: Bell> Core<'a, B> {
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
        let running_ns = self.clock.now_ns().saturating_sub(from.account.since_ns());
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
