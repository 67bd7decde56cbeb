//! Where each vCPU is at the moment, for whoever watches a run.
//!
//! Nobody is stopped for it. A vCPU that changes places while they are gone through one after the other may be seen in either, or
//! as running, which is what those are that lie nowhere.

use crate::host::locks::lock;
use crate::observe::whereabouts::{Where, Whereabouts};
use crate::sched::Scheduler;
use crate::sched::core::{Bell, Core};
use crate::sched::host::HostThreads;

impl Scheduler<'_> {
    /// Of the vCPUs of all guests, in order.
    pub(crate) fn whereabouts(&self) -> Vec<Whereabouts> {
        match self {
            Self::Vmm(runners) => runners.whereabouts(),
            Self::Host(guests) => guests.iter().flat_map(HostThreads::whereabouts).collect(),
            Self::Simulated(simulated) => simulated.whereabouts(),
        }
    }
}

impl<B: Bell> Core<'_, B> {
    /// Of the vCPUs of all guests, in order. Runners that change vCPUs wait as long as it takes to go through the queue.
    pub(super) fn whereabouts(&self) -> Vec<Whereabouts> {
        let mut found = vec![Whereabouts::from(Where::Running); self.sleepers.len()];
        let mut note = |number: u32, whereabouts| found[number as usize] = whereabouts;
        // Sleepers first: who is kicked awake meanwhile is found again among those that are ready.
        self.sleepers
            .look(|number, task| note(number, task.account.whereabouts()), |kicked| self.make_ready(kicked));
        let queue = lock(&self.queue);
        let off = queue.ready.iter().chain(queue.aside.values()).chain(queue.dozing.values());
        off.for_each(|task| note(task.number(), task.account.whereabouts()));
        queue.unborn.iter().for_each(|task| note(task.number(), Where::NotStarted.into()));
        queue.left.iter().chain(&queue.retired).for_each(|task| note(task.number(), Where::Left.into()));
        drop(queue);
        found
    }
}

impl HostThreads<'_> {
    /// Of the guest's vCPUs, as far as their threads say.
    fn whereabouts(&self) -> impl Iterator<Item = Whereabouts> {
        let booted = self.has_booted();
        self.states().zip(0..).map(move |((asleep, left), vcpu)| {
            let at = match (left, asleep) {
                (true, _) => Where::Left,
                (false, true) => Where::Asleep,
                (false, false) if vcpu > 0 && !booted => Where::NotStarted,
                (false, false) => Where::Runnable,
            };
            at.into()
        })
    }
}
