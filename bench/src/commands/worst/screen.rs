//! All instructions of the lock, in each situation, with one seed after the other.

mod sets;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use haltkick_vmm::worst::{Attempt, Baseline, Broken, Cut, Kind, Occurrence, Scope, branches, survey};
use haltkick_vmm::{Run, RunError};

use super::places::Places;
use super::{Asked, came_to};
use crate::analysis::worst::{
    BrokenLock, Class, Coverage, Heat, Planned, Row, Situation, SourcePlace, Tried, Tries, Worst,
};
use crate::cli::WorstArgs;
use crate::results::directory;
use crate::results::preemption::{Preemption, Then};
use crate::text::exit::{Failure, Result};
use crate::text::output;
use crate::text::quantity::patience;

use sets::Search;

/// Seeds that are tried where no number is asked for, and where these leave it open whether any line costs more than the noise. More than
/// two looks at the same data would find something by chance.
const SAMPLES: [u32; 2] = [8, 40];
/// More broken attempts than these are counted, and not kept.
const MOST_BROKEN: usize = 100;

fn cuts(planned: &[Planned]) -> Vec<Cut> {
    planned.iter().map(|planned| planned.cut).collect()
}

struct Screen<'a> {
    args: &'a WorstArgs,
    asked: &'a Asked,
    output: &'a Path,
    places: Places<'a>,
    tries: Tries,
    broken: Vec<BrokenLock>,
    /// Seeds to be tried.
    samples: u32,
    attempts: usize,
    /// Time that attempts took.
    trying: Duration,
    /// Not all was tried that was asked for, although no seed was left out.
    is_partial: bool,
    progress: Progress,
    /// Ends the simulation early: the budget is used up, or what was looked for is found.
    enough: bool,
    failed: Option<Failure>,
}

/// The answer, a map of the lock's instructions, and whether Ctrl-C ended the search.
pub(super) fn screen(args: &WorstArgs, asked: &Asked, output: &Path) -> Result<(Worst, Vec<Heat>, bool)> {
    let budget = args.budget.map(|budget| if args.preemptions > 1 { budget.0 / 2 } else { budget.0 });
    let mut screen = Screen {
        args,
        asked,
        output,
        places: Places::new(&asked.image, asked.run.our(0)),
        tries: Tries::default(),
        broken: Vec::new(),
        samples: args.samples.unwrap_or(SAMPLES[0]),
        attempts: 0,
        trying: Duration::ZERO,
        is_partial: false,
        progress: Progress::start(budget),
        enough: false,
        failed: None,
    };
    let first = asked.run.guests[0].seed;
    let mut number = 0;
    while number < screen.samples {
        match screen.seed(first.wrapping_add(u64::from(number)), number) {
            Ok(()) => {}
            // Relaxed: a request.
            Err(RunError::Interrupted) if asked.stop.load(Ordering::Relaxed) => break,
            Err(error) => {
                let failure = Failure::from(error);
                let message = format!("seed {number}, without a preemption: {}", failure.message);
                return Err(Failure { message, ..failure });
            }
        }
        if let Some(failed) = screen.failed.take() {
            return Err(failed);
        }
        if screen.enough {
            break;
        }
        number += 1;
        if number == SAMPLES[0] && args.samples.is_none() && !args.find_bugs && screen.is_in_doubt() {
            screen.samples = SAMPLES[1];
        }
    }
    screen.progress.clear();
    let mut map = screen.places.map(&screen.tries.reached);
    screen.tries.heat(&mut map);
    let was_enough = screen.enough;
    // Relaxed: a request, perhaps while sets were searched.
    let is_interrupted = || !was_enough && asked.stop.load(Ordering::Relaxed);
    let answer = screen.answer(&map, !is_interrupted())?;
    Ok((answer, map, is_interrupted()))
}

impl Screen<'_> {
    /// Tries each instruction in each situation once, or as many as the time allows where seeds differ in their contexts.
    fn seed(&mut self, seed: u64, number: u32) -> std::result::Result<(), RunError> {
        let began = Instant::now();
        let share = self.progress.left().filter(|_| self.args.find_bugs);
        let share = share.map(|left| left / (self.samples - number));
        let asked = self.asked;
        let run = asked.seeded(seed);
        let baseline = survey(&run, &asked.image, asked.scope, &asked.stop)?;
        self.note(&baseline);
        let mut planned = plan(&baseline, asked.kind, seed, self.args.find_bugs);
        if let Some(share) = share {
            let most = self.attempts_in(share.saturating_sub(began.elapsed()));
            self.is_partial |= planned.len() > most;
            planned = thin(planned, most, seed);
        }
        let started = Instant::now();
        let (cells, samples) = (planned.len() as f64, f64::from(self.samples));
        let part = |done: usize| (f64::from(number) + done as f64 / cells) / samples;
        let how = (part, share.map(|share| began + share));
        let ended = self.try_each(&run, (&baseline, asked.scope), (&[], &planned), how, Self::held);
        self.trying += started.elapsed();
        ended
    }

    /// Tries `run` with one more of `planned` each time, all in addition to those `before`, until enough is known or this moment has come.
    /// Tells `held` of each attempt in which the lock did as it should, and shows the part of all that is then done.
    fn try_each(
        &mut self,
        run: &Run,
        (baseline, scope): (&Baseline, Scope),
        (before, planned): (&[Planned], &[Planned]),
        (part, until): (impl Fn(usize) -> f64, Option<Instant>),
        mut held: impl FnMut(&mut Self, Tried),
    ) -> std::result::Result<(), RunError> {
        let (asked, seed) = (self.asked, run.guests[0].seed);
        // Not the flag of Ctrl-C: that one must stay as it is.
        let stop = AtomicBool::new(false);
        let how = (self.args.jobs(), &stop);
        let (mut done, mut is_late) = (0, false);
        let (before_all, each) = (cuts(before), cuts(planned));
        let cuts = (&*before_all, &*each);
        let ended = branches((run, &asked.image), baseline, cuts, how, &mut |index, attempt| {
            done += 1;
            self.attempts += 1;
            let members = [before, &planned[index..=index]].concat();
            match attempt {
                Attempt::Held(effect, state) => {
                    let lost = asked.lost(&effect, &self::cuts(&members));
                    held(self, Tried { seed, members, lost, effect, state });
                }
                Attempt::Broke(broken) => self.broke((scope, seed), &members, &broken),
                Attempt::NotCarriedOut(what) => self.failed = Some(Failure::lacking(what)),
                Attempt::Unreached => {}
            }
            self.progress.tell(part(done), self.attempts, self.broken.len());
            self.enough |= self.progress.left() == Some(Duration::ZERO) || self.failed.is_some();
            is_late = until.is_some_and(|until| Instant::now() >= until);
            // Relaxed: requests.
            if self.enough || is_late || asked.stop.load(Ordering::Relaxed) {
                stop.store(true, Ordering::Relaxed);
            }
        });
        self.is_partial |= is_late;
        ended.or_else(|error| if is_late || self.enough { Ok(()) } else { Err(error) })
    }

    /// Whether no line costs more than the noise, and one may.
    fn is_in_doubt(&mut self) -> bool {
        let rows = self.rows();
        rows.iter().any(|row| row.in_doubt) && !rows.iter().any(|row| row.beyond_noise)
    }

    fn rows(&mut self) -> Vec<Row> {
        self.tries.rows(&mut |rip| self.places.place(rip))
    }

    /// Attempts that fit into `time`, by those that there were.
    fn attempts_in(&self, time: Duration) -> usize {
        const UNKNOWN: Duration = Duration::from_millis(50);
        let pace = self.trying.checked_div(self.attempts as u32).unwrap_or(UNKNOWN);
        (time.div_duration_f64(pace.max(Duration::from_micros(1))) as usize).max(1)
    }

    /// Notes what a run without preemptions has shown.
    fn note(&mut self, baseline: &Baseline) {
        self.tries.seeds += 1;
        self.tries.reached.extend(&baseline.reached);
        self.places.note(&baseline.callers);
        for (rip, share) in &baseline.exposure {
            *self.tries.exposure.entry(*rip).or_default() += share;
        }
        for occurrence in &baseline.occurrences {
            *self.tries.seen.entry((occurrence.rip, Situation::of(occurrence))).or_default() += 1;
        }
    }

    fn held(&mut self, tried: Tried) {
        let Planned { class, cut, .. } = tried.members[0];
        if cut.kind != self.asked.kind {
            self.tries.controls.insert((class, tried.seed), tried.lost);
        } else if !cut.closes {
            self.tries.preempted.push(tried);
        }
    }

    /// `planned`, all in one run, broke the lock.
    fn broke(&mut self, of: (Scope, u64), planned: &[Planned], broken: &Broken) {
        self.enough |= self.args.find_bugs;
        let Some(last) = planned.last().filter(|_| self.broken.len() < MOST_BROKEN) else { return };
        let replay = format!("broken-{:03}.toml", self.broken.len() + 1);
        let written = self.write(&replay, of, planned, broken.what.clone());
        self.failed = self.failed.take().or(written.err());
        let what = match planned.len() {
            1 => broken.what.clone(),
            many => format!("{many} preemptions: {}", broken.what),
        };
        let (rip, situation) = last.class;
        let (place, is_stuck) = (self.places.place(rip), broken.is_stuck);
        self.broken.push(BrokenLock { place, situation, what, is_stuck, replay });
    }

    /// Writes the file that does `planned` again.
    fn write(
        &mut self,
        name: &str,
        (scope, seed): (Scope, u64),
        planned: &[Planned],
        came_to: String,
    ) -> Result<()> {
        let then = |it: &Planned| {
            let SourcePlace { function, line, instruction, .. } = self.places.place(it.class.0);
            let place = format!("{function} ({}): {instruction}", line.as_deref().unwrap_or("no line"));
            Then { place, vcpu: it.cut.vcpu, instructions: it.cut.instructions }
        };
        let mut then: Vec<Then> = planned.iter().map(then).collect();
        let (Then { place, vcpu, instructions }, Cut { kind, closes, .. }) = (then.remove(0), planned[0].cut);
        let file = Preemption {
            place,
            vcpu,
            instructions,
            for_ns: kind.length().as_nanos() as u64,
            takes_pcpu: matches!(kind, Kind::Taken(_)),
            closes,
            span_ns: scope.span.as_nanos() as u64,
            horizon_ns: scope.horizon.as_nanos() as u64,
            seed,
            came_to,
            settings: Preemption::settings_of(&self.asked.context(seed).0),
            then,
            ..Preemption::new(&self.asked.image)
        };
        directory::write_whole(&self.output.join(name), file.text())
    }

    /// Writes the file that does an attempt again.
    fn write_tried(&mut self, name: &str, scope: Scope, tried: &Tried) -> Result<()> {
        self.write(name, (scope, tried.seed), &tried.members, came_to(&tried.effect))
    }

    fn answer(mut self, map: &[Heat], is_complete: bool) -> Result<Worst> {
        let mut rows = self.rows();
        for row in rows.iter_mut().take(self.args.top) {
            let name = format!("worst-{:03}.toml", row.rank);
            self.write_tried(&name, self.asked.scope, &row.example)?;
            row.replay = Some(name);
        }
        let is_found = self.args.find_bugs && !self.broken.is_empty();
        let has_sets = self.args.preemptions > 1 && is_complete && !is_found;
        let sets = if has_sets { Search::new(&mut self).run(&rows)? } else { vec![] };
        let coverage = self.coverage(map);
        let (asked, guest) = (self.asked, &self.asked.run.guests[0]);
        let machine = asked.contexts[0].0.given("machine").map(|machine| machine.to_string());
        Ok(Worst {
            schema: "haltkick.worst".into(),
            schema_version: 1,
            lock: asked.run.our(0).ours.lock.clone(),
            pv: guest.pv,
            machine: machine.unwrap_or_default(),
            pcpus: asked.run.cpus.len(),
            vcpus: guest.vcpus,
            for_us: asked.kind.length().as_secs_f64() * 1e6,
            takes_pcpu: matches!(asked.kind, Kind::Taken(_)),
            horizon_us: asked.scope.horizon.as_secs_f64() * 1e6,
            seeds: self.tries.seeds,
            seeds_asked: self.samples,
            is_complete: is_complete && !self.enough && !self.is_partial,
            attempts: self.attempts,
            placebo: self.tries.placebo(),
            expected: rows.iter().map(|row| row.expected).sum(),
            coverage,
            broken: self.broken,
            sets,
            rows,
        })
    }

    fn coverage(&self, map: &[Heat]) -> Coverage {
        let tried: BTreeSet<_> = self.tries.preempted.iter().map(|tried| tried.members[0].class).collect();
        let points: BTreeSet<u64> = self.tries.seen.keys().map(|(rip, _)| *rip).collect();
        Coverage {
            instructions: map.len(),
            executed: map.iter().filter(|heat| heat.is_reached).count(),
            points: points.len(),
            situations: self.tries.seen.len(),
            tried: tried.len(),
            unreached: self.places.unreached_lines(map),
        }
    }
}

/// One occurrence of each instruction in each situation, chosen by the seed, and again with an exit alone. If `closes`, not that, but so
/// that the window closes at once.
fn plan(baseline: &Baseline, kind: Kind, seed: u64, closes: bool) -> Vec<Planned> {
    let mut classes: BTreeMap<Class, Vec<Occurrence>> = BTreeMap::new();
    for occurrence in &baseline.occurrences {
        classes.entry((occurrence.rip, Situation::of(occurrence))).or_default().push(*occurrence);
    }
    let mut planned = Vec::new();
    for ((rip, situation), occurrences) in classes {
        // Fibonacci hashing: equal classes of two seeds are at different moments.
        let mixed = (rip ^ seed << 40 ^ u64::from(situation.waiting)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let occurrence = occurrences[(mixed >> 32) as usize % occurrences.len()];
        let as_asked = Planned::new(&occurrence, kind);
        planned.push(as_asked);
        if closes {
            planned.push(Planned { cut: Cut { closes, ..as_asked.cut }, ..as_asked });
        }
        // The control.
        if !closes && kind != Kind::Exit {
            planned.push(Planned::new(&occurrence, Kind::Exit));
        }
    }
    planned
}

/// At most `most` of `planned`, those before a write first: a vCPU that is off between what it has read and what it writes by that is what
/// breaks locks.
fn thin(mut planned: Vec<Planned>, most: usize, seed: u64) -> Vec<Planned> {
    let mixed = |it: &Planned| (it.cut.instructions ^ seed << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    planned.sort_by_key(|it| (!it.writes, mixed(it)));
    planned.truncate(most);
    planned
}

const REDRAWS_EVERY: Duration = Duration::from_millis(300);
const SAYS_EVERY: Duration = Duration::from_secs(15);

/// How far the command is, on stderr: a line that is redrawn on a terminal, a line now and then elsewhere.
struct Progress {
    started: Instant,
    said: Instant,
    budget: Option<Duration>,
    on_terminal: bool,
}

impl Progress {
    fn start(budget: Option<Duration>) -> Self {
        let now = Instant::now();
        let on_terminal = output::is_watched();
        Self { started: now, said: now, budget, on_terminal }
    }

    fn left(&self) -> Option<Duration> {
        self.budget.map(|budget| budget.saturating_sub(self.started.elapsed()))
    }

    /// This share of all is done.
    fn tell(&mut self, share: f64, attempts: usize, broken: usize) {
        let every = if self.on_terminal { REDRAWS_EVERY } else { SAYS_EVERY };
        if self.said.elapsed() < every || share <= 0.0 {
            return;
        }
        self.said = Instant::now();
        let left = self.started.elapsed().as_secs_f64() * (1.0 - share) / share;
        let left = self.left().map_or(left, |most| left.min(most.as_secs_f64()));
        let mut line = format!(
            "{:.0} % of the preemptions, {attempts} attempts, about {} left",
            share * 100.0,
            patience(left)
        );
        if broken > 0 {
            line += &format!("; {broken} broke the lock");
        }
        if self.on_terminal { output::redraw(&line) } else { output::talk(&line) }
    }

    /// Makes room for other lines.
    fn clear(&self) {
        if self.on_terminal {
            output::redraw("");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_before_a_write_are_tried_first() {
        let planned = |instructions: u64| {
            let (rip, writes) = (instructions, instructions.is_multiple_of(10));
            let occurrence = Occurrence { instructions, rip, writes, ..Occurrence::default() };
            Planned::new(&occurrence, Kind::Exit)
        };
        let few = thin((0..100).map(planned).collect(), 12, 7);
        let writes = few.iter().filter(|it| it.writes).count();
        assert_eq!((few.len(), writes), (12, 10));
        let other = thin((0..100).map(planned).collect(), 12, 8);
        let instants = |planned: &[Planned]| planned.iter().map(|it| it.cut.instructions).collect::<Vec<_>>();
        assert_ne!(instants(&few)[10..], instants(&other)[10..], "another seed tries other moments");
    }
}
