//! `haltkick sweep` and `haltkick bisect`: what they vary, and all else that an experiment file would say. How an experiment is to be
//! conducted, whether it comes from a file or from `--vary`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use haltkick_vmm::Span;

use super::{ImageArgs, ShowArgs};
use crate::experiment::MOST_RETRIES;
use crate::experiment::measure::Measure;
use crate::experiment::sweep::Vary;
use crate::measure::session::ENDS_SOON;
use crate::settings::Settings;
use crate::settings::table::{CMDLINE, WORKLOAD_INSIDE};
use crate::text::quantity;

pub(super) const SWEEP_EXAMPLES: &str = "\
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

#[derive(Args, Debug)]
pub(crate) struct BisectArgs {
    /// A good value and the value in question, of a setting such as lock, or of kernel. A semicolon separates values that have commas
    /// in them
    #[arg(value_name = "KEY=GOOD,NEW")]
    pub(crate) vary: Vary,
    /// A loss of more than this is bad
    #[arg(long, value_name = "PERCENT", value_parser = quantity::part, default_value = "10%")]
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

/// Kernel and files that a run or all cells boot instead of our own guest.
#[derive(Args, Debug)]
pub(crate) struct BootArgs {
    /// Boot this Linux kernel, a vmlinux or bzImage, instead of our own guest; then --duration is a time limit [default:
    /// 10m], --memory is the guest's memory [default: 256MiB], and --pv is on unless switched off. Sweeps boot several by
    /// --vary kernel=FILE,... See docs/linux-guest.md
    #[arg(long, value_name = "FILE")]
    pub(crate) kernel: Option<String>,
    /// The initial RAM disk of the kernel
    #[arg(long, value_name = "FILE")]
    pub(crate) initrd: Option<String>,
    /// Words for the kernel's command line, after `console=ttyS0 panic=-1`; those of --vary cmdline='WORDS;...' come behind them
    #[arg(long, visible_alias = "cmdline", value_name = "WORDS", allow_hyphen_values = true)]
    pub(crate) append: Option<String>,
    /// Text in the line of the console that shows that user space runs [default: 'Run /', which the kernel prints]
    #[arg(long, value_name = "TEXT")]
    pub(crate) marker: Option<String>,
    /// Run this workload on the kernel: `run` and settings of it, on --engine threads unless it says otherwise; an initial RAM
    /// disk is made for it, and its record comes back. --engine qemu takes it, too
    #[arg(long, value_name = "WORDS", conflicts_with = "initrd")]
    pub(crate) workload_inside: Option<String>,
}

impl BootArgs {
    /// Settings with these, too, as experiment files have them.
    pub(crate) fn over(&self, settings: &Settings) -> Result<Settings, String> {
        let Self { kernel, initrd, append, marker, workload_inside } = self;
        let each = [
            ("kernel", kernel),
            ("initrd", initrd),
            (CMDLINE, append),
            ("marker", marker),
            (WORKLOAD_INSIDE, workload_inside),
        ];
        each.into_iter().try_fold(settings.clone(), |so_far, (key, value)| {
            let pair = value.as_deref().map(|value| (key, value));
            so_far.with(pair).map_err(|error| format!("--{key}: {error}"))
        })
    }
}

/// A share of time in locks, and the arm that is to spend it: `lock-share=23%:ticket`.
fn load_to(text: &str) -> Result<(f64, String), String> {
    let load = text.strip_prefix("lock-share=").and_then(|rest| rest.split_once(':'));
    let (share, arm) = load
        .filter(|(_, arm)| !arm.is_empty())
        .ok_or("write lock-share=PERCENT:ARM, such as lock-share=23%:ticket")?;
    Ok((quantity::part(share)?, arm.into()))
}

/// Options for a host on which other processes run.
#[derive(Args, Debug)]
pub(crate) struct Patience {
    /// Before the first run, wait up to TIME until other processes leave the pCPUs alone
    #[arg(long, value_name = "TIME", alias = "wait-quiet", help_heading = "Trust")]
    pub(crate) wait_for_quiet: Option<Span>,
    /// Go on where other processes have spoilt nearly all runs of two blocks
    #[arg(long, help_heading = "Trust")]
    pub(crate) anyway: bool,
}

impl Patience {
    /// The time for the rest of an experiment from which on two spoilt blocks end it.
    pub(crate) fn ends_in_vain(&self) -> Option<Duration> {
        (!self.anyway).then_some(ENDS_SOON)
    }
}

/// Options that `haltkick bench` and `haltkick sweep` have in common.
#[derive(Args, Debug)]
pub(crate) struct Conduct {
    /// Add blocks where needed until the 95 % interval of every comparison is this narrow, such as 2%
    #[arg(long, value_name = "PERCENT", value_parser = quantity::percentage, help_heading = "When to stop")]
    pub(crate) target_precision: Option<f64>,
    /// Begin no block that would end later than this
    #[arg(long, value_name = "TIME", help_heading = "When to stop")]
    pub(crate) max_time: Option<Span>,
    /// Simulate this many cells at the same time; the records do not depend on it [default: the host's CPUs]
    #[arg(long, value_name = "N", help_heading = "With --set engine=sim")]
    pub(crate) jobs: Option<std::num::NonZeroUsize>,
    /// Solve for the think time at which an arm spends this share of its time in its lock, by a few simulated runs, and run all
    /// arms at that: lock-share=23%:ticket
    #[arg(long, value_name = "lock-share=PERCENT:ARM", value_parser = load_to, help_heading = "With --set engine=sim")]
    pub(crate) load_to: Option<(f64, String)>,
    /// When something else on the host disturbs a run, repeat that run at most N times, as long as --max-time allows it
    /// [default: as the file says; 2 in built-in experiments and sweeps]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=i64::from(MOST_RETRIES)),
          help_heading = "Trust")]
    pub(crate) retry_disturbed: Option<u32>,
    #[command(flatten)]
    pub(crate) patience: Patience,
    /// Directory for the results, created if need be [default: named by experiment and time]
    #[arg(long, short, value_name = "DIR", help_heading = "Output")]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten, next_help_heading = "Output")]
    pub(crate) show: ShowArgs,
    /// Print the cells and about how long they take, and stop
    #[arg(long, help_heading = "Parts")]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) image: ImageArgs,
}
