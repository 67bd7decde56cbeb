//! Progress on stderr: one line that is redrawn on a terminal, one line per block elsewhere.
//!
//! It draws between cells, and once a second during long ones, from a CPU that is not measured: where there is none, a line that
//! ticks would take CPU time from the vCPUs. A simulated machine cannot be disturbed, and there is much to wait for: the line
//! says how far its clock has come, and without a terminal another line says so now and then.
//!
//! Made by hand: the thread that ticks in indicatif cannot be kept off the measured CPUs, and all but the bar's text would stay here.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use haltkick_vmm::{VirtualTime, allowed_cpus, keep_off};

use crate::experiment::plan::{Cell, Plan};
use crate::settings::simulated_for;
use crate::text::output;
use crate::text::quantity::{patience, significant};

/// Guess at a cell's time in addition to its warm-up and window, until it has been run.
const OVERHEAD_GUESS: Duration = Duration::from_millis(60);

/// How often a thread that waits for a simulated run looks how far it is.
pub(crate) const LOOKS_EVERY: Duration = Duration::from_millis(200);

/// How often the line ticks during a cell that is measured, and what a long one is.
const TICKS_EVERY: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(3);

/// How often a simulation without a terminal says how far it is.
const SAYS_EVERY: Duration = Duration::from_secs(15);

#[derive(Debug)]
pub(crate) struct Progress {
    on_terminal: bool,
    started: Instant,
    done: usize,
    /// Planned and actual time of each cell so far. Windows end early or double, and disturbed runs are made again.
    cells: HashMap<String, (Duration, Duration)>,
    /// Times of all cells of a kind, by which others are estimated: windows that are limits or not, simulated or measured.
    kinds: HashMap<(bool, bool), (Duration, Duration)>,
    /// The position that is under way.
    shown: Position,
    /// When something was said last.
    said: Instant,
}

/// A cell, as far as its length is concerned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planned<'a> {
    pub(crate) id: &'a str,
    /// Warm-up, window and what a run takes in addition, or how long it probably takes to simulate them.
    pub(crate) length: Duration,
    /// The window is a limit, and ends when some work is done.
    pub(crate) is_limit: bool,
    pub(crate) is_simulated: bool,
}

impl<'a> Planned<'a> {
    pub(crate) fn of(cell: &'a Cell) -> Self {
        let run = &cell.run;
        let is_simulated = run.engine.is_simulated();
        Self {
            id: &cell.id,
            length: if is_simulated { simulated_for(run) } else { run.warmup + run.window + OVERHEAD_GUESS },
            is_limit: run.guests[0].ours().is_none_or(|ours| ours.shape.work().is_some()),
            is_simulated,
        }
    }
}

impl Progress {
    pub(crate) fn start() -> Self {
        Self {
            on_terminal: output::is_watched(),
            started: Instant::now(),
            done: 0,
            cells: HashMap::new(),
            kinds: HashMap::new(),
            shown: Position::default(),
            said: Instant::now(),
        }
    }

    /// Notes that the cell is done, and the time that it took with all attempts.
    pub(crate) fn cell_done(&mut self, cell: Planned<'_>, took: Duration) {
        self.done += 1;
        let of_cell = self.cells.entry(cell.id.to_owned()).or_default();
        let of_kind = self.kinds.entry((cell.is_limit, cell.is_simulated)).or_default();
        for (planned, together) in [of_cell, of_kind] {
            *planned += cell.length;
            *together += took;
        }
    }

    pub(crate) fn estimate(&self, cell: Planned<'_>) -> Duration {
        let of_kind = || self.kinds.get(&(cell.is_limit, cell.is_simulated));
        let known = self.cells.get(cell.id).or_else(of_kind);
        known.map_or(cell.length, |(planned, took)| cell.length.mul_f64(took.div_duration_f64(*planned)))
    }

    /// Time for `blocks` whole blocks of a plan.
    pub(crate) fn of_blocks(&self, plan: &Plan, blocks: u32) -> Duration {
        plan.cells().map(|cell| self.estimate(Planned::of(cell))).sum::<Duration>() * blocks
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Shows which cell comes next; only where a person watches.
    pub(crate) fn draw(&mut self, position: Position) {
        self.shown = position;
        if self.on_terminal {
            output::redraw(&self.shown.line(Duration::ZERO, ""));
        }
    }

    /// Measures on `cpus` the cell that was drawn last, which takes about `length`. The line ticks meanwhile, if that is long, a
    /// person watches, and there are other CPUs to draw it from.
    pub(crate) fn ticks<R>(&self, length: Duration, cpus: &[u32], measure: impl FnOnce() -> R) -> R {
        if !self.on_terminal || length < LONG {
            return measure();
        }
        // It inherits what this thread may use, and keeps to a part of that.
        let is_kept_off = || keep_off(&allowed_cpus(), cpus);
        let tick = |passed| output::redraw(&self.shown.ticking(passed, length));
        meanwhile(TICKS_EVERY, is_kept_off, tick, measure)
    }

    /// The cell that was drawn last is being simulated, and so much of about `length` has passed on its machine.
    pub(crate) fn simulates(&mut self, passed: Duration, length: Duration) {
        let cell_id = &self.shown.cell_id;
        let of = virtual_time(passed, length);
        if self.on_terminal {
            output::redraw(&self.shown.line(Duration::ZERO, &format!("{of}  ")));
        } else if self.said.elapsed() > SAYS_EVERY {
            self.said = Instant::now();
            let left = patience(self.shown.left.as_secs_f64());
            output::talk(&format!("{cell_id}: {of} simulated, {} cells done, about {left} left", self.done));
        }
    }

    /// Says that a block of `planned` is done; without a terminal this is the only sign of life. The number of
    /// blocks that precision asks for is not known, so further ones are told now and then.
    pub(crate) fn block_done(&mut self, block: u32, planned: u32, left: Duration) {
        let done = block + 1;
        if self.on_terminal || done > planned && self.said.elapsed() < SAYS_EVERY {
            return;
        }
        self.said = Instant::now();
        let (of, left) = match done.cmp(&planned) {
            Ordering::Less => {
                (format!(" of {planned}"), format!(", about {} left", patience(left.as_secs_f64())))
            }
            Ordering::Equal => (format!(" of {planned}"), String::new()),
            Ordering::Greater => {
                (String::new(), "; more until intervals are as narrow as asked, or --max-time".into())
            }
        };
        let took = patience(self.elapsed().as_secs_f64());
        output::talk(&format!("block {done}{of} done, {} cells in {took}{left}", self.done));
    }

    /// Says something that is no progress.
    pub(crate) fn say(&self, line: &str) {
        self.finish();
        output::talk(line);
    }

    /// Leaves the line clean for what comes.
    pub(crate) fn finish(&self) {
        if self.on_terminal {
            output::redraw("");
        }
    }
}

/// Position of an experiment, and the time that is left then.
#[derive(Debug, Default)]
pub(crate) struct Position {
    pub(crate) done: usize,
    pub(crate) cells: usize,
    pub(crate) block: u32,
    pub(crate) blocks: u32,
    pub(crate) cell_id: String,
    pub(crate) left: Duration,
}

impl Position {
    /// `[==                  ] 37/370  block 2/10  12 s left  ticket`: the line `passed` later, with `told` before the cell's name.
    fn line(&self, passed: Duration, told: &str) -> String {
        const BAR: usize = 20;
        let Self { done, cells, block, blocks, cell_id, left } = self;
        let filled = (BAR * done).checked_div(*cells).unwrap_or(0).min(BAR);
        let bar = format!("{}{}", "=".repeat(filled), " ".repeat(BAR - filled));
        let left = patience(left.saturating_sub(passed).as_secs_f64());
        format!("[{bar}] {done}/{cells}  block {}/{blocks}  {left} left  {told}{cell_id}", block + 1)
    }

    /// The line when `passed` of the about `length` of a cell are over.
    fn ticking(&self, passed: Duration, length: Duration) -> String {
        let seconds = |time: Duration| time.as_secs_f64().round();
        let told = format!("{} of about {} s  ", seconds(passed.min(length)), seconds(length));
        // An overrunning cell has no known time left.
        self.line(passed.min(length), &told)
    }
}

/// Does `work`, and meanwhile `tick` every so often with the time that has passed, in a thread of its own, if that `is_ready` for it.
fn meanwhile<R>(
    every: Duration,
    is_ready: impl FnOnce() -> bool + Send,
    tick: impl Fn(Duration) + Send,
    work: impl FnOnce() -> R,
) -> R {
    let (over, is_over) = mpsc::channel::<Infallible>();
    let began = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if is_ready() {
                while let Err(RecvTimeoutError::Timeout) = is_over.recv_timeout(every) {
                    tick(began.elapsed());
                }
            }
        });
        // Dropped when it is done, however that ends.
        let _over = over;
        work()
    })
}

/// Simulates something, about `length` of virtual time, and shows meanwhile how far `virtual_time` has come.
pub(crate) fn shown<R>(virtual_time: &VirtualTime, length: Duration, simulate: impl FnOnce() -> R) -> R {
    let on_terminal = output::is_watched();
    let every = if on_terminal { LOOKS_EVERY } else { SAYS_EVERY };
    let show = |took: Duration| {
        let passed = virtual_time.passed();
        let done = passed.min(length).as_secs_f64() / length.as_secs_f64();
        let left = patience(took.as_secs_f64() * (1.0 / done.max(1e-6) - 1.0));
        let line = format!("{} simulated, about {left} left", self::virtual_time(passed, length));
        if on_terminal { output::redraw(&line) } else { output::talk(&line) }
    };
    let result = meanwhile(every, || true, show, simulate);
    if on_terminal {
        output::redraw("");
    }
    result
}

/// `12 of 55 ms`. A machine starts before it warms up, and some windows are longer than they were to be.
fn virtual_time(passed: Duration, length: Duration) -> String {
    let ms = |time: Duration| significant(time.as_secs_f64() * 1e3);
    format!("{} of about {} ms", ms(passed.min(length)), ms(length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_ticks_while_a_cell_is_measured_and_no_longer() {
        use std::sync::atomic::{AtomicU32, Ordering};
        let ticks = AtomicU32::new(0);
        let count = |_| _ = ticks.fetch_add(1, Ordering::Relaxed);
        let until_three = || {
            let began = Instant::now();
            while ticks.load(Ordering::Relaxed) < 3 && began.elapsed() < Duration::from_secs(60) {
                std::thread::yield_now();
            }
            ticks.load(Ordering::Relaxed)
        };
        let seen = meanwhile(Duration::from_millis(1), || true, count, until_three);
        assert!(seen >= 3, "{seen} ticks in a minute");
        let never = AtomicU32::new(0);
        let count = |_| _ = never.fetch_add(1, Ordering::Relaxed);
        meanwhile(Duration::ZERO, || false, count, || std::thread::sleep(Duration::from_millis(20)));
        assert_eq!(never.into_inner(), 0, "there was no CPU to draw it from");
    }

    #[test]
    fn the_time_left_falls_until_a_cell_should_be_done() {
        let second = Duration::from_secs(1);
        let cell_id = "ticket".into();
        let drawn = Position { done: 185, cells: 370, block: 4, blocks: 10, cell_id, left: 45 * second };
        for (line, end) in [
            (drawn.line(Duration::ZERO, ""), "45 s left  ticket"),
            (drawn.ticking(4 * second, 10 * second), "41 s left  4 of about 10 s  ticket"),
            (drawn.ticking(14 * second, 10 * second), "35 s left  10 of about 10 s  ticket"),
        ] {
            assert_eq!(line, format!("[==========          ] 185/370  block 5/10  {end}"));
        }
        // Virtual time never passes what was asked for.
        let us = Duration::from_micros;
        assert_eq!(virtual_time(us(12_345), us(55_000)), "12.3 of about 55.0 ms");
        assert_eq!(virtual_time(us(60_000), us(55_000)), "55.0 of about 55.0 ms");
    }

    #[test]
    fn a_cell_costs_its_length_then_its_mean_or_what_others_do() {
        // Names of cells, their lengths, and how long they took or are to cost.
        type Cells = &'static [(&'static str, u32, u32)];
        let (work, window, simulated) = ((true, false), (false, false), (false, true));
        let cases: [((bool, bool), Cells, Cells); 6] = [
            (work, &[], &[("work", 60, 60)]),
            (work, &[("work", 60, 2), ("more work", 60, 4)], &[("work", 60, 2), ("new work", 60, 3)]),
            (window, &[], &[("new", 60, 60)]),
            (work, &[("work", 60, 4)], &[("work", 60, 3)]),
            (window, &[("whole", 60, 63)], &[("new", 60, 63)]),
            (simulated, &[("small", 10, 4), ("large", 30, 16)], &[("small", 10, 4), ("other", 60, 30)]),
        ];
        let second = Duration::from_secs(1);
        let mut progress = Progress::start();
        for ((is_limit, is_simulated), done, costs) in cases {
            let planned = |id, seconds: u32| Planned { id, length: seconds * second, is_limit, is_simulated };
            for &(id, seconds, took) in done {
                progress.cell_done(planned(id, seconds), took * second);
            }
            for &(id, seconds, cost) in costs {
                let estimate = progress.estimate(planned(id, seconds)).as_secs_f64();
                assert!((estimate - f64::from(cost)).abs() < 1e-6, "{id}: {estimate} s, not {cost} s");
            }
        }
    }
}
