//! Options of `haltkick top`.

use clap::Args;

use haltkick_vmm::Span;

use super::Format;

pub(super) const EXAMPLES: &str = "\
Examples:
  haltkick run --live on --ratio 8 --duration 1m & haltkick top $!
      which vCPU holds the lock, who waits for it, and which of them the scheduler has taken off
  haltkick bench overcommit --set live=on --output results & sleep 5; haltkick top results
      the same of an experiment, run by run
  haltkick top results --once --format json
      one frame, for programs";

/// Options of `haltkick top`.
#[derive(Args, Debug)]
pub(crate) struct TopArgs {
    /// The directory of an experiment that is under way, or the process number of a single run; its setting `live` is on
    #[arg(value_name = "DIR|PID")]
    pub(crate) target: String,
    /// Print one frame and stop
    #[arg(long)]
    pub(crate) once: bool,
    /// Time between two frames, 100ms or more
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub(crate) interval: Span,
    /// How to print frames; json: one line each
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    pub(crate) format: Format,
}
