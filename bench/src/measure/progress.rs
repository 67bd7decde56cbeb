//! Progress on stderr: one line that is redrawn on a terminal, one line per block elsewhere.
//!
//! It draws between cells only. A bar that ticks while a cell runs would take CPU time from the vCPUs that are
//! being measured.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::text::output;
use crate::text::quantity::patience;

/// What a cell costs beside its warm-up and window, until it has been run.
const OVERHEAD_GUESS: Duration = Duration::from_millis(60);

/// How far an experiment is.
#[derive(Debug)]
pub(crate) struct Progress {
    on_terminal: bool,
    started: Instant,
    done: usize,
    /// How long each cell took when it was run last. A window may end early, when a fixed amount of work is done, or double.
    took: HashMap<String, Duration>,
}

/// A cell, as far as its length is concerned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planned<'a> {
    pub(crate) id: &'a str,
    /// Warm-up and window.
    pub(crate) length: Duration,
    /// The window is a limit, and ends when some work is done.
    pub(crate) is_limit: bool,
}

impl Progress {
    pub(crate) fn start() -> Self {
        Self { on_terminal: output::is_watched(), started: Instant::now(), done: 0, took: HashMap::new() }
    }

    /// The cell `id` is done, and took so long.
    pub(crate) fn cell_done(&mut self, id: &str, took: Duration) {
        self.done += 1;
        self.took.insert(id.to_owned(), took);
    }

    /// Time that a cell will take.
    pub(crate) fn estimate(&self, cell: Planned<'_>) -> Duration {
        let known = u32::try_from(self.took.len()).unwrap_or(u32::MAX);
        match self.took.get(cell.id) {
            Some(took) => *took,
            None if cell.is_limit && known > 0 => self.took.values().sum::<Duration>() / known,
            None => cell.length + OVERHEAD_GUESS,
        }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Shows which cell comes next; only where a person watches.
    pub(crate) fn draw(&self, position: &Position<'_>, left: Duration) {
        if self.on_terminal {
            let line = bar_line(position, left);
            eprint!("\r\x1b[2K{line}");
        }
    }

    /// Says that a block is done; where nobody watches this is the only sign of life.
    pub(crate) fn block_done(&self, block: u32, blocks: u32, left: Duration) {
        if !self.on_terminal {
            output::talk(&format!(
                "block {} of {blocks} done, {} cells in {}, about {} left",
                block + 1,
                self.done,
                patience(self.elapsed().as_secs_f64()),
                patience(left.as_secs_f64()),
            ));
        }
    }

    /// Says something that is no progress.
    pub(crate) fn say(&self, line: &str) {
        self.finish();
        output::talk(line);
    }

    /// Leaves the line clean for what comes.
    pub(crate) fn finish(&self) {
        if self.on_terminal {
            eprint!("\r\x1b[2K");
        }
    }
}

/// Where an experiment is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position<'a> {
    pub(crate) done: usize,
    pub(crate) cells: usize,
    pub(crate) block: u32,
    pub(crate) blocks: u32,
    pub(crate) cell_id: &'a str,
}

/// `[=====>    ]  37/370  block 2/10  12 s left  ticket_ratio-8`, at most 79 columns.
fn bar_line(position: &Position<'_>, left: Duration) -> String {
    const BAR: usize = 20;
    let filled = (BAR * position.done).checked_div(position.cells).unwrap_or(0).min(BAR);
    let bar = format!("{}{}", "=".repeat(filled), " ".repeat(BAR - filled));
    let line = format!(
        "[{bar}] {}/{}  block {}/{}  {} left  {}",
        position.done,
        position.cells,
        position.block + 1,
        position.blocks,
        patience(left.as_secs_f64()),
        position.cell_id,
    );
    line.chars().take(79).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_fills_and_never_wraps_a_narrow_terminal() {
        let position = Position { done: 185, cells: 370, block: 4, blocks: 10, cell_id: &"x".repeat(100) };
        let line = bar_line(&position, Duration::from_secs(45));
        assert!(line.starts_with("[==========          ] 185/370  block 5/10  45 s left  xxx"), "{line}");
        assert_eq!(line.chars().count(), 79);
    }

    #[test]
    fn a_cell_costs_what_it_cost_last_time_and_its_window_before_that() {
        let second = Duration::from_secs(1);
        let planned = |id, is_limit| Planned { id, length: 60 * second, is_limit };
        let mut progress = Progress::start();
        assert_eq!(progress.estimate(planned("work", true)), 60 * second + OVERHEAD_GUESS);
        progress.cell_done("work", 2 * second);
        progress.cell_done("more work", 4 * second);
        assert_eq!(progress.estimate(planned("work", true)), 2 * second);
        assert_eq!(progress.estimate(planned("new work", true)), 3 * second);
        assert_eq!(progress.estimate(planned("new", false)), 60 * second + OVERHEAD_GUESS);
    }
}
