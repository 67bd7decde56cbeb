//! Options of `haltkick bisect`.

use clap::Args;

use super::sweep::BootArgs;
use crate::experiment::measure::Measure;
use crate::experiment::sweep::Vary;
use crate::settings::Settings;
use crate::text::share;

pub(super) const EXAMPLES: &str = "\
Examples:
  git bisect run haltkick bisect lock=file:../good.c,file:my_lock.c --ratio 2
      find the commit that made a lock slower than the one in good.o
  haltkick bisect kernel=good/vmlinuz,arch/x86/boot/bzImage --initrd initrd.cpio --ratio 4 --of figure:page-loop
      the same for a kernel, by a figure that it prints
  haltkick bisect kernel=good/vmlinuz,arch/x86/boot/bzImage --vcpus 2 --workload-inside 'run --lock ticket' --of throughput
      the same for its scheduler, by a lock on its threads

Exit codes, as `git bisect run` reads them:
  0    good: the whole 95 % interval is above the threshold
  1    bad: the whole 95 % interval is below it
  125  cannot tell: the interval contains the threshold, runs are invalid, one of the two failed, or the new file cannot be used
  129  the command line makes no sense, the good file cannot be used, or a fault of haltkick, and 130: interrupted; all end the
       bisection";

/// Options of `haltkick bisect`.
#[derive(Args, Debug)]
pub(crate) struct BisectArgs {
    /// A good value and the value in question, of a setting such as lock, or of kernel. A semicolon separates values that have commas
    /// in them
    #[arg(value_name = "KEY=GOOD,NEW")]
    pub(crate) vary: Vary,
    /// A loss of more than this is bad
    #[arg(long, value_name = "PERCENT", value_parser = share::part, default_value = "10%")]
    pub(crate) threshold: f64,
    /// Measure: throughput, lock-cpu, a figure of `haltkick list figures`, or of kernels figure:NAME, which they print
    #[arg(long, value_name = "MEASURE", value_parser = |word: &str| Measure::try_from(word.to_owned()),
          default_value = "throughput")]
    pub(crate) of: Measure,
    /// Pairs of runs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(6..=100_000), default_value = "10")]
    pub(crate) blocks: u32,
    #[command(flatten)]
    pub(crate) settings: Settings,
    #[command(flatten, next_help_heading = "Linux guest")]
    pub(crate) boot: BootArgs,
}
