//! Sets of preemptions in one run: to the worst sets found so far one more preemption is added, at each of the worst instructions that
//! the run then comes to, while the vCPU is off and after it has come back. A set is shrunk to the preemptions that it needs.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use haltkick_vmm::RunError;
use haltkick_vmm::worst::{
    Attempt, Baseline, Broken, Cut, Effect, Occurrence, Scope, branches, replay, survey, survey_after,
};

use super::asked::Asked;
use super::places::Places;
use super::progress::Progress;
use crate::analysis::worst::{BrokenLock, Member, Set, Situation, Tried};
use crate::cli::WorstArgs;
use crate::results::directory;
use crate::text::exit::{Exit, Result};

/// Sets to which a preemption is added.
const BEAM: usize = 8;
/// Worst instructions, each in a situation, at which it is added: at most, and at least where time is short.
const MOST_ADDED: usize = 64;
const LEAST_ADDED: usize = 6;
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

/// Loss by one preemption at an instruction in a situation.
pub(super) type Singles = BTreeMap<(u64, Situation), f64>;

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
    /// Instructions at which a preemption is added to a set.
    added: usize,
    is_over: bool,
    /// Not all was tried that was asked for.
    pub(super) is_partial: bool,
    pub(super) attempts: usize,
    pub(super) broken: Vec<BrokenLock>,
}

impl<'a, 'p> Search<'a, 'p> {
    /// `pace`: time that an attempt takes.
    pub(super) fn new(
        args: &'a WorstArgs,
        asked: &'a Asked,
        output: &'a Path,
        places: &'a mut Places<'p>,
        pace: Duration,
    ) -> Self {
        // As long as a preemption is followed: in the worst ones the lock stands still for twice their length.
        let after = asked.scope.horizon;
        let more = u32::from(args.preemptions - 1);
        let budget = args.budget.map(|budget| budget.0 / 2);
        // Attempts come in the order of time, so a search that is cut short would try the earliest ones alone: fewer are chosen instead.
        let of_time = |budget: Duration| {
            let attempts = budget.div_duration_f64(pace.max(Duration::from_millis(1)) * 3);
            (attempts / (BEAM as f64 * f64::from(more) * 2.0)) as usize
        };
        Self {
            args,
            asked,
            output,
            places,
            scope: Scope { horizon: asked.scope.horizon + after * more, ..asked.scope },
            after,
            baselines: BTreeMap::new(),
            progress: Progress::start(budget),
            added: budget.map_or(MOST_ADDED, of_time).clamp(LEAST_ADDED, MOST_ADDED),
            is_over: false,
            is_partial: false,
            attempts: 0,
            broken: Vec::new(),
        }
    }

    /// The worst set found of each size, from two on. `firsts`: one preemption of each line, the worst line first.
    pub(super) fn run(&mut self, firsts: &[&Tried], singles: &Singles) -> Result<Vec<Set>> {
        let mut beam: Vec<Found> = firsts.iter().take(BEAM).map(|tried| self.first(tried)).collect();
        let mut sets = Vec::new();
        for size in 2..=usize::from(self.args.preemptions) {
            let mut grown = self.grow_all(&beam, singles, size)?;
            grown.sort_by(|a, b| b.lost.total_cmp(&a.lost));
            grown.truncate(BEAM);
            match self.worst_of(&grown, size) {
                Ok(set) => sets.extend(set),
                // All that is known by then is told.
                Err(failure) if failure.exit == Exit::Interrupted => {
                    (self.is_over, self.is_partial) = (true, true)
                }
                Err(failure) => return Err(failure),
            }
            beam = grown;
            if self.is_over {
                break;
            }
        }
        self.progress.clear();
        Ok(sets)
    }

    /// The first set of `grown`, which begins with the worst, that needs all of its preemptions: others stand for no set of this size.
    fn worst_of(&mut self, grown: &[Found], size: usize) -> Result<Option<Set>> {
        for found in grown {
            let shrunk = self.shrunk(found.clone())?;
            if shrunk.cuts.len() == size {
                return self.told(&shrunk).map(Some);
            }
        }
        Ok(None)
    }

    /// The sets of `beam` with one more preemption each.
    fn grow_all(&mut self, beam: &[Found], singles: &Singles, size: usize) -> Result<Vec<Found>> {
        let mut grown = Vec::new();
        for (index, found) in beam.iter().enumerate() {
            let share =
                (size as f64 - 2.0 + index as f64 / beam.len() as f64) / f64::from(self.args.preemptions - 1);
            match self.grow(found, singles, share) {
                Ok(more) => grown.extend(more),
                Err(RunError::Interrupted) => (self.is_over, self.is_partial) = (true, true),
                Err(error) => return Err(error.into()),
            }
            if self.is_over {
                break;
            }
        }
        Ok(grown)
    }

    fn first(&self, tried: &Tried) -> Found {
        let cut = Cut::new(tried.vcpu, tried.instructions, self.asked.kind);
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

    /// `found` with one more preemption, at each of the worst instructions.
    fn grow(
        &mut self,
        found: &Found,
        singles: &Singles,
        share: f64,
    ) -> std::result::Result<Vec<Found>, RunError> {
        let (asked, before) = (self.asked, found.only_cuts());
        let run = asked.seeded(found.seed);
        let after =
            survey_after((&run, &asked.image), (&before, self.after), self.scope, &asked.stop)?.occurrences;
        let chosen = chosen(&after, singles, asked.kind.length(), self.added);
        let cuts: Vec<Cut> = chosen.iter().map(|at| Cut::new(at.vcpu, at.instructions, asked.kind)).collect();
        self.baseline(found.seed)?;
        let baseline = &self.baselines[&found.seed];
        // Not the flag of Ctrl-C: that one must stay as it is.
        let stop = AtomicBool::new(false);
        let (mut grown, mut broken, mut lacking) = (Vec::new(), Vec::new(), None);
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
                    Attempt::NotCarriedOut(what) => lacking = Some(RunError::HostLacks(what)),
                    Attempt::Unreached => {}
                }
                // Relaxed: requests.
                self.is_over |= self.progress.is_over() || asked.stop.load(Ordering::Relaxed);
                stop.store(self.is_over, Ordering::Relaxed);
            },
        )
        .or_else(|error| if self.is_over { Ok(()) } else { Err(error) })?;
        if let Some(lacking) = lacking {
            return Err(lacking);
        }
        self.is_partial |= self.is_over;
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
            Attempt::NotCarriedOut(what) => return Err(RunError::HostLacks(what)),
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

/// One occurrence of each of the `most` worst instructions in each situation, while the last preempted vCPU is off for `off` and after
/// that: the one in the middle.
fn chosen(occurrences: &[Occurrence], singles: &Singles, off: Duration, most: usize) -> Vec<Occurrence> {
    let Some(began) = occurrences.first().map(|first| first.at) else { return Vec::new() };
    let mut classes: BTreeMap<(u64, Situation), [Vec<&Occurrence>; 2]> = BTreeMap::new();
    for occurrence in occurrences {
        let class = classes.entry((occurrence.rip, Situation::of(occurrence))).or_default();
        class[usize::from(occurrence.at >= began + off)].push(occurrence);
    }
    let loss = |class: &(u64, Situation)| singles.get(class).copied().unwrap_or(0.0);
    let mut ranked: Vec<_> = classes.into_iter().collect();
    ranked.sort_by(|a, b| loss(&b.0).total_cmp(&loss(&a.0)));
    let halves = ranked.into_iter().take(most).flat_map(|(_, halves)| halves);
    halves.filter(|half| !half.is_empty()).map(|half| *half[half.len() / 2]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_instructions_are_chosen_during_the_absence_and_after_it() {
        let at = |rip, us| Occurrence {
            vcpu: 0,
            instructions: us,
            rip,
            at: Duration::from_micros(us),
            waiting: 0,
            out: 0,
            holds: false,
            writes: false,
        };
        let all = [at(1, 100), at(2, 101), at(3, 102), at(2, 150), at(2, 180), at(2, 201), at(3, 300)];
        let situation = Situation::of(&all[0]);
        let singles = [((1, situation), 0.1), ((2, situation), 5.0), ((3, situation), 0.2)].into();
        let times = |most| {
            let chosen = chosen(&all, &singles, Duration::from_micros(100), most);
            chosen.iter().map(|it| it.instructions).collect::<Vec<_>>()
        };
        assert_eq!(times(1), [150, 201]);
        assert_eq!(times(2), [150, 201, 102, 300]);
        assert!(chosen(&[], &singles, Duration::ZERO, 3).is_empty());
    }
}
