//! One run, looked at instruction by instruction: where the lock's code comes by, and how much work is done by when.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use haltkick_sim::board::{Step, Witness};
use haltkick_sim::{Access, Cpu};

use crate::engines;
use crate::engines::lock_code::{LockCode, Part};
use crate::engines::vmm::Watched;
use crate::host::error::RunError;
use crate::image::file::Image;
use crate::observe::Instruments;
use crate::run::asked::Run;
use crate::run::outcome::Found;
use crate::run::supervise::{PassWindow, Stage};
use crate::worst::Cut;
use crate::worst::effect::{Curve, Sample, TICK_NS};

/// Picoseconds in a nanosecond.
const PS: u64 = 1000;
/// Most occurrences that are kept; those behind are not seen.
const MOST_OCCURRENCES: usize = 4_000_000;

/// Range of the run that is looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// For how long, from the opening of the window on.
    pub span: Duration,
    /// For how long a cut is followed.
    pub horizon: Duration,
    /// Every instruction of the lock, not only those before which others could notice a difference: accesses to lines that more than
    /// one core has used, exits, reads of the clock.
    pub every: bool,
}

impl Scope {
    /// How long the baseline is followed.
    fn whole(&self) -> Duration {
        self.span + self.horizon
    }

    pub(super) fn horizon_ticks(&self) -> usize {
        (self.horizon.as_nanos() as u64 / TICK_NS) as usize
    }
}

/// An instruction of the lock, each time that a vCPU comes to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occurrence {
    /// The vCPU.
    pub vcpu: u32,
    /// Instructions that it had completed before.
    pub instructions: u64,
    /// Address of the instruction.
    pub rip: u64,
    /// When, from the opening of the window on.
    pub at: Duration,
    /// Other vCPUs on their way to the lock.
    pub waiting: u32,
    /// Waiters that have left their guest and not come back: most of them sleep.
    pub out: u32,
    /// The vCPU has just taken the lock.
    pub holds: bool,
    /// It writes to a line that more than one core has used.
    pub writes: bool,
}

/// A run without cuts.
#[derive(Clone, Debug, Default)]
pub struct Baseline {
    /// A moment at which the lock's code came by.
    pub occurrences: Vec<Occurrence>,
    /// Time that vCPUs spent at each instruction of the lock, waits for lines included, over all time that they had.
    pub exposure: BTreeMap<u64, f64>,
    /// All instructions of the lock that were executed, whether others could notice or not.
    pub reached: BTreeSet<u64>,
    /// Instructions of the image that a lock object has called, each with the last one of the object before it.
    pub callers: BTreeMap<u64, u64>,
    /// The guest from the opening of the window on, once a tick.
    pub(super) samples: Vec<Sample>,
    pub(super) scope: Scope,
}

struct Recording {
    code: LockCode,
    every: bool,
    /// Since when, and until when.
    window_ps: Option<(u64, u64)>,
    /// Cuts to come of the run itself, and the time from the last of them on in which occurrences are noted.
    before: Vec<Cut>,
    after_ps: u64,
    found: Baseline,
    spent_ps: BTreeMap<u64, u64>,
    /// For each vCPU: time in the lock since the last instruction that others notice.
    unnoticed_ps: Vec<u64>,
    all_ps: u64,
    /// For each vCPU: when its last instruction was complete, and whether it left the guest by that.
    last: Vec<(u64, bool)>,
}

/// It is the witness of a survey. The window is passed by its twin.
impl Witness for Recording {
    fn wants_steps(&self, at_ps: u64) -> bool {
        self.window_ps.is_some_and(|(_, until_ps)| at_ps < until_ps)
    }

    /// `cpu` stands at a cut of the run itself, or is new.
    fn stands(&mut self, cpu: &mut Cpu, at_ps: u64) -> Option<u64> {
        let now = cpu.instructions;
        let is_here = |cut: &Cut| cut.vcpu == cpu.number && cut.instructions == now;
        let told =
            self.before.iter().position(is_here).and_then(|index| self.before.remove(index).kind.told());
        if told.is_some() && self.before.is_empty() {
            self.window_ps = self.window_ps.map(|(from_ps, _)| (from_ps, at_ps + self.after_ps));
        }
        let others = self.before.iter().filter(|cut| cut.vcpu == cpu.number && cut.instructions > now);
        cpu.asked_at = others.map(|cut| cut.instructions).min().unwrap_or(u64::MAX);
        told
    }

    fn step(&mut self, step: &Step) {
        let Some((from_ps, until_ps)) = self.window_ps else { return };
        let (last_ps, _) =
            std::mem::replace(&mut self.last[step.number as usize], (step.ended_ps, step.exits));
        let took_ps = step.ended_ps.saturating_sub(last_ps.max(step.entered_ps).max(from_ps));
        self.all_ps += took_ps;
        let unnoticed_ps = std::mem::take(&mut self.unnoticed_ps[step.number as usize]);
        let Some(part) = self.code.part(step.number, step.rip, step.rsp) else { return };
        let (holds, rip) = (part == Part::Taken, self.code.home(step.rip));
        if !holds {
            self.found.reached.insert(rip);
            if let Some(caller) = self.code.caller(step).filter(|_| rip == step.rip) {
                self.found.callers.entry(rip).or_insert(caller);
            }
        }
        let is_noticed = step.shared.is_some() || step.clock || step.exits || holds;
        // A preemption before any of these instructions does as much as one before the next that is noticed.
        if !(self.every || is_noticed) {
            self.unnoticed_ps[step.number as usize] = unnoticed_ps + took_ps;
            return;
        }
        *self.spent_ps.entry(rip).or_default() += unnoticed_ps + took_ps;
        let in_time = self.before.is_empty() && (from_ps..until_ps).contains(&step.at_ps);
        if !in_time || self.found.occurrences.len() >= MOST_OCCURRENCES {
            return;
        }
        let out = self.last.iter().filter(|last| last.1).count() as u32 - u32::from(step.exits);
        self.found.occurrences.push(Occurrence {
            vcpu: step.number,
            instructions: step.instructions,
            rip,
            at: Duration::from_nanos((step.at_ps - from_ps) / PS),
            waiting: self.code.others(step.number),
            out,
            holds,
            writes: step.shared.is_some_and(Access::writes),
        });
    }
}

struct Window<'a> {
    seen: Rc<RefCell<Recording>>,
    scope: Scope,
    curve: Curve<'a>,
}

impl PassWindow for Window<'_> {
    fn pass(&mut self, stage: Stage<'_>) -> Result<(), RunError> {
        let from_ps = stage.guest.clock.now_ns() * PS;
        let mut seen = self.seen.borrow_mut();
        // After cuts of the run itself the time ends a while after the last of them.
        let span_ps = self.scope.span.as_nanos() as u64 * PS;
        let until_ps = if seen.before.is_empty() { from_ps + span_ps } else { u64::MAX };
        seen.window_ps = Some((from_ps, until_ps));
        drop(seen);
        self.curve.sample(stage);
        for _ in 0..self.scope.whole().as_nanos() as u64 / TICK_NS {
            if self.curve.tick(stage, &mut |_| ())?.is_break() {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Surveys the lock of `run`, which is of one guest on a simulated machine.
///
/// # Errors
/// What ends the run, also a failure of the lock by itself.
pub fn survey(run: &Run, image: &Image, scope: Scope, stop: &AtomicBool) -> Result<Baseline, RunError> {
    survey_after((run, image), (&[], Duration::ZERO), scope, stop)
}

/// Surveys the lock of `run` after cuts of the run itself, for `time` from the last one on.
pub fn survey_after(
    (run, image): (&Run, &Image),
    (before, time): (&[Cut], Duration),
    scope: Scope,
    stop: &AtomicBool,
) -> Result<Baseline, RunError> {
    let asked = run.our(0);
    let seen = Rc::new(RefCell::new(Recording {
        code: LockCode::new(asked, image, false)?,
        every: scope.every,
        window_ps: None,
        before: before.to_vec(),
        after_ps: time.as_nanos() as u64 * PS,
        found: Baseline { scope, ..Baseline::default() },
        spent_ps: BTreeMap::new(),
        unnoticed_ps: vec![0; asked.guest.vcpus as usize],
        all_ps: 0,
        last: vec![(0, false); asked.guest.vcpus as usize],
    }));
    let mut window = Window { seen: Rc::clone(&seen), scope, curve: Curve::new(asked, stop) };
    let watched = Watched { window: Some(&mut window), witness: Some(seen.clone()) };
    engines::run_watched(run, image, &Instruments::default(), stop, watched).and_then(Found::all)?;
    let samples = window.curve.samples;
    let mut seen = seen.borrow_mut();
    let all_ps = seen.all_ps.max(1) as f64;
    let exposure = seen.spent_ps.iter().map(|(rip, ps)| (*rip, *ps as f64 / all_ps)).collect();
    Ok(Baseline { exposure, samples, ..std::mem::take(&mut seen.found) })
}
