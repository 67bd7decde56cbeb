//! Sets of preemptions in one run: to the worst sets found so far one more preemption is added, at each of the worst instructions that
//! the run then comes to, while the vCPU is off and after it has come back. A set counts if it needs all of its preemptions.

use std::collections::BTreeMap;
use std::time::Duration;

use haltkick_vmm::worst::{Attempt, Baseline, Occurrence, Scope, replay, survey, survey_after};

use super::{Progress, Screen, cuts};
use crate::analysis::statistics::median;
use crate::analysis::worst::{Class, Member, Planned, Row, Set, Situation, Tried};
use crate::text::exit::{Exit, Failure, Result};

/// Sets to which a preemption is added.
const BEAM: usize = 8;
/// Worst instructions, each in a situation, at which it is added: at most, and at least where time is short.
const MOST_ADDED: usize = 64;
const LEAST_ADDED: usize = 6;
/// A set that costs at least this share of a larger one stands for it.
const STANDS_FOR: f64 = 0.9;

/// Loss by one preemption.
type Singles = BTreeMap<Class, f64>;

/// The search. Its attempts are counted with those of `screen`.
pub(super) struct Search<'s, 'a> {
    screen: &'s mut Screen<'a>,
    singles: Singles,
    scope: Scope,
    baselines: BTreeMap<u64, Baseline>,
    /// Instructions at which a preemption is added to a set.
    added: usize,
}

impl<'s, 'a> Search<'s, 'a> {
    pub(super) fn new(screen: &'s mut Screen<'a>) -> Self {
        let (args, asked) = (screen.args, screen.asked);
        let mut singles: BTreeMap<_, Vec<f64>> = BTreeMap::new();
        for tried in &screen.tries.preempted {
            singles.entry(tried.members[0].class).or_default().push(tried.lost.sum());
        }
        let more = u32::from(args.preemptions - 1);
        let budget = args.budget.map(|budget| budget.0 / 2);
        // Attempts come in the order of time, so a search that is cut short would try the earliest ones alone: fewer are chosen instead.
        let of_time = |budget| screen.attempts_in(budget) / (3 * 2 * BEAM * more as usize);
        let added = budget.map_or(MOST_ADDED, of_time).clamp(LEAST_ADDED, MOST_ADDED);
        screen.progress = Progress::start(budget);
        (screen.is_partial, screen.enough) = (screen.is_partial || screen.enough, false);
        Self {
            screen,
            singles: singles.into_iter().map(|(class, losses)| (class, median(&losses))).collect(),
            scope: Scope { horizon: asked.scope.horizon * (1 + more), ..asked.scope },
            baselines: BTreeMap::new(),
            added,
        }
    }

    /// The worst set found of each size, from two on. `rows` name one preemption of each line, the worst line first.
    pub(super) fn run(&mut self, rows: &[Row]) -> Result<Vec<Set>> {
        let mut sets = Vec::new();
        let ended = self.search(rows, &mut sets);
        self.screen.progress.clear();
        match ended {
            // All that is known by then is told.
            Err(failure) if failure.exit == Exit::Interrupted => self.screen.enough = true,
            ended => ended?,
        }
        Ok(sets)
    }

    fn search(&mut self, rows: &[Row], sets: &mut Vec<Set>) -> Result<()> {
        let mut beam: Vec<Tried> = rows.iter().take(BEAM).map(|row| row.example.clone()).collect();
        let most = usize::from(self.screen.args.preemptions);
        for size in 2..=most {
            let mut grown = Vec::new();
            for (index, found) in beam.iter().enumerate() {
                let share = (size as f64 - 2.0 + index as f64 / beam.len() as f64) / (most as f64 - 1.0);
                grown.extend(self.grow(found, share)?);
                if self.screen.enough {
                    break;
                }
            }
            grown.sort_by(|a, b| b.lost.sum().total_cmp(&a.lost.sum()));
            grown.truncate(BEAM);
            sets.extend(self.worst_of(&grown)?);
            beam = grown;
            if self.screen.enough {
                break;
            }
        }
        Ok(())
    }

    /// The first set of `grown`, which begins with the worst, that needs all of its preemptions: others stand for no set of this size.
    fn worst_of(&mut self, grown: &[Tried]) -> Result<Option<Set>> {
        for found in grown {
            if self.needs_all(found)? {
                return self.told(found).map(Some);
            }
        }
        Ok(None)
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
    fn grow(&mut self, found: &Tried, share: f64) -> Result<Vec<Tried>> {
        let (asked, before) = (self.screen.asked, cuts(&found.members));
        let run = asked.seeded(found.seed);
        // The next one comes as long as a preemption is followed: in the worst ones the lock stands still for twice their length.
        let before = (&*before, asked.scope.horizon);
        let after = survey_after((&run, &asked.image), before, self.scope, &asked.stop)?.occurrences;
        let chosen = chosen(&after, &self.singles, asked.kind.length(), self.added);
        let added: Vec<_> = chosen.iter().map(|at| Planned::new(at, asked.kind)).collect();
        self.baseline(found.seed)?;
        let (baseline, mut grown) = ((&self.baselines[&found.seed], self.scope), Vec::new());
        let how = (|_: usize| share, None);
        self.screen.try_each(&run, baseline, (&found.members, &added), how, |_, set| grown.push(set))?;
        self.screen.failed.take().map_or(Ok(grown), Err)
    }

    /// Loss by `members` alone; `None`: a vCPU never comes to one of them, or the lock breaks.
    fn alone(&mut self, seed: u64, members: &[Planned]) -> Result<Option<f64>> {
        let (asked, cuts) = (self.screen.asked, cuts(members));
        let baseline = self.baseline(seed)?;
        match replay((&asked.seeded(seed), &asked.image), baseline, &cuts, &asked.stop)? {
            Attempt::Held(effect, _) => Ok(Some(asked.lost(&effect, &cuts).sum())),
            Attempt::NotCarriedOut(what) => Err(Failure::lacking(what)),
            Attempt::Broke(_) | Attempt::Unreached => Ok(None),
        }
    }

    /// Whether no set that lacks one of its preemptions stands for it.
    fn needs_all(&mut self, found: &Tried) -> Result<bool> {
        let enough = found.lost.sum() * STANDS_FOR;
        for index in 0..found.members.len() {
            let mut others = found.members.clone();
            others.remove(index);
            if self.alone(found.seed, &others)?.is_some_and(|lost| lost >= enough) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn told(&mut self, found: &Tried) -> Result<Set> {
        let mut members = Vec::new();
        for member in &found.members {
            let (rip, situation) = member.class;
            members.push(Member {
                vcpu: member.cut.vcpu,
                place: self.screen.places.place(rip),
                situation,
                alone: self.alone(found.seed, &[*member])?,
            });
        }
        let name = format!("worst-set-of-{}.toml", found.members.len());
        self.screen.write_tried(&name, self.scope, found)?;
        Ok(Set { lost: found.lost.sum(), members, replay: name })
    }
}

/// One occurrence of each of the `most` worst instructions in each situation, while the last preempted vCPU is off for `off` and after
/// that: the one in the middle.
fn chosen(occurrences: &[Occurrence], singles: &Singles, off: Duration, most: usize) -> Vec<Occurrence> {
    let Some(began) = occurrences.first().map(|first| first.at) else { return Vec::new() };
    let mut classes: BTreeMap<Class, [Vec<&Occurrence>; 2]> = BTreeMap::new();
    for occurrence in occurrences {
        let class = classes.entry((occurrence.rip, Situation::of(occurrence))).or_default();
        class[usize::from(occurrence.at >= began + off)].push(occurrence);
    }
    let loss = |class: &Class| singles.get(class).copied().unwrap_or(0.0);
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
