//! Cuts of a run: at each, a branch goes on with one vCPU taken off, or with nothing but an exit.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};

use haltkick_sim::Cpu;
use haltkick_sim::board::{Watching, Witness};
use serde::{Deserialize, Serialize};

use crate::engines::vmm::Watched;
use crate::engines::{self, Looking, look, meetings};
use crate::explain::lock_in_words;
use crate::host::branch::{Awaited, Reporter, Side, branch};
use crate::host::error::{RunError, system};
use crate::image::file::Image;
use crate::observe::Instruments;
use crate::run::asked::Run;
use crate::run::outcome::Found;
use crate::run::supervise::{PassWindow, Stage};
use crate::worst::Cut;
use crate::worst::effect::{Broken, Curve, Effect, Sample};
use crate::worst::survey::Baseline;

/// Most horizons that a branch may take to do the work.
const MOST_HORIZONS: usize = 3;

/// Outcome of a cut.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub enum Attempt {
    /// The lock did as it should. The state of the lock at the cut, in words.
    Held(Effect, Option<String>),
    /// It did not.
    Broke(Broken),
    /// It has an instruction that the simulated CPU lacks, in words: nothing is known of the lock.
    NotCarriedOut(String),
    /// The run never came to the instruction.
    Unreached,
}

/// The part that this process plays.
#[derive(Default)]
enum Role {
    /// It comes to cuts, and makes branches.
    #[default]
    Trunk,
    /// It has come to its last cut, and reports to another process, or to itself.
    Branch(Option<Reporter>),
}

#[derive(Default)]
struct Shared {
    role: Role,
    /// Cuts to come of each vCPU, by instructions: of a copy, which has a number, or of the process itself.
    cuts: Vec<VecDeque<(Option<usize>, Cut)>>,
    /// Cuts of copies that are to come, and cuts of the process itself.
    left: usize,
    left_here: usize,
    jobs: usize,
    live: VecDeque<(usize, Awaited)>,
    done: Vec<(usize, Vec<u8>)>,
    failed: Option<RunError>,
    /// The tick of the first cut.
    began: Option<usize>,
    /// The vCPU that was cut last.
    vcpu: u32,
    /// The window is to close now.
    closes: bool,
    ticks: usize,
}

impl Shared {
    fn cut_here(&mut self, cut: Cut) -> Option<u64> {
        self.is_cut(cut);
        self.left_here -= 1;
        if self.left_here == 0 && self.left == 0 {
            self.role = Role::Branch(None);
        }
        cut.kind.told()
    }

    fn is_cut(&mut self, cut: Cut) {
        self.began.get_or_insert(self.ticks);
        (self.vcpu, self.closes) = (cut.vcpu, cut.closes);
    }

    fn cut(&mut self, index: usize, cut: Cut) -> Option<u64> {
        self.settle(self.jobs - 1);
        match branch() {
            Ok(Side::Trunk(awaited)) => self.live.push_back((index, awaited)),
            Ok(Side::Branch(reporter)) => {
                // A branch does not wait for the trunk's other branches.
                self.live.clear();
                self.done.clear();
                self.role = Role::Branch(Some(reporter));
                self.is_cut(cut);
                return cut.kind.told();
            }
            Err(error) => self.failed = Some(system("copy this process")(error)),
        }
        None
    }

    /// Waits until at most `most` branches are under way.
    fn settle(&mut self, most: usize) {
        while self.live.len() > most
            && let Some((index, awaited)) = self.live.pop_front()
        {
            match awaited.report() {
                Ok(report) => self.done.push((index, report)),
                Err(error) => self.failed = Some(system("await a copy of this process")(error)),
            }
        }
    }
}

impl Witness for Shared {
    /// `cpu` stands at a cut.
    fn stands(&mut self, cpu: &mut Cpu, _: u64) -> Option<u64> {
        let now = cpu.instructions;
        let mut said = None;
        while let Some(&(copy, cut)) = self.cuts[cpu.number as usize].front() {
            // Instructions behind it were skipped: the rounds of a parked spin loop.
            if cut.instructions > now || said.is_some() {
                break;
            }
            self.cuts[cpu.number as usize].pop_front();
            self.left -= usize::from(copy.is_some());
            if cut.instructions == now && matches!(self.role, Role::Trunk) {
                said = match copy {
                    None => self.cut_here(cut),
                    Some(index) => self.cut(index, cut),
                };
            }
        }
        let next = match self.role {
            Role::Trunk => self.cuts[cpu.number as usize].front().map(|(_, cut)| cut.instructions),
            Role::Branch(_) => None,
        };
        cpu.asked_at = next.unwrap_or(u64::MAX);
        said
    }
}

struct Window<'a> {
    shared: Rc<RefCell<Shared>>,
    baseline: &'a Baseline,
    curve: Curve<'a>,
    /// The lock at the cut, in words.
    state: Option<String>,
    /// Is told of reports as they come.
    each: &'a mut dyn FnMut(usize, Attempt),
}

impl Window<'_> {
    /// Whether this process is done with the window.
    fn is_over(&mut self) -> Result<bool, RunError> {
        let horizon = self.baseline.scope.horizon_ticks();
        let mut shared = self.shared.borrow_mut();
        shared.ticks = self.curve.samples.len() - 1;
        for (index, report) in std::mem::take(&mut shared.done) {
            (self.each)(index, parse(&report));
        }
        if let Some(failed) = shared.failed.take() {
            return Err(failed);
        }
        Ok(match (&shared.role, shared.began) {
            (Role::Trunk, _) | (_, None) => {
                let is_cut = shared.left == 0 && shared.left_here == 0;
                // The first cut is compared for a horizon from there on; later ones lie within it.
                let from = shared.began.unwrap_or(shared.ticks);
                is_cut
                    || from + horizon >= self.baseline.samples.len()
                    || shared.ticks >= from + horizon.max(1)
            }
            (Role::Branch(_), Some(_)) if shared.closes => true,
            (Role::Branch(_), Some(began)) => {
                let goal = self.baseline.samples[began + horizon].worked_ns;
                let passed = shared.ticks - began;
                let is_done = self.curve.samples.last().is_some_and(|sample| sample.worked_ns >= goal);
                passed >= horizon && (is_done || passed >= MOST_HORIZONS * horizon)
            }
        })
    }
}

impl PassWindow for Window<'_> {
    fn pass(&mut self, stage: Stage<'_>) -> Result<(), RunError> {
        self.curve.sample(stage);
        while !self.is_over()? {
            let (locks, shared, state) = (self.curve.locks, &self.shared, &mut self.state);
            let mut stopped = |asleep| {
                let lock = lock_in_words(stage.memory, shared.borrow().vcpu, locks);
                *state = lock.map(|lock| format!("{lock}; {asleep} asleep"));
            };
            if self.curve.tick(stage, &mut stopped)?.is_break() {
                return Ok(());
            }
        }
        // The trunk has served its purpose.
        if matches!(self.shared.borrow().role, Role::Trunk) { Err(RunError::Interrupted) } else { Ok(()) }
    }
}

/// Makes a branch of `run`, which is cut `before` itself, at each of `cuts`, at most `jobs` of them at a time, and tells `each` what
/// came of it. An effect is that of all its cuts together. The process must have no other thread.
///
/// # Errors
/// A request to stop, and what the host does not allow.
pub fn branches(
    (run, image): (&Run, &Image),
    baseline: &Baseline,
    (before, cuts): (&[Cut], &[Cut]),
    (jobs, stop): (usize, &AtomicBool),
    each: &mut dyn FnMut(usize, Attempt),
) -> Result<(), RunError> {
    let (shared, ended, curve) = go((run, image), baseline, (before, cuts), (jobs, stop), (each, None));
    let mut shared = shared.borrow_mut();
    if let Role::Branch(Some(reporter)) = std::mem::take(&mut shared.role) {
        let attempt = attempt(ended, baseline, curve, shared.began);
        reporter.end(&serde_json::to_vec(&attempt).expect("an attempt is of numbers and texts"));
    }
    shared.settle(0);
    for (index, report) in std::mem::take(&mut shared.done) {
        each(index, parse(&report));
    }
    // Relaxed: a request.
    if stop.load(Ordering::Relaxed) {
        return Err(RunError::Interrupted);
    }
    match (shared.failed.take(), ended) {
        (Some(failed), _) => Err(failed),
        // That is how it ends.
        (None, Ok(_) | Err(RunError::Interrupted)) => Ok(()),
        (None, Err(error)) => Err(error),
    }
}

/// Cuts `run` itself, at each of `cuts`.
pub fn replay(
    (run, image): (&Run, &Image),
    baseline: &Baseline,
    cuts: &[Cut],
    stop: &AtomicBool,
) -> Result<Attempt, RunError> {
    let cut = |stop: &AtomicBool, looking| {
        go((run, image), baseline, (cuts, &[]), (1, stop), (&mut |_, _| (), looking))
    };
    let (shared, mut ended, curve) = cut(stop, None);
    for meeting in ended.iter_mut().flat_map(meetings) {
        look(run, image, meeting, |looking, over| cut(over, Some(looking)).1.map(|_| ()));
    }
    // Relaxed: a request.
    if stop.load(Ordering::Relaxed) {
        return Err(RunError::Interrupted);
    }
    let shared = shared.borrow();
    match shared.role {
        Role::Branch(_) => Ok(attempt(ended, baseline, curve, shared.began)),
        Role::Trunk => Ok(Attempt::Unreached),
    }
}

/// A window's samples, and the lock at the cut, in words.
type Seen = (Vec<Sample>, Option<String>);
type Gone = (Rc<RefCell<Shared>>, Result<Found, RunError>, Seen);

/// Runs until the last cut, or as the branch that it has become. The run itself is cut at `here`. `looking` has no say in it.
fn go(
    (run, image): (&Run, &Image),
    baseline: &Baseline,
    (here, copies): (&[Cut], &[Cut]),
    (jobs, stop): (usize, &AtomicBool),
    (each, looking): (&mut dyn FnMut(usize, Attempt), Option<Looking>),
) -> Gone {
    let mut of_vcpus = vec![VecDeque::new(); run.guests[0].vcpus as usize];
    let of_copies = copies.iter().zip(0..).map(|(cut, index)| (Some(index), cut));
    let mut sorted: Vec<_> = here.iter().map(|cut| (None, cut)).chain(of_copies).collect();
    sorted.sort_by_key(|(_, cut)| cut.instructions);
    for (copy, cut) in sorted {
        of_vcpus[cut.vcpu as usize].push_back((copy, *cut));
    }
    let (left, left_here) = (copies.len(), here.len());
    let shared = Shared { cuts: of_vcpus, left, left_here, jobs, ..Shared::default() };
    let shared = Rc::new(RefCell::new(shared));
    let mut window = Window {
        shared: Rc::clone(&shared),
        baseline,
        curve: Curve::new(run.our(0), stop),
        state: None,
        each,
    };
    let mut witness: Watching = shared.clone();
    if let Some(looking) = looking {
        looking.borrow_mut().other = Some(witness);
        witness = looking;
    }
    let watched = Watched { window: Some(&mut window), witness: Some(witness) };
    let ended = engines::run_watched(run, image, &Instruments::default(), stop, watched);
    (shared, ended, (window.curve.samples, window.state))
}

/// Outcome of a branch by the way in which its process ended.
fn attempt(
    ended: Result<Found, RunError>,
    baseline: &Baseline,
    (samples, state): Seen,
    began: Option<usize>,
) -> Attempt {
    let broke = |error: &RunError, explanation: String| {
        if let RunError::HostLacks(what) = error {
            return Attempt::NotCarriedOut(what.clone());
        }
        let is_stuck = matches!(error, RunError::NoProgress(_));
        Attempt::Broke(Broken { is_stuck, what: error.to_string(), explanation })
    };
    let found = match ended {
        Ok(found) => found,
        Err(error) => return broke(&error, String::new()),
    };
    for guest in &found.guests {
        if let Err(error) = &guest.result {
            let explanation = guest.explanation.as_ref().map(ToString::to_string).unwrap_or_default();
            return broke(error, explanation);
        }
    }
    let horizon = baseline.scope.horizon_ticks();
    Attempt::Held(Effect::between(&baseline.samples, &samples, began.unwrap_or(0), horizon), state)
}

/// An attempt as another process has told it.
fn parse(report: &[u8]) -> Attempt {
    serde_json::from_slice(report).unwrap_or_else(|_| {
        let what = "the simulator ended without a report: a fault of Haltkick".to_owned();
        Attempt::Broke(Broken { is_stuck: false, what, explanation: String::new() })
    })
}
