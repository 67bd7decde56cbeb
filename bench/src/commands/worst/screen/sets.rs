//! Sets of preemptions in one run: to the worst sets found so far one more preemption is added, at each of the worst instructions that
//! the run then comes to, while the vCPU is off and after it has come back. A set is shrunk to the preemptions that it needs.

use std::collections::BTreeMap;
use std::time::Duration;

use haltkick_vmm::worst::{Attempt, Baseline, Effect, Occurrence, Scope, replay, survey, survey_after};

use super::{Planned, Progress, Screen, cuts};
use crate::analysis::statistics::median;
use crate::analysis::worst::{Member, Row, Set, Situation};
use crate::commands::worst::Asked;
use crate::results::directory;
use crate::text::exit::{Exit, Failure, Result};

/// Sets to which a preemption is added.
const BEAM: usize = 8;
/// Worst instructions, each in a situation, at which it is added: at most, and at least where time is short.
const MOST_ADDED: usize = 64;
const LEAST_ADDED: usize = 6;
/// A set that costs at least this share of a larger one stands for it.
const STANDS_FOR: f64 = 0.9;

/// Loss by one preemption at an instruction in a situation.
type Singles = BTreeMap<(u64, Situation), f64>;

/// A set, as it is searched.
#[derive(Clone)]
struct Found {
    seed: u64,
    lost: f64,
    members: Vec<Planned>,
    effect: Effect,
}

impl Found {
    fn new(asked: &Asked, seed: u64, members: Vec<Planned>, effect: Effect) -> Self {
        Self { seed, lost: asked.lost(&effect, &cuts(&members)).0, members, effect }
    }
}

/// The search. Its attempts are counted with those of `screen`.
pub(super) struct Search<'s, 'a> {
    screen: &'s mut Screen<'a>,
    singles: Singles,
    scope: Scope,
    /// Time after a preemption in which the next one may come.
    after: Duration,
    baselines: BTreeMap<u64, Baseline>,
    /// Instructions at which a preemption is added to a set.
    added: usize,
}

impl<'s, 'a> Search<'s, 'a> {
    pub(super) fn new(screen: &'s mut Screen<'a>) -> Self {
        let (args, asked) = (screen.args, screen.asked);
        let mut singles: BTreeMap<_, Vec<f64>> = BTreeMap::new();
        for tried in &screen.tries.preempted {
            singles.entry((tried.rip, tried.situation)).or_default().push(tried.lost);
        }
        // As long as a preemption is followed: in the worst ones the lock stands still for twice their length.
        let after = asked.scope.horizon;
        let more = u32::from(args.preemptions - 1);
        let budget = args.budget.map(|budget| budget.0 / 2);
        let pace = screen.trying / screen.attempts.max(1) as u32;
        // Attempts come in the order of time, so a search that is cut short would try the earliest ones alone: fewer are chosen instead.
        let of_time = |budget: Duration| {
            let attempts = budget.div_duration_f64(pace.max(Duration::from_millis(1)) * 3);
            (attempts / (BEAM as f64 * f64::from(more) * 2.0)) as usize
        };
        screen.progress = Progress::start(budget);
        (screen.is_partial, screen.enough) = (screen.is_partial || screen.enough, false);
        Self {
            screen,
            singles: singles.into_iter().map(|(class, losses)| (class, median(&losses))).collect(),
            scope: Scope { horizon: asked.scope.horizon + after * more, ..asked.scope },
            after,
            baselines: BTreeMap::new(),
            added: budget.map_or(MOST_ADDED, of_time).clamp(LEAST_ADDED, MOST_ADDED),
        }
    }

    /// The worst set found of each size, from two on. `rows` name one preemption of each line, the worst line first.
    pub(super) fn run(&mut self, rows: &[Row]) -> Result<Vec<Set>> {
        let mut beam: Vec<Found> = rows.iter().take(BEAM).map(|row| self.first(row)).collect();
        let mut sets = Vec::new();
        let most = usize::from(self.screen.args.preemptions);
        for size in 2..=most {
            let mut grown = Vec::new();
            for (index, found) in beam.iter().enumerate() {
                let share = (size as f64 - 2.0 + index as f64 / beam.len() as f64) / (most as f64 - 1.0);
                let more = self.grow(found, share);
                grown.extend(self.unless_interrupted(more)?);
                if self.screen.enough {
                    break;
                }
            }
            grown.sort_by(|a, b| b.lost.total_cmp(&a.lost));
            grown.truncate(BEAM);
            let worst = self.worst_of(&grown, size);
            sets.extend(self.unless_interrupted(worst)?);
            beam = grown;
            if self.screen.enough {
                break;
            }
        }
        self.screen.progress.clear();
        Ok(sets)
    }

    /// `done`, or nothing: an interruption ends the search, and all that is known by then is told.
    fn unless_interrupted<T: Default>(&mut self, done: Result<T>) -> Result<T> {
        match done {
            Err(failure) if failure.exit == Exit::Interrupted => {
                self.screen.enough = true;
                Ok(T::default())
            }
            done => done,
        }
    }

    /// The first set of `grown`, which begins with the worst, that needs all of its preemptions: others stand for no set of this size.
    fn worst_of(&mut self, grown: &[Found], size: usize) -> Result<Option<Set>> {
        for found in grown {
            let shrunk = self.shrunk(found.clone())?;
            if shrunk.members.len() == size {
                return self.told(&shrunk).map(Some);
            }
        }
        Ok(None)
    }

    fn first(&self, row: &Row) -> Found {
        let (tried, planned) = self.screen.example(row);
        Found { seed: tried.seed, lost: tried.lost, members: vec![planned], effect: tried.effect }
    }

    fn baseline(&mut self, seed: u64) -> Result<&Baseline> {
        if !self.baselines.contains_key(&seed) {
            let asked = self.screen.asked;
            let surveyed = survey(&asked.seeded(seed), &asked.image, self.scope, &asked.stop)?;
            self.baselines.insert(seed, surveyed);
        }
        Ok(&self.baselines[&seed])
    }

    /// `found` with one more preemption, at each of the worst instructions.
    fn grow(&mut self, found: &Found, share: f64) -> Result<Vec<Found>> {
        let (asked, before) = (self.screen.asked, cuts(&found.members));
        let run = asked.seeded(found.seed);
        let after =
            survey_after((&run, &asked.image), (&before, self.after), self.scope, &asked.stop)?.occurrences;
        let chosen = chosen(&after, &self.singles, asked.kind.length(), self.added);
        let added: Vec<_> = chosen.iter().map(|at| Planned::new(at, asked.kind)).collect();
        self.baseline(found.seed)?;
        let (baseline, mut grown) = ((&self.baselines[&found.seed], self.scope), Vec::new());
        self.screen.try_each(
            &run,
            baseline,
            (&found.members, &added),
            (|_| share, None),
            |_, set, effect, _| {
                grown.push(Found::new(asked, found.seed, set.to_vec(), effect));
            },
        )?;
        self.screen.failed.take().map_or(Ok(grown), Err)
    }

    /// The set of `members` alone; `None`: a vCPU never comes to one of them, or the lock breaks.
    fn alone(&mut self, seed: u64, members: Vec<Planned>) -> Result<Option<Found>> {
        let asked = self.screen.asked;
        let baseline = self.baseline(seed)?;
        match replay((&asked.seeded(seed), &asked.image), baseline, &cuts(&members), &asked.stop)? {
            Attempt::Held(effect, _) => Ok(Some(Found::new(asked, seed, members, effect))),
            Attempt::NotCarriedOut(what) => Err(Failure::lacking(what)),
            Attempt::Broke(_) | Attempt::Unreached => Ok(None),
        }
    }

    /// The set without the preemptions that it does not need.
    fn shrunk(&mut self, mut found: Found) -> Result<Found> {
        let enough = found.lost * STANDS_FOR;
        let mut index = 0;
        while found.members.len() > 1 && index < found.members.len() {
            let mut members = found.members.clone();
            members.remove(index);
            match self.alone(found.seed, members)? {
                Some(fewer) if fewer.lost >= enough => (found, index) = (fewer, 0),
                _ => index += 1,
            }
        }
        Ok(found)
    }

    fn told(&mut self, found: &Found) -> Result<Set> {
        let mut members = Vec::new();
        for member in &found.members {
            members.push(Member {
                vcpu: member.cut.vcpu,
                place: self.screen.places.place(member.rip),
                situation: member.situation,
                alone: self.alone(found.seed, vec![*member])?.map(|alone| alone.lost),
            });
        }
        let name = format!("worst-set-of-{}.toml", found.members.len());
        let came_to = format!("{:016x}", found.effect.fingerprint);
        let text = self.screen.file(self.scope, found.seed, &found.members, came_to);
        directory::write_whole(&self.screen.output.join(&name), text)?;
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
        let at = |rip, us| {
            let at = Duration::from_micros(us);
            Occurrence { instructions: us, rip, at, ..Occurrence::default() }
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
