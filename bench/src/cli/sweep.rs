//! `haltkick sweep` and `haltkick bisect`: what they vary, and all else that an experiment file would say.

use std::path::PathBuf;

use clap::Args;

use super::Conduct;
use crate::experiment::WORKLOAD_INSIDE;
use crate::experiment::measure::Measure;
use crate::experiment::sweep::Vary;
use crate::settings::Settings;
use crate::text::share;

pub(super) const EXAMPLES: &str = "\
Examples:
  haltkick sweep --vary slice=100us,1ms --vary lock=ticket,qspinlock-wc --compare
      two locks at two lengths of slices, and the ratio of the second lock to the first
  haltkick sweep --vary ratio=1,2,4,8 --vary pv=on,off --compare=off --lock qspinlock --blocks 12
      what the paravirtual form wins, at four ratios
  haltkick sweep --vary 'deschedule=none;holder,rate=100,for=5ms' --lock mcs --save hostile.toml --dry-run
      values that have commas in them; saved as an experiment file, and not run
  haltkick sweep --vary kernel=old/vmlinuz,new/vmlinuz --initrd initrd.cpio --append 'quiet run=page-loop:5' --ratio 4 \\
                 --compare --of figure:page-loop
      two kernels, and the ratio of what they print

What is compared: the settings of the lock that vary (those under \"Lock\" above, such as lock and pv), and of kernels what
boots them (kernel, initrd, cmdline, nopvspin). If none of them varies, the last --vary is compared. All other --vary make
the grid: every combination of their values is run.";

/// Options of `haltkick sweep`.
#[derive(Args, Debug)]
pub(crate) struct SweepArgs {
    /// Run with each of these values of a setting; may be given several times. A semicolon separates values that have
    /// commas in them
    #[arg(long, value_name = "KEY=VALUE,...", required = true, help_heading = "Sweep")]
    pub(crate) vary: Vec<Vary>,
    /// Report the ratio of each arm to the first one, or to the one that is named
    #[arg(long, value_name = "NAME", num_args = 0..=1, require_equals = true, default_missing_value = "",
          help_heading = "Sweep")]
    pub(crate) compare: Option<String>,
    /// Measure to compare: throughput, lock-cpu, a figure of `haltkick list figures`, or figure:NAME, which kernels print; may be given
    /// several times
    /// [default: throughput]
    #[arg(long, value_name = "MEASURE", value_parser = |word: &str| Measure::try_from(word.to_owned()),
          requires = "compare", help_heading = "Sweep")]
    pub(crate) of: Vec<Measure>,
    /// Passes over all cells
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000), default_value = "10",
          help_heading = "Sweep")]
    pub(crate) blocks: u32,
    /// Tell of each comparison on a simulated machine whether it is robust: on N machines like it, too
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(4..=200), num_args = 0..=1,
          require_equals = true, default_missing_value = "12", requires = "compare", help_heading = "Sweep")]
    pub(crate) robust: Option<u32>,
    /// Write the sweep as an experiment file, too
    #[arg(long, value_name = "FILE", help_heading = "Sweep")]
    pub(crate) save: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) settings: Settings,
    #[command(flatten, next_help_heading = "Linux guest")]
    pub(crate) boot: BootArgs,
    #[command(flatten)]
    pub(crate) conduct: Conduct,
}

pub(super) const BISECT_EXAMPLES: &str = "\
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

/// Kernel and files that all cells boot instead of our own guest.
#[derive(Args, Debug)]
pub(crate) struct BootArgs {
    /// Boot this Linux kernel, a vmlinux or bzImage, instead of our own guest; --vary kernel=FILE,... boots several
    #[arg(long, value_name = "FILE")]
    pub(crate) kernel: Option<String>,
    /// The initial RAM disk of the kernels
    #[arg(long, value_name = "FILE")]
    pub(crate) initrd: Option<String>,
    /// Words for the kernels' command lines; those of --vary cmdline='WORDS;...' come behind them
    #[arg(long, visible_alias = "cmdline", value_name = "WORDS", allow_hyphen_values = true)]
    pub(crate) append: Option<String>,
    /// Text in the line of the console that shows that user space runs [default: 'Run /', which the kernel prints]
    #[arg(long, value_name = "TEXT")]
    pub(crate) marker: Option<String>,
    /// Run this workload on the kernels: `run` and settings of it. Its figures are those of any run
    #[arg(long, value_name = "WORDS", conflicts_with = "initrd")]
    pub(crate) workload_inside: Option<String>,
}

impl BootArgs {
    /// Keys of experiment files, and their values.
    pub(crate) fn pairs(&self) -> Vec<(&'static str, String)> {
        let Self { kernel, initrd, append, marker, workload_inside } = self;
        let each = [
            ("kernel", kernel),
            ("initrd", initrd),
            ("cmdline", append),
            ("marker", marker),
            (WORKLOAD_INSIDE, workload_inside),
        ];
        each.into_iter().filter_map(|(key, value)| Some((key, value.clone()?))).collect()
    }
}
