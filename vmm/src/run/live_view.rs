//! The live view's data: turns the books that are kept anyway into the frames that a run shows while it goes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use crate::guest::Activity;
use crate::machine::vcpu::{Exit, ExitCounts, Vcpu};
use crate::observe::live::Live;
use crate::observe::{Instruments, Where, Whereabouts};
use crate::run::asked::Run;
use crate::sched::Scheduler;
use crate::sched::guest_run::GuestRun;
use crate::sched::switch_books::SwitchBooks;

/// A run that shows itself. The threads that run its vCPUs do nothing for it.
pub(crate) struct LiveView<'a> {
    live: Arc<Live>,
    run: &'a Run,
    /// Exit counts of each vCPU of each guest.
    counts: Vec<Vec<Arc<ExitCounts>>>,
}

pub(crate) struct GuestNow<'a> {
    pub(crate) guest: &'a GuestRun<'a>,
    pub(crate) has_started: bool,
    /// Books on the switches of the vCPUs' threads, where switches are reported.
    pub(crate) books: Option<&'a SwitchBooks>,
}

impl<'a> LiveView<'a> {
    /// A run that was asked to show itself, with these vCPUs, if there is somewhere to, and no other is there.
    pub(crate) fn begin(run: &'a Run, instruments: &Instruments, vcpus: &[Vec<Vcpu>]) -> Option<Self> {
        let live = instruments.live.as_ref().filter(|live| run.live && live.begin()).cloned()?;
        let of_guest = |vcpus: &Vec<Vcpu>| vcpus.iter().map(|vcpu| Arc::clone(&vcpu.exits)).collect();
        Some(Self { live, run, counts: vcpus.iter().map(of_guest).collect() })
    }

    /// Shows how things are, if it is time to.
    pub(crate) fn look<'g>(&mut self, scheduler: &dyn Scheduler, guests: impl Iterator<Item = GuestNow<'g>>) {
        if self.live.is_due() {
            let frame = self.frame(&scheduler.whereabouts(), guests);
            self.live.show(frame);
        }
    }

    fn frame<'g>(&self, whereabouts: &[Whereabouts], guests: impl Iterator<Item = GuestNow<'g>>) -> Value {
        let run = self.run;
        let (mut first, mut shown) = (None, Vec::new());
        for ((now, asked), counts) in guests.zip(run.ours()).zip(&self.counts) {
            let at = now.guest.first_vcpu as usize;
            let vcpu =
                |(id, counts): (usize, &Arc<ExitCounts>)| vcpu(&now, id as u32, whereabouts[at + id], counts);
            shown.push(json!({
                "name": asked.guest.name,
                "lock": asked.ours.lock,
                "pv": asked.guest.pv,
                "workload": asked.ours.workload,
                "locks": asked.ours.lock_count,
                "vcpus": counts.iter().enumerate().map(vcpu).collect::<Vec<_>>(),
            }));
            first.get_or_insert_with(|| (phase(&now), now.guest.clock.now_ns()));
        }
        let (phase, at_ns) = first.unwrap_or_default();
        json!({
            "phase": phase,
            "at_ns": at_ns,
            "virtual_time": run.engine.is_simulated(),
            "sched": if run.has_vcpu_threads() { "host" } else { "vmm" },
            "cpus": run.cpus,
            "guests": shown,
        })
    }
}

impl Drop for LiveView<'_> {
    fn drop(&mut self) {
        self.live.end();
    }
}

fn phase(now: &GuestNow<'_>) -> &'static str {
    let [opened, _] = now.guest.window.times();
    if now.guest.window.is_closed() {
        "closed"
    } else if opened != u64::MAX {
        "window"
    } else if now.has_started {
        "warms-up"
    } else {
        "starts"
    }
}

fn vcpu(now: &GuestNow<'_>, id: u32, found: Whereabouts, counts: &ExitCounts) -> Value {
    let Whereabouts { at, since_ns } = match (found.at, now.books.map(|books| books.preempted(id))) {
        (Where::Runnable, Some(Some(preempted))) => preempted,
        // Threads whose vCPU sleeps inside KVM look like running ones here.
        (Where::Runnable, Some(None)) if !now.guest.halts_in_kernel => Where::Running.into(),
        _ => found,
    };
    let area = now.guest.shared.as_ref().map(|shared| shared.area(id));
    let doing = area.map_or(Activity::Other, Activity::of);
    // Relaxed: figures, each of which its vCPU alone writes.
    let lock = area.map(|area| area.activity.lock.load(Ordering::Relaxed));
    let sections = area.map_or(0, |area| area.results.entered.load(Ordering::Relaxed));
    // Kicks and sleeps in the kernel's hands are no exits, so the VMM cannot count them.
    let seen = |kind| (!now.guest.halts_in_kernel).then(|| counts.of(kind));
    json!({
        "vcpu": id,
        "state": at.name(),
        "since_ns": since_ns,
        "doing": doing.name(),
        "lock": lock.filter(|_| doing != Activity::Other),
        "sections": sections,
        "exits": counts.total(),
        "kicks": seen(Exit::Kick(0).kind()),
        "sleeps": seen(Exit::Wait.kind()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::clock::Clock;
    use crate::sched::tests::Ground;

    #[test]
    fn kicks_that_the_kernel_delivers_are_null_and_not_zero() {
        let ground = Ground::new(Clock::Host);
        let mut guest = ground.guest(1);
        for (halts_in_kernel, counted) in [(false, json!(0)), (true, Value::Null)] {
            guest.halts_in_kernel = halts_in_kernel;
            let now = GuestNow { guest: &guest, has_started: true, books: None };
            let shown = vcpu(&now, 0, Where::Running.into(), &ExitCounts::default());
            let counts = ["exits", "kicks", "sleeps"].map(|name| shown[name].clone());
            assert_eq!(counts, [json!(0), counted.clone(), counted]);
        }
    }
}
