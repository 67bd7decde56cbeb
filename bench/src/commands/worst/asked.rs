//! Plan of the attempts: which runs are cut, how, and what file does one of them again.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use haltkick_vmm::worst::{Cut, Effect, Kind, Scope};
use haltkick_vmm::{Entry, Image, LockFlags, Run};

use crate::analysis::worst::{Parts, SourcePlace};
use crate::cli::WorstArgs;
use crate::commands::{guest_image, interrupt};
use crate::host::cpulist;
use crate::results::preemption::{Preemption, Then};
use crate::settings::{Settings, Supply};
use crate::text::exit::{Failure, Result};

/// Settings of a context, over those that were given.
type Changes = &'static [(&'static str, &'static str)];

/// Contexts that the bug finder tries besides the one that was asked for, one seed each. Some code of a lock is reached only where few
/// vCPUs want it, where several locks are used, or where a head gives up spinning before its lock is released.
const CONTEXTS: [Changes; 5] = [
    &[("think", "10us")],
    &[("spin-threshold", "5us")],
    &[("think", "40us"), ("spin-threshold", "5us")],
    &[("think", "5us/exponential")],
    &[("locks", "16"), ("think", "200ns"), ("spin-threshold", "5us")],
];
/// More contexts for locks with readers.
const WITH_READERS: [Changes; 2] = [&[("read-share", "50%")], &[("read-share", "50%"), ("think", "10us")]];

/// Plan of the attempts.
pub(super) struct Asked {
    /// All that was said, the user's defaults included.
    pub(super) settings: Settings,
    pub(super) image: Image,
    pub(super) run: Run,
    pub(super) scope: Scope,
    pub(super) kind: Kind,
    /// Settings and runs of further contexts. Seeds take the contexts in turn.
    contexts: Vec<(Settings, Run)>,
    pub(super) stop: Arc<AtomicBool>,
}

impl Asked {
    /// The run that `settings` mean, checked for what can be tried.
    pub(super) fn new(args: &WorstArgs, settings: Settings) -> Result<Self> {
        let image = guest_image::load(args.guest.as_deref(), settings.locks())?;
        let run = resolved(&settings, &image)?;
        let scope = Scope { span: Duration::ZERO, horizon: Duration::ZERO, every: false };
        let stop = interrupt::catch()?;
        Ok(Self { settings, image, run, scope, kind: Kind::Exit, contexts: Vec::new(), stop })
    }

    /// Seeds differ in their context, too. What `given` says stays as it is.
    pub(super) fn vary(&mut self, given: &Settings) -> Result<()> {
        let is_asked = |lock: &&Entry| lock.name == self.run.our(0).ours.lock;
        let has_readers = |lock: &Entry| lock.lock_flags().has(LockFlags::HAS_READERS);
        let readers = self.image.locks.iter().find(is_asked).is_some_and(has_readers);
        let more = WITH_READERS.iter().filter(|_| readers);
        for changes in CONTEXTS.iter().chain(more) {
            if changes.iter().any(|(name, _)| given.given(name).is_some()) {
                continue;
            }
            let mut settings = self.settings.clone();
            for (name, value) in *changes {
                settings.set(name, value).map_err(Failure::internal)?;
            }
            // A context that the lock does not allow is left out.
            if let Ok(run) = resolved(&settings, &self.image) {
                self.contexts.push((settings, run));
            }
        }
        Ok(())
    }

    /// Settings and run of a seed.
    fn context(&self, seed: u64) -> (&Settings, &Run) {
        let number = seed.wrapping_sub(self.run.guests[0].seed) as usize % (self.contexts.len() + 1);
        let further = number.checked_sub(1).map(|index| &self.contexts[index]);
        further.map_or((&self.settings, &self.run), |(settings, run)| (settings, run))
    }

    /// The run with another seed, in its context.
    pub(super) fn seeded(&self, seed: u64) -> Run {
        let mut run = self.context(seed).1.clone();
        run.guests[0].seed = seed;
        run
    }

    /// Time lost by `cuts`, and its causes, over the time that a vCPU was off. The time of a pCPU that was taken away is not lost.
    pub(super) fn lost(&self, effect: &Effect, cuts: &[Cut]) -> (f64, Parts) {
        // An exit has no length, and counts as a millisecond.
        let length = Some(self.kind.length()).filter(|length| !length.is_zero());
        let off_ns = length.unwrap_or(Duration::from_millis(1)).as_nanos() as f64;
        let taken = |cut: &Cut| if let Kind::Taken(time) = cut.kind { time } else { Duration::ZERO };
        let taken_ns = cuts.iter().map(taken).sum::<Duration>().as_nanos() as f64;
        let lost = (effect.late_ns as f64 * self.run.cpus.len() as f64 - taken_ns) / off_ns;
        let idle = (effect.idle_ns as f64 - taken_ns) / off_ns;
        let vmm = effect.vmm_ns as f64 / off_ns;
        (lost, Parts { idle, vmm, guest: lost - idle - vmm })
    }

    /// The file that has `cuts`, of which each has its place, done again with `seed`.
    pub(super) fn file(
        &self,
        scope: Scope,
        seed: u64,
        cuts: &[(Cut, SourcePlace)],
        came_to: String,
    ) -> Preemption {
        let mut thens = cuts.iter().map(|(cut, place)| {
            let line = place.line.as_deref().unwrap_or("no line");
            let place = format!("{} ({line}): {}", place.function, place.instruction);
            Then { place, vcpu: cut.vcpu, instructions: cut.instructions }
        });
        let mut file = Preemption::new(&self.image);
        if let Some(first) = thens.next() {
            (file.place, file.vcpu, file.instructions) = (first.place, first.vcpu, first.instructions);
        }
        let kind = cuts.first().map_or(Kind::Exit, |(cut, _)| cut.kind);
        Preemption {
            for_ns: kind.length().as_nanos() as u64,
            takes_pcpu: matches!(kind, Kind::Taken(_)),
            closes: cuts.first().is_some_and(|(cut, _)| cut.closes),
            span_ns: scope.span.as_nanos() as u64,
            horizon_ns: scope.horizon.as_nanos() as u64,
            seed,
            came_to,
            settings: Preemption::settings_of(self.context(seed).0),
            then: thens.collect(),
            ..file
        }
    }
}

/// The run that `settings` mean, checked for what can be tried.
fn resolved(settings: &Settings, image: &Image) -> Result<Run> {
    let allowed = cpulist::allowed()?;
    let supply = Supply { image, allowed: &allowed };
    let mut run = settings.resolve(supply)?;
    check(&run, image)?;
    if settings.given("warmup").is_none() {
        run.warmup = round(&run) * 2;
    }
    run.drain = true;
    haltkick_vmm::check_guests(&run, image)?;
    Ok(run)
}

/// Time in which each vCPU has had a turn.
pub(super) fn round(run: &Run) -> Duration {
    run.rules.slice * run.guests[0].vcpus.div_ceil(run.cpus.len() as u32)
}

/// Refuses what no preemption can be tried in.
fn check(run: &Run, image: &Image) -> Result<()> {
    let ours = run.our(0).ours;
    let is_asked = |lock: &&Entry| lock.name == ours.lock;
    let is_lock_free = image.locks.iter().find(is_asked).is_some_and(Entry::is_lock_free);
    let reasons = [
        (is_lock_free, "--lock: no vCPU holds or awaits this lock: take another one"),
        (run.guests.len() > 1, "--vm: preemptions are tried in one guest: leave --vm out"),
        (
            run.deschedule.is_some(),
            "--deschedule: this command takes vCPUs off by itself: leave --deschedule out",
        ),
        (run.schedule.is_some(), "--schedule: this command takes vCPUs off by itself: leave --schedule out"),
        (
            ours.shape.work().is_some(),
            "--work: preemptions are tried in a run without an end: leave --work out",
        ),
        (!ours.oracle, "--oracle: a lock is watched while vCPUs are taken off: leave --oracle out"),
    ];
    let reason = reasons.into_iter().find(|(holds, _)| *holds);
    reason.map_or(Ok(()), |(_, reason)| Err(Failure::usage(reason)))
}
