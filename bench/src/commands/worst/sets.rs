//! Sets of preemptions in one run: to the worst sets found so far one more preemption is added, at each of the worst lines that the
//! run then comes to. A set is shrunk to the preemptions that it needs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use haltkick_vmm::RunError;
use haltkick_vmm::worst::{
    Attempt, Baseline, Broken, Cut, Effect, Occurrence, Scope, branches, replay, survey, survey_after,
};

use super::Asked;
use super::places::Places;
use super::progress::Progress;
use crate::analysis::worst::{BrokenLock, Member, Set, Situation, Tried};
use crate::cli::WorstArgs;
use crate::results::directory;
use crate::text::exit::Result;

/// Sets to which a preemption is added.
const BEAM: usize = 8;
/// Worst lines at which it is added.
const LINES: usize = 64;
/// A set that costs at least this share of a larger one stands for it.
const STANDS_FOR: f64 = 0.9;

/// A set, as it is searched.
#[derive(Clone)]
struct Found {
    seed: u64,
    lost: f64,
    cuts: Vec<(Cut, u64, Situation)>,
    effect: Effect,
}

impl Found {
    fn only_cuts(&self) -> Vec<Cut> {
        self.cuts.iter().map(|(cut, ..)| *cut).collect()
    }
}

pub(super) struct Search<'a, 'p> {
    args: &'a WorstArgs,
    asked: &'a Asked,
    output: &'a Path,
    places: &'a mut Places<'p>,
    scope: Scope,
    /// Time after a preemption in which the next one may come.
    after: Duration,
    baselines: BTreeMap<u64, Baseline>,
    progress: Progress,
    /// Time for each set to which a preemption is added.
    share: Option<Duration>,
    is_over: bool,
    /// Not all was tried that was asked for.
    pub(super) is_partial: bool,
    pub(super) attempts: usize,
    pub(super) broken: Vec<BrokenLock>,
}

impl<'a, 'p> Search<'a, 'p> {
    pub(super) fn new(
        args: &'a WorstArgs,
        asked: &'a Asked,
        output: &'a Path,
        places: &'a mut Places<'p>,
    ) -> Self {
        // As long as a preemption is followed: in the worst ones the lock stands still for twice their length.
        let after = asked.scope.horizon;
        let more = after * u32::from(args.preemptions - 1);
        let scope = Scope { horizon: asked.scope.horizon + more, ..asked.scope };
        let progress = Progress::start(args.budget.map(|budget| budget.0 / 2));
        let parts = BEAM as u32 * u32::from(args.preemptions - 1);
        let share = args.budget.map(|budget| budget.0 / 2 / parts);
        let (baselines, broken) = (BTreeMap::new(), Vec::new());
        Self {
            args,
            asked,
            output,
            places,
            scope,
            after,
            baselines,
            progress,
            share,
            is_over: false,
            is_partial: false,
            attempts: 0,
            broken,
        }
    }

    /// The worst set found of each size, from two on. `firsts`: one preemption of each line, the worst line first.
    pub(super) fn run(&mut self, firsts: &[&Tried]) -> Result<Vec<Set>> {
        let rips: BTreeSet<u64> = firsts.iter().take(LINES).map(|tried| tried.rip).collect();
        let mut beam: Vec<Found> = firsts.iter().take(BEAM).map(|tried| self.first(tried)).collect();
        let mut sets = Vec::new();
        for size in 2..=usize::from(self.args.preemptions) {
            let mut grown = Vec::new();
            for (index, found) in beam.iter().enumerate() {
                let share = (size as f64 - 2.0 + index as f64 / beam.len() as f64)
                    / f64::from(self.args.preemptions - 1);
                match self.grow(found, &rips, share) {
                    Ok(more) => grown.extend(more),
                    Err(RunError::Interrupted) => self.is_over = true,
                    Err(error) => return Err(error.into()),
                }
                if self.is_over {
                    break;
                }
            }
            grown.sort_by(|a, b| b.lost.total_cmp(&a.lost));
            grown.truncate(BEAM);
            // A set that does not need all of its preemptions stands for no set of this size.
            for found in &grown {
                let shrunk = self.shrunk(found.clone())?;
                if shrunk.cuts.len() == size {
                    sets.push(self.told(&shrunk)?);
                    break;
                }
            }
            beam = grown;
            if self.is_over {
                break;
            }
        }
        self.progress.clear();
        Ok(sets)
    }

    fn first(&self, tried: &Tried) -> Found {
        let cut = Cut { vcpu: tried.vcpu, instructions: tried.instructions, kind: self.asked.kind };
        let cuts = vec![(cut, tried.rip, tried.situation)];
        Found { seed: tried.seed, lost: tried.lost, cuts, effect: tried.effect }
    }

    fn baseline(&mut self, seed: u64) -> std::result::Result<&Baseline, RunError> {
        if !self.baselines.contains_key(&seed) {
            let surveyed = survey(&self.asked.seeded(seed), &self.asked.image, self.scope, &self.asked.stop)?;
            self.baselines.insert(seed, surveyed);
        }
        Ok(&self.baselines[&seed])
    }

    /// `found` with one more preemption, at each of `rips` in each situation.
    fn grow(
        &mut self,
        found: &Found,
        rips: &BTreeSet<u64>,
        share: f64,
    ) -> std::result::Result<Vec<Found>, RunError> {
        let (asked, before) = (self.asked, found.only_cuts());
        let run = asked.seeded(found.seed);
        let after =
            survey_after((&run, &asked.image), (&before, self.after), self.scope, &asked.stop)?.occurrences;
        let chosen = chosen(&after, rips);
        let cuts: Vec<Cut> = chosen
            .iter()
            .map(|at| Cut { vcpu: at.vcpu, instructions: at.instructions, kind: asked.kind })
            .collect();
        self.baseline(found.seed)?;
        let baseline = &self.baselines[&found.seed];
        // Not the flag of Ctrl-C: that one must stay as it is.
        let (stop, began) = (AtomicBool::new(false), Instant::now());
        let mut is_late = false;
        let (mut grown, mut broken) = (Vec::new(), Vec::new());
        branches(
            (&run, &asked.image),
            baseline,
            (&before, &cuts),
            (self.args.jobs(), &stop),
            &mut |index, attempt| {
                self.attempts += 1;
                self.progress.tell(share, self.attempts, broken.len());
                let mut all = found.cuts.clone();
                all.push((cuts[index], chosen[index].rip, Situation::of(&chosen[index])));
                match attempt {
                    Attempt::Held(effect, _) => {
                        let only: Vec<Cut> = all.iter().map(|(cut, ..)| *cut).collect();
                        let lost = asked.lost(&effect, &only).0;
                        grown.push(Found { seed: found.seed, lost, cuts: all, effect });
                    }
                    Attempt::Broke(what) => {
                        self.is_over |= self.args.find_bugs;
                        broken.push((all, what));
                    }
                    Attempt::Unreached => {}
                }
                // Relaxed: requests.
                self.is_over |= self.progress.is_over() || asked.stop.load(Ordering::Relaxed);
                is_late = self.share.is_some_and(|share| began.elapsed() >= share);
                stop.store(self.is_over || is_late, Ordering::Relaxed);
            },
        )
        .or_else(|error| if self.is_over || is_late { Ok(()) } else { Err(error) })?;
        self.is_partial |= self.is_over || is_late;
        for (cuts, what) in broken {
            self.broke(found.seed, &cuts, &what)?;
        }
        Ok(grown)
    }

    fn broke(
        &mut self,
        seed: u64,
        cuts: &[(Cut, u64, Situation)],
        broken: &Broken,
    ) -> std::result::Result<(), RunError> {
        let name = format!("broken-set-{:03}.toml", self.broken.len() + 1);
        let Some((_, rip, situation)) = cuts.last() else { return Ok(()) };
        let place = self.places.place(*rip);
        let (what, is_stuck) = (format!("{} preemptions: {}", cuts.len(), broken.what), broken.is_stuck);
        let text = self.file(seed, cuts, broken.what.clone());
        directory::write_whole(&self.output.join(&name), text)
            .map_err(|failure| RunError::usage(failure.message))?;
        self.broken.push(BrokenLock { place, situation: *situation, what, is_stuck, replay: name });
        Ok(())
    }

    fn file(&mut self, seed: u64, cuts: &[(Cut, u64, Situation)], came_to: String) -> String {
        let places: Vec<_> = cuts.iter().map(|(cut, rip, _)| (*cut, self.places.place(*rip))).collect();
        let cuts: Vec<_> = places.iter().map(|(cut, place)| (*cut, place)).collect();
        self.asked.file(self.scope, seed, &cuts, came_to).text()
    }

    /// Effect of `cuts` alone; `None`: a vCPU never comes to one of them, or the lock breaks.
    fn effect(&mut self, seed: u64, cuts: &[Cut]) -> std::result::Result<Option<Effect>, RunError> {
        let asked = self.asked;
        let baseline = self.baseline(seed)?;
        Ok(match replay((&asked.seeded(seed), &asked.image), baseline, cuts, &asked.stop)? {
            Attempt::Held(effect, _) => Some(effect),
            Attempt::Broke(_) | Attempt::Unreached => None,
        })
    }

    /// The set without the preemptions that it does not need.
    fn shrunk(&mut self, mut found: Found) -> std::result::Result<Found, RunError> {
        let enough = found.lost * STANDS_FOR;
        let mut index = 0;
        while found.cuts.len() > 1 && index < found.cuts.len() {
            let mut fewer = found.clone();
            fewer.cuts.remove(index);
            let cuts = fewer.only_cuts();
            match self.effect(found.seed, &cuts)? {
                Some(effect) if self.asked.lost(&effect, &cuts).0 >= enough => {
                    (fewer.lost, fewer.effect) = (self.asked.lost(&effect, &cuts).0, effect);
                    (found, index) = (fewer, 0);
                }
                _ => index += 1,
            }
        }
        Ok(found)
    }

    fn told(&mut self, found: &Found) -> Result<Set> {
        let mut members = Vec::new();
        for (cut, rip, situation) in &found.cuts {
            let effect = self.effect(found.seed, &[*cut])?;
            let alone = effect.map(|effect| self.asked.lost(&effect, &[*cut]).0);
            members.push(Member {
                vcpu: cut.vcpu,
                place: self.places.place(*rip),
                situation: *situation,
                alone,
            });
        }
        let name = format!("worst-set-of-{}.toml", found.cuts.len());
        let text = self.file(found.seed, &found.cuts, format!("{:016x}", found.effect.fingerprint));
        directory::write_whole(&self.output.join(&name), text)?;
        Ok(Set { lost: found.lost, members, replay: name })
    }
}

/// One occurrence of each of `rips` in each situation: that in the middle.
fn chosen(occurrences: &[Occurrence], rips: &BTreeSet<u64>) -> Vec<Occurrence> {
    let mut classes: BTreeMap<(u64, Situation), Vec<&Occurrence>> = BTreeMap::new();
    for occurrence in occurrences.iter().filter(|at| rips.contains(&at.rip)) {
        classes.entry((occurrence.rip, Situation::of(occurrence))).or_default().push(occurrence);
    }
    classes.into_values().map(|class| *class[class.len() / 2]).collect()
}
