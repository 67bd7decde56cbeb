//! Options of the commands about one lock: `haltkick check`, `haltkick judge` and `haltkick worst`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use haltkick_vmm::Span;

use super::{Format, ImageArgs};
use crate::settings::Settings;
use crate::show::cases::VerdictFormat;

pub(super) const CHECK_EXAMPLES: &str = "\
Examples:
  haltkick check --print-header > haltkick.h
      what a lock in C is written to; --print-header=rust is the same for Rust
  haltkick check my_lock.c
      a minute of torture, then a verdict: 0, or 5 or 6 and what was found (docs/lock-objects.md)
  haltkick check my_lock.c --time 10m --seed 7
      longer, and in another order
  haltkick check my_lock.c --engine threads --trust-image
      without /dev/kvm, with the object's code in this process";

#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    /// The lock, written for the interface haltkick.h: a source (.c, .S, .rs), an object file or a static archive
    #[arg(value_name = "FILE", required_unless_present = "print_header")]
    pub(crate) object: Option<PathBuf>,
    /// Print the header that lock objects are written to, for C or for Rust, and stop
    #[arg(long, value_name = "LANGUAGE", num_args = 0..=1, require_equals = true, default_missing_value = "c",
          value_parser = ["c", "rust"], conflicts_with = "object")]
    pub(crate) print_header: Option<String>,
    /// For how long; one trial of every kind is run, however short
    #[arg(long, value_name = "TIME", default_value = "1m")]
    pub(crate) time: Span,
    #[command(flatten)]
    pub(crate) settings: Settings,
    /// How to print the verdict
    #[arg(long, value_name = "FORMAT", default_value = "table", help_heading = "Output")]
    pub(crate) format: VerdictFormat,
    #[command(flatten, next_help_heading = "Machine")]
    pub(crate) image: ImageArgs,
}

pub(super) const JUDGE_EXAMPLES: &str = "\
Examples:
  haltkick judge my_lock.c
      check it, measure it next to qspinlock, simulate both, and say where losing the CPU costs most
  haltkick judge my_lock.c --quick --output judged
      the same with fewer runs, into a directory of this name

Each part is a command of its own, which is printed before it runs: check, bench judge twice, and worst. The exit code is that of
the check if it found a fault; otherwise it is that of the first part that failed, or 0.";

#[derive(Args, Debug)]
pub(crate) struct JudgeArgs {
    /// The lock, written for the interface haltkick.h: a source (.c, .S, .rs), an object file or a static archive
    #[arg(value_name = "FILE")]
    pub(crate) object: PathBuf,
    /// Fewer runs: a first impression
    #[arg(long)]
    pub(crate) quick: bool,
    /// For how long the lock is checked, and how long each of its forms is tried with `haltkick worst`
    #[arg(long, value_name = "TIME", default_value = "1m")]
    pub(crate) time: Span,
    /// The machine that is simulated, of which eight CPUs are used
    #[arg(long, value_name = "NAME", default_value = "skylake-8s")]
    pub(crate) machine: String,
    /// Measure only on a simulated machine, as on a host without /dev/kvm
    #[arg(long)]
    pub(crate) simulated: bool,
    /// Directory for everything, created if need be [default: named by time]
    #[arg(long, short, value_name = "DIR", help_heading = "Output")]
    pub(crate) output: Option<PathBuf>,
}

pub(super) const WORST_EXAMPLES: &str = "\
Examples:
  haltkick worst --lock qspinlock --pv on --machine skylake-8s --cpus 0-3
      what a preemption of 1 ms costs at each instruction of the lock, the worst lines first
  haltkick worst --lock-object mine.o --machine skylake-8s --cpus 0-3 --find-bugs
      look for an instruction at which a preemption breaks the lock, and stop at the first
  haltkick worst --lock mutex --machine skylake-8s --cpus 0-3 --preemptions 2 --at-most 20
      end with 8 if two preemptions are found that cost more than 20 times the length of one
  haltkick worst --replay DIR/worst-001.toml
      do one of them again, from the start: the same to the last bit

Each instruction is tried in copies of one simulated run, with one vCPU taken off and without. docs/worst.md says what is
counted and what is not. A lock that breaks in a copy ends with 5, or with 6 if it hangs.";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PointsChoice {
    /// Instructions before which other vCPUs could notice a difference: accesses to shared lines, exits, reads of the
    /// clock
    Shared,
    /// All instructions of the lock
    Every,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TakeChoice {
    /// The vCPU: its pCPU runs others meanwhile
    Vcpu,
    /// The pCPU with its vCPU: another tenant runs there. Its time does not count as lost
    Pcpu,
}

#[derive(Args, Debug)]
pub(crate) struct WorstArgs {
    /// How long a vCPU is off its pCPU; 0s: it only leaves its guest and comes back
    #[arg(long = "for", value_name = "TIME", default_value = "1ms", help_heading = "Preemptions")]
    pub(crate) length: Span,
    /// Loss of the vCPU at the instruction
    #[arg(long, value_name = "WHICH", default_value = "vcpu", help_heading = "Preemptions")]
    pub(crate) take: TakeChoice,
    /// Instructions that are tried
    #[arg(long, value_name = "WHICH", default_value = "shared", help_heading = "Preemptions")]
    pub(crate) points: PointsChoice,
    /// How often each instruction is tried in each situation, each time with another seed [default: 8; 40 if these leave it
    /// open whether any line costs more than the noise]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000), help_heading = "Preemptions")]
    pub(crate) samples: Option<u32>,
    /// Look also for sets of up to this many preemptions in one run, which cost most together: half of the budget goes there
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=4), default_value = "1",
          help_heading = "Preemptions")]
    pub(crate) preemptions: u8,
    /// Stop at the first preemption that breaks the lock. Unless --think is given, seeds differ in it, too
    #[arg(long, help_heading = "Preemptions")]
    pub(crate) find_bugs: bool,
    /// Do again what this file says, which an earlier run has written
    #[arg(long, value_name = "FILE", conflicts_with_all = ["samples", "find_bugs", "points", "length", "take", "preemptions", "output"],
          help_heading = "Preemptions")]
    pub(crate) replay: Option<PathBuf>,
    /// End with 8 if a preemption, or a set of them, costs more than this many times its length: a limit that a lock keeps from
    /// one version to the next
    #[arg(long, value_name = "LOSS", help_heading = "Preemptions")]
    pub(crate) at_most: Option<f64>,
    /// Stop after this time, with what is known by then
    #[arg(long, value_name = "TIME", help_heading = "When to stop")]
    pub(crate) budget: Option<Span>,
    /// Simulate this many preemptions at the same time; the answer does not depend on it [default: the host's CPUs]
    #[arg(long, value_name = "N", help_heading = "When to stop")]
    pub(crate) jobs: Option<NonZeroUsize>,
    #[command(flatten)]
    pub(crate) settings: Settings,
    /// Run this guest image instead of the built-in one
    #[arg(long, value_name = "FILE")]
    pub(crate) guest: Option<PathBuf>,
    /// Rows of the table
    #[arg(long, value_name = "N", default_value = "15", help_heading = "Output")]
    pub(crate) top: usize,
    /// Directory for the answer and for files to replay, created if need be [default: named by time]
    #[arg(long, short, value_name = "DIR", help_heading = "Output")]
    pub(crate) output: Option<PathBuf>,
    /// How to print the answer
    #[arg(long, value_name = "FORMAT", default_value = "table", help_heading = "Output")]
    pub(crate) format: Format,
}

impl WorstArgs {
    pub(crate) fn jobs(&self) -> usize {
        self.jobs.or_else(|| std::thread::available_parallelism().ok()).map_or(1, usize::from)
    }
}
