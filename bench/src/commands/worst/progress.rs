//! How far the command is, on stderr: a line that is redrawn on a terminal, a line now and then elsewhere.

use std::time::{Duration, Instant};

use crate::text::output;
use crate::text::quantity::patience;

const REDRAWS_EVERY: Duration = Duration::from_millis(300);
const SAYS_EVERY: Duration = Duration::from_secs(15);

pub(super) struct Progress {
    started: Instant,
    said: Instant,
    budget: Option<Duration>,
    on_terminal: bool,
}

impl Progress {
    pub(super) fn start(budget: Option<Duration>) -> Self {
        let now = Instant::now();
        let on_terminal = output::is_watched();
        Self { started: now, said: now, budget, on_terminal }
    }

    /// Whether the budget is used up.
    pub(super) fn is_over(&self) -> bool {
        self.budget.is_some_and(|budget| self.started.elapsed() >= budget)
    }

    /// The rest of the budget.
    pub(super) fn left(&self) -> Option<Duration> {
        self.budget.map(|budget| budget.saturating_sub(self.started.elapsed()))
    }

    /// This share of all is done.
    pub(super) fn tell(&mut self, share: f64, attempts: usize, broken: usize) {
        let every = if self.on_terminal { REDRAWS_EVERY } else { SAYS_EVERY };
        if self.said.elapsed() < every || share <= 0.0 {
            return;
        }
        self.said = Instant::now();
        let passed = self.started.elapsed().as_secs_f64();
        let left = passed * (1.0 - share) / share;
        let left = self.budget.map_or(left, |budget| left.min((budget.as_secs_f64() - passed).max(0.0)));
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
    pub(super) fn clear(&self) {
        if self.on_terminal {
            output::redraw("");
        }
    }
}
