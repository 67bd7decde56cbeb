//! The measuring part of an experiment: blocks of cells, each recorded before the next begins.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use haltkick_vmm::{Found, Run, RunError};

use super::ahead::{Ahead, Made, Ordered};
use super::calibrate::Calibrations;
use super::console::RunResult;
use super::engine::{self, Engine};
use super::fill::{Origin, records};
use super::linux::{self, Versions};
use super::progress::{Planned, Position, Progress};
use crate::analysis::consistency::{self, Spoilt};
use crate::analysis::summary::Summary;
use crate::experiment::plan::{Cell, Plan};
use crate::host::identity::Host;
use crate::host::neighbours;
use crate::host::noise::{self, Watcher};
use crate::record::Record;
use crate::record::figures::THROUGHPUT;
use crate::record::place::{BESIDE, Place, Role};
use crate::results::directory::{Directory, lines};
use crate::results::manifest::FailedRun;
use crate::text::exit::{Exit, Failure, Result};

pub(crate) struct Session<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) engine: Engine<'a>,
    pub(crate) watcher: Watcher<'a>,
    pub(crate) host: Host,
    /// The calibrations of our own guest; Linux needs none.
    pub(crate) calibrations: Calibrations,
    /// The files of kernels, which are to stay as they are.
    pub(crate) versions: Versions,
    pub(crate) directory: Directory,
    /// Records on disk.
    pub(crate) records: Vec<Record>,
    pub(crate) progress: Progress,
    /// Runs that are left out.
    pub(crate) failed: Vec<FailedRun>,
    /// Simulators, where all cells are simulated.
    pub(crate) simulators: Option<&'a Ahead<'a>>,
    /// Runs that simulators make before their turn comes, by block and cell.
    pub(crate) ordered: BTreeMap<(u32, String), Ordered>,
}

/// Number of blocks in which a cell fails before it is given up.
const MOST_FAILED: usize = 2;

impl<'a> Session<'a> {
    /// Runs blocks until the rule is met. Cells that have a record are left out.
    pub(crate) fn run(&mut self, rule: Rule) -> Result<()> {
        let ended = std::thread::scope(|scope| {
            let Some(simulators) = self.simulators else { return self.run_blocks(rule) };
            for _ in 0..simulators.jobs() {
                scope.spawn(move || simulators.work());
            }
            let ended = self.run_blocks(rule);
            // The scope waits for the threads.
            simulators.end(!self.ordered.is_empty());
            ended
        });
        ended.and(self.directory.sync()).and_then(|()| self.without_failed_runs())
    }

    fn run_blocks(&mut self, rule: Rule) -> Result<()> {
        for block in 0.. {
            let wanted = self.wanted(block, rule);
            if wanted.is_empty() {
                break;
            }
            let missing = self.missing(block, &wanted);
            let end = self.progress.elapsed() + self.time_left(&missing, 0);
            if rule.max_time.is_some_and(|max_time| end > max_time) {
                if block > 0 {
                    let done = format!("stopped after {block} blocks: the next would end after --max-time");
                    self.progress.say(&done);
                    break;
                }
                self.progress.say("the first block takes longer than --max-time: it is made all the same");
            }
            // Threads that are done with this block need not wait for each other.
            let goes_on =
                rule.max_time.is_none() && block + 1 < rule.blocks && self.is_whole(block + 1, rule);
            let next = if goes_on { self.plan.block(block + 1) } else { vec![] };
            self.run_block(block, rule, &missing, &self.missing(block + 1, &next))?;
            let of_block = self.records.iter().filter(|record| is_in(record, block));
            self.calibrations.follow(self.plan, of_block, &self.host);
            if !missing.is_empty() {
                self.stop_in_vain(block, rule)?;
            }
        }
        self.progress.finish();
        Ok(())
    }

    /// Ends an experiment that will find nothing valid: nearly all runs of two blocks are spoilt by the same thing, and much is to come.
    fn stop_in_vain(&self, block: u32, rule: Rule) -> Result<()> {
        let (Some(before), Some(little)) = (block.checked_sub(1), rule.ends_in_vain) else { return Ok(()) };
        let most = if rule.target_precision.is_some() { MOST_TIMES_PLANNED } else { 1 };
        if self.time_left(&[], rule.blocks.saturating_mul(most).saturating_sub(block + 1)) <= little {
            return Ok(());
        }
        let of_both = |record: &&Record| is_in(record, block) || is_in(record, before);
        let runs: Vec<Record> = self.records.iter().filter(of_both).cloned().collect();
        let headline = self.plan.outline.comparisons.first();
        let limit = headline.map_or(noise::OTHERS_SHARE_LIMIT, |headline| headline.of.neighbours_limit());
        let Some(Spoilt { by, told, runs, of }) = consistency::spoilt(&runs, limit) else { return Ok(()) };
        self.progress.finish();
        let stopped = format!(
            "stopped after {} blocks, since {runs} of the last {of} runs are invalid ({by})",
            block + 1
        );
        let message = if by == noise::BUSY_NEIGHBOUR {
            let cpus: BTreeSet<u32> = self.plan.cells().flat_map(|cell| cell.run.cpus.clone()).collect();
            let names = neighbours::using(&Vec::from_iter(cpus));
            let who = names.as_deref().unwrap_or("short ones: none is there now");
            format!(
                "{stopped}: other processes use the pCPUs ({who}): stop them; --wait-for-quiet 10m waits until they end, --anyway goes \
                 on"
            )
        } else {
            format!("{stopped}: {told}; --anyway goes on")
        };
        Err(Failure { exit: Exit::Untrusted, message })
    }

    /// Has threads simulate the first of these cells of `block`, and of those of the `next` one, before their turn comes.
    fn order(&mut self, block: u32, cells: &[&Cell], next: &[&Cell]) {
        let Some(simulators) = self.simulators else { return };
        let cells = cells.iter().map(|cell| (block, cell)).chain(next.iter().map(|cell| (block + 1, cell)));
        for (block, cell) in cells.take(simulators.most()) {
            let key = (block, cell.id.clone());
            if !self.ordered.contains_key(&key) {
                let ordered = simulators.order(self.run_of(cell, block));
                self.ordered.insert(key, ordered);
            }
        }
    }

    /// The cells of `block` that the rule asks for; none if it is met.
    ///
    /// The planned blocks are whole. Those that precision asks for beyond them are of what is not known that well yet.
    fn wanted(&self, block: u32, rule: Rule) -> Vec<&'a Cell> {
        let plan = self.plan;
        if self.is_whole(block, rule) {
            return plan.block(block);
        }
        let Some(target) = rule.target_precision else { return vec![] };
        if block >= rule.blocks.saturating_mul(MOST_TIMES_PLANNED) {
            let planned = rule.blocks;
            self.progress.say(&format!(
                "stopped after {block} blocks, {MOST_TIMES_PLANNED} times the {planned} planned: \
                 the target precision is out of reach here"
            ));
            return vec![];
        }
        // Only the blocks before this one count: so the answer is the same when an experiment is resumed.
        let mut last = consistency::last_attempts(&self.records);
        last.retain(|record| record.place.as_ref().is_some_and(|place| place.block < block));
        let summary = Summary::new(&plan.outline, &last);
        let is_lost = |setting: &_, name: &str| {
            let of_arm = |cell: &&Cell| cell.setting == *setting && is_of(name, &cell.arm);
            plan.cells().filter(of_arm).any(|cell| self.is_given_up(&cell.id))
        };
        let vague = summary.vaguer_than(target, is_lost);
        let is_vague = |cell: &&Cell| {
            cell.role != Role::Ideal
                && vague.iter().any(|(setting, arm)| **setting == cell.setting && is_of(arm, &cell.arm))
        };
        plan.block(block).into_iter().filter(is_vague).collect()
    }

    /// Whether the rule asks for all cells of `block`, whatever those before it find.
    fn is_whole(&self, block: u32, rule: Rule) -> bool {
        block < if rule.target_precision.is_some() { rule.blocks.max(JUDGED_FROM) } else { rule.blocks }
    }

    /// Cells of `wanted` without a run in `block`, and the ideals that they need and that have none either, in the order of the
    /// block.
    fn missing(&self, block: u32, wanted: &[&'a Cell]) -> Vec<&'a Cell> {
        let last = self.last_runs(block);
        let is_missing = |cell: &&Cell| {
            let is_whole = |run: &&[Record]| run.len() == cell.run.guests.len();
            !last.get(&*cell.id).is_some_and(is_whole) && !self.is_given_up(&cell.id)
        };
        let wanted = wanted.iter().copied().filter(is_missing);
        let needed: BTreeSet<&str> =
            wanted.flat_map(|cell| [Some(&*cell.id), cell.ideal.as_deref()]).flatten().collect();
        let block = self.plan.block(block).into_iter();
        block.filter(|cell| needed.contains(&*cell.id)).filter(is_missing).collect()
    }

    /// Records of the last run of each cell in `block`: one of each guest, unless the process was killed meanwhile.
    fn last_runs(&self, block: u32) -> HashMap<&str, &[Record]> {
        let runs = self.records.chunk_by(|one, next| one.run_id == next.run_id);
        let of_block = runs.filter(|run| is_in(&run[0], block));
        of_block.filter_map(|run| Some((&*run[0].place.as_ref()?.cell_id, run))).collect()
    }

    fn run_block(&mut self, block: u32, rule: Rule, cells: &[&Cell], next: &[&Cell]) -> Result<()> {
        let blocks = rule.blocks.max(block + 1);
        let whole = self.plan.block(block);
        let first = u64::from(block) * whole.len() as u64;
        for (i, cell) in cells.iter().enumerate() {
            self.order(block, &cells[i..], next);
            let at = whole.iter().position(|other| other.id == cell.id).unwrap_or(0) as u64;
            let position = Position {
                done: (first + at) as usize,
                cells: whole.len() * blocks as usize,
                block,
                blocks,
                cell_id: cell.id.clone(),
                left: self.time_left(&cells[i..], blocks - block - 1),
            };
            self.progress.draw(position);
            let rest = self.time_left(&cells[i + 1..], 0);
            let until = rule.max_time.map(|max_time| max_time.saturating_sub(rest));
            self.run_cell(cell, (block, first + at), rule.retries, until)?;
        }
        self.directory.sync()?;
        self.progress.block_done(block, rule.blocks, self.time_left(&[], blocks - block - 1));
        Ok(())
    }

    /// Runs a cell, and again at once while it is disturbed. The last attempt counts, whatever it finds: whether there is
    /// another one depends on what else ran, never on the cell's own figures. No further attempt begins that would end later than
    /// `until` after the start of the experiment. An attempt without progress, which happens on a busy host, is made once more; if that
    /// one makes none either, the attempt before counts, or the run is left out.
    fn run_cell(
        &mut self,
        cell: &Cell,
        (block, order_index): (u32, u64),
        mut retries: u32,
        until: Option<Duration>,
    ) -> Result<()> {
        let mut place = cell.place(&self.plan.outline.experiment, block, order_index);
        // A killed process left the records of some guests only.
        let cut_off = self.records.iter().filter(|record| is_in(record, block));
        let cut_off = cut_off.filter(|record| record.place.as_ref().is_some_and(|it| it.cell_id == cell.id));
        place.replaces = cut_off.map(|record| record.run_id.clone()).collect();
        // Records of one run stand together.
        place.replaces.dedup();
        // A simulated machine has no busy moments.
        let is_simulated = self.simulators.is_some() || cell.run.engine.is_simulated();
        let (mut together, mut has_record, mut is_stuck) = (Duration::ZERO, false, false);
        loop {
            let (records, took) = match self.attempt(cell, &place) {
                Ok(made) => made,
                Err(failure) if failure.exit == Exit::NoProgress && !is_simulated => {
                    if !std::mem::replace(&mut is_stuck, true) {
                        self.progress.say(&format!("{failure}: once more"));
                        continue;
                    }
                    let what = if has_record { "the disturbed run before it counts" } else { "left out" };
                    self.progress.say(&format!("{failure}: twice: {what}"));
                    if !has_record {
                        self.note_failed(cell, &place, failure.message, None);
                    }
                    return Ok(());
                }
                Err(failure) => {
                    // A guest that failed ends the experiment, and is noted, since the results lack its figures.
                    if let Exit::GuestFailed | Exit::NoProgress = failure.exit {
                        self.note_failed(cell, &place, failure.message.clone(), Some(failure.exit as u8));
                    }
                    return Err(failure);
                }
            };
            (has_record, is_stuck) = (true, false);
            let disturbed = records.iter().any(consistency::is_disturbed);
            let run_id = records.first().map(|record| record.run_id.clone());
            self.keep(records)?;
            together += took;
            let late = until.is_some_and(|until| self.progress.elapsed() + took > until);
            if !disturbed || retries == 0 || late {
                self.progress.cell_done(Planned::of(cell), together);
                return Ok(());
            }
            retries -= 1;
            place.replaces.extend(run_id);
        }
    }

    fn note_failed(&mut self, cell: &Cell, place: &Place, message: String, ended_with: Option<u8>) {
        self.failed.push(FailedRun { cell_id: cell.id.clone(), block: place.block, message, ended_with });
    }

    /// Whether the cell has failed so often that it is not run again.
    fn is_given_up(&self, cell_id: &str) -> bool {
        self.failed.iter().filter(|run| run.cell_id == cell_id).count() >= MOST_FAILED
    }

    /// The failure that failed runs are in the end.
    fn without_failed_runs(&self) -> Result<()> {
        let Some(first) = self.failed.first() else { return Ok(()) };
        let path = self.directory.path.display();
        let failed = self.failed.len();
        let runs = if failed == 1 { "1 run was" } else { &format!("{failed} runs were") };
        let message = format!(
            "{runs} left out, of cells that made no progress twice; the first: {}; \
             `haltkick bench --resume {path}` tries them again",
            first.message
        );
        Err(Failure { exit: Exit::NoProgress, message })
    }

    fn keep(&mut self, records: Vec<Record>) -> Result<()> {
        self.directory.append(&lines(&records)?).map_err(|failure| {
            self.progress.finish();
            let (kept, path) = (self.records.len(), self.directory.path.display());
            let message = format!(
                "{failure}: {kept} records are kept; make room, then `haltkick bench --resume {path}` goes on"
            );
            Failure { message, ..failure }
        })?;
        self.records.extend(records);
        Ok(())
    }

    /// Time for the rest of this block and as many whole ones.
    fn time_left(&self, rest: &[&Cell], blocks: u32) -> Duration {
        let of_rest = rest.iter().map(|cell| self.progress.estimate(Planned::of(cell))).sum::<Duration>();
        let all = of_rest + self.progress.of_blocks(self.plan, blocks);
        all / self.simulators.map_or(1, |simulators| simulators.jobs() as u32)
    }
}

/// One run of a cell.
impl Session<'_> {
    fn run_of(&self, cell: &Cell, block: u32) -> Run {
        let mut run = cell.run.clone();
        let seed = self.plan.seed.wrapping_add(u64::from(block));
        for guest in &mut run.guests {
            // The seed of a guest alongside the first differs from the first one's.
            guest.seed = seed.wrapping_add(guest.seed.wrapping_sub(1));
        }
        self.calibrations.apply(&mut run);
        run
    }

    fn attempt(&mut self, cell: &Cell, place: &Place) -> Result<(Vec<Record>, Duration)> {
        let run = self.run_of(cell, place.block);
        let (ran, took) = self.ran(cell, place.block, &run);
        let ran = linux::check_unchanged(&run, &self.versions).and(ran.map_err(Failure::from));
        let records = ran.and_then(|(seen, origin)| match run.linux() {
            None => Ok(self.of_ours(cell, place, &run, &seen.found, &origin)),
            Some(_) => Ok(vec![linux::record_of_cell(self.plan, cell, &run, &seen, &origin, place)?]),
        });
        let records = records.map_err(|failure| {
            self.progress.finish();
            let message = match failure.exit {
                Exit::Interrupted => "interrupted: what was measured so far is kept".into(),
                _ => format!("cell {} in block {}: {failure}", cell.id, place.block),
            };
            Failure { message, ..failure }
        })?;
        Ok((records, took))
    }

    fn of_ours(&self, cell: &Cell, place: &Place, run: &Run, found: &Found, origin: &Origin) -> Vec<Record> {
        let lock_free = match &cell.ideal {
            Some(id) => match self.lock_free(id, place.block) {
                none if none.is_empty() => {
                    Err(format!("cell {id} was not run on this host in this block").into())
                }
                lock_free => Ok(lock_free),
            },
            None if cell.role == Role::Ideal => Ok(engine::per_second(found)),
            None => Err("no lock-free cell was run: without-ideal, or an image without such a lock".into()),
        };
        let mut records = records(run, found, origin, Some(place), &lock_free);
        if let Some(reason) = self.calibrations.ring_reason(&cell.run) {
            records.iter_mut().for_each(|record| record.settings.set("ring_reason", reason));
        }
        records
    }

    /// Throughput of each guest in the last run of the lock-free cell `id` in `block`; none if it was not run on this host.
    fn lock_free(&self, id: &str, block: u32) -> Vec<f64> {
        let here = self.host.identity();
        let run = self.last_runs(block).remove(id).unwrap_or_default();
        let of_host = run.iter().filter(|record| record.host.identity() == here);
        of_host.filter_map(|record| record.figure(THROUGHPUT)).collect()
    }

    /// Runs a cell, or has it run, and says how long that took.
    fn ran(
        &mut self,
        cell: &Cell,
        block: u32,
        run: &Run,
    ) -> (std::result::Result<(RunResult, Origin), RunError>, Duration) {
        let begun = Instant::now();
        let Some(simulators) = self.simulators else {
            let length = self.progress.estimate(Planned::of(cell));
            let run_it = || engine::run_cell(self.engine, self.watcher, run, &self.host);
            let ran = self.progress.ticks(length, &run.cpus, run_it);
            return (ran, begun.elapsed());
        };
        let length = run.warmup + run.window;
        let progress = &mut self.progress;
        let ordered = self.ordered.remove(&(block, cell.id.clone()));
        let ordered = ordered.unwrap_or_else(|| simulators.order(run.clone()));
        let Made { started, took, result } = ordered.take(|passed| progress.simulates(passed, length));
        progress.finish();
        let origin = Origin::new(started, self.host.clone(), Err(noise::SIMULATED.into()));
        (result.and_then(engine::told).map(|found| (found.into(), origin)), took)
    }
}

fn is_in(record: &Record, block: u32) -> bool {
    record.place.as_ref().is_some_and(|place| place.block == block)
}

/// Whether figures called `name` come from the cells of `arm`: its own, or those of a guest alongside its first.
fn is_of(name: &str, arm: &str) -> bool {
    name.strip_prefix(arm).is_some_and(|rest| rest.is_empty() || rest.starts_with(BESIDE))
}

#[cfg(test)]
mod tests;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rule {
    /// Blocks that are planned.
    pub(crate) blocks: u32,
    /// Go on, with what is vaguer, until every wanted interval is this narrow.
    pub(crate) target_precision: Option<f64>,
    /// Begin no block that would end later.
    pub(crate) max_time: Option<Duration>,
    /// How often a run that was disturbed is made again, if there is time.
    pub(crate) retries: u32,
    /// End after two blocks of spoilt runs if the rest would take longer than this; none: go on.
    pub(crate) ends_in_vain: Option<Duration>,
}

/// An experiment that ends this soon goes on, though its runs are spoilt.
pub(crate) const ENDS_SOON: Duration = Duration::from_secs(10);

/// Fewest whole blocks before precision is judged: the exact interval exists from here on.
pub(super) const JUDGED_FROM: u32 = 6;

/// Multiple of the planned blocks after which a precision that was not reached is out of reach.
pub(crate) const MOST_TIMES_PLANNED: u32 = 20;
