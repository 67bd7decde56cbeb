//! Place of each vCPU at the moment, for observers of a run.
//!
//! No vCPU is stopped for it. Places are gone through one after the other. A vCPU that changes places meanwhile may be
//! seen in either, or as running, the state of a vCPU that is in none.

use crate::host::locks::lock;
use crate::observe::whereabouts::{Where, Whereabouts};
use crate::sched::Scheduler;
use crate::sched::core::{Bell, Core};
use crate::sched::host::HostThreads;

impl Scheduler<'_> {
    /// Places of the vCPUs of all guests, in order.
    pub(crate) fn whereabouts(&self) -> Vec<Whereabouts> {
        match self {
            Self::Vmm(runners) => runners.whereabouts(),
            Self::Host(guests) => guests.iter().flat_map(HostThreads::whereabouts).collect(),
            Self::Simulated(simulated) => simulated.whereabouts(),
        }
    }
}

impl<B: Bell> Core<'_, B> {
    /// Lists the places of all guests' vCPUs, in order. Runners that change vCPUs wait as long as it takes to go
    /// through their queues.
    pub(super) fn whereabouts(&self) -> Vec<Whereabouts> {
        let mut found = vec![Whereabouts::from(Where::Running); self.sleepers.len()];
        let mut note = |number: u32, whereabouts| found[number as usize] = whereabouts;
        // Locked throughout: a pCPU that is about to report that no vCPU can run must not miss one that is awake in here.
        let apart = lock(&self.apart);
        // Sleepers first: a vCPU that is kicked meanwhile is found again among those that are ready.
        self.sleepers
            .look(|number, task| note(number, task.account.whereabouts()), |kicked| self.make_ready(kicked));
        self.queues.for_each(|task, is_over| {
            note(task.number(), if is_over { Where::Left.into() } else { task.account.whereabouts() });
        });
        let off = apart.aside.values().chain(apart.dozing.values()).chain(&apart.started);
        off.for_each(|task| note(task.number(), task.account.whereabouts()));
        apart.not_started.iter().for_each(|task| note(task.number(), Where::NotStarted.into()));
        apart.left.iter().for_each(|task| note(task.number(), Where::Left.into()));
        drop(apart);
        found
    }
}

impl HostThreads<'_> {
    /// Lists the places of the guest's vCPUs, as far as their threads say.
    fn whereabouts(&self) -> impl Iterator<Item = Whereabouts> {
        self.states().map(|[begun, asleep, left]| {
            let at = match (left, asleep) {
                (true, _) => Where::Left,
                (false, true) => Where::Asleep,
                (false, false) if !begun => Where::NotStarted,
                (false, false) => Where::Runnable,
            };
            at.into()
        })
    }
}
