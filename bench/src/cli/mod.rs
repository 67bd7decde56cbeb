//! The command line. Help, completions and man pages all come from these definitions.

pub(crate) mod gone;
mod lock;
mod sweep;

use std::path::PathBuf;
use std::sync::LazyLock;

use clap::builder::styling;
use clap::{Arg, Args, Parser, Subcommand, ValueEnum};

use haltkick_vmm::Span;

use crate::experiment::measure::Measure;
use crate::experiment::overrides::Overrides;
use crate::settings::{Settings, table};
use crate::show::export;
use crate::text::pages::FOR_THE_HELP;
use crate::text::quantity;

pub(crate) use lock::{CheckArgs, JudgeArgs, PointsChoice, TakeChoice, WorstArgs};
pub(crate) use sweep::{BisectArgs, BootArgs, Conduct, Patience, SweepArgs};

const STYLES: styling::Styles = styling::Styles::styled()
    .header(styling::AnsiColor::Green.on_default().bold())
    .usage(styling::AnsiColor::Green.on_default().bold())
    .literal(styling::AnsiColor::Cyan.on_default().bold())
    .placeholder(styling::AnsiColor::Cyan.on_default());

const EXIT_CODES: &str = "\
Exit codes:
  0  done                              5  the guest failed
  1  internal error                    6  no progress (watchdog)
  2  usage                             7  figures not valid: see `bench --help`
  3  bad experiment file               8  a regression, or a loss beyond a limit
  4  the host lacks something        130  interrupted, partial results kept";

const EXAMPLES: &str = "\
Examples:
  haltkick doctor                      what this host can do, what will spoil a measurement
  haltkick run --lock ticket --ratio 8 one lock on eight vCPUs per CPU
  haltkick bench overcommit --quick    what PV wins back at four ratios, in a minute
  haltkick list experiments            what else there is";

/// A lab for locks on overcommitted virtual CPUs.
///
/// Runs a freestanding guest on /dev/kvm that does nothing but take locks, gives it fewer CPUs than vCPUs,
/// and shows what that does to each lock and what paravirtual locking wins back.
#[derive(Debug, Parser)]
#[command(name = "haltkick", version = version(), styles = STYLES, after_help = closing_words(),
          max_term_width = 100)]
pub(crate) struct Cli {
    /// Run without the sandbox around this process and its threads, for example to attach a debugger; records say so
    #[arg(long, global = true, hide_short_help = true)]
    pub(crate) no_sandbox: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Version, commit, and what guest images must have been built for.
fn version() -> &'static str {
    static VERSION: LazyLock<String> = LazyLock::new(|| {
        let commit = option_env!("HALTKICK_GIT_COMMIT").unwrap_or("unknown");
        let (abi, fingerprint) = (haltkick_vmm::ABI_VERSION, haltkick_vmm::ABI_FINGERPRINT);
        format!(
            "{} (commit {commit}; guest ABI {abi}, fingerprint {fingerprint:016x})",
            env!("CARGO_PKG_VERSION")
        )
    });
    &VERSION
}

fn closing_words() -> String {
    let pages: String = FOR_THE_HELP.iter().map(|(page, about)| format!("\n  {page:<35}  {about}")).collect();
    format!("{EXAMPLES}\n\n{EXIT_CODES}\n\nPages of the repository:{pages}")
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run one cell and print its record
    #[command(after_help = RUN_FIRST_EXAMPLES, after_long_help = RUN_EXAMPLES, mut_args(for_one_run))]
    Run(Box<RunArgs>),
    /// Run an experiment: many cells, shuffled, compared
    #[command(after_help = BENCH_EXAMPLES)]
    Bench(Box<BenchArgs>),
    /// Vary settings, and compare: an experiment without a file
    #[command(after_help = sweep::SWEEP_EXAMPLES)]
    Sweep(Box<SweepArgs>),
    /// Say what losing the CPU costs at each instruction of a lock, on a simulated machine
    #[command(after_help = lock::WORST_EXAMPLES)]
    Worst(Box<WorstArgs>),
    /// Put a lock object through torture: does it exclude, wake, end?
    #[command(after_help = lock::CHECK_EXAMPLES)]
    Check(Box<CheckArgs>),
    /// Answer a question in a sentence: what do paravirtual spinlocks gain?
    #[command(after_help = ANSWER_EXAMPLES)]
    Answer(Box<AnswerArgs>),
    /// Judge a lock object: check, figures next to those of qspinlock, worst points
    #[command(after_help = lock::JUDGE_EXAMPLES)]
    Judge(JudgeArgs),
    /// Tell `git bisect run` whether a lock or kernel is slower than another
    #[command(after_help = sweep::BISECT_EXAMPLES)]
    Bisect(Box<BisectArgs>),
    /// Watch a run that shows itself (--live on): states, holders, rates
    #[command(after_help = TOP_EXAMPLES)]
    Top(TopArgs),
    /// Compare two results: directories, or arms in them
    #[command(after_help = COMPARE_EXAMPLES)]
    Compare(CompareArgs),
    /// Make table, plots and report again from a directory's records
    Report(ReportArgs),
    /// Put the records of several directories into a new one
    #[command(after_help = MERGE_EXAMPLES)]
    Merge(MergeArgs),
    /// Put published figures next to those of this host
    #[command(after_help = REPRODUCE_EXAMPLES, mut_arg("robust", |robust| robust.hide(true)))]
    Reproduce(ReproduceArgs),
    /// Say what this host can do and what will spoil a measurement
    Doctor(DoctorArgs),
    /// List locks, workloads, experiments, points in locks, machines or hosts to simulate
    List(ListArgs),
    /// Print the JSON Schema of a file format
    Schema {
        /// The file format
        #[arg(default_value = "run")]
        format: SchemaOf,
    },
    /// Print a completion script for a shell
    #[command(
        after_help = "Example:\n  haltkick completions bash > ~/.local/share/bash-completion/completions/haltkick"
    )]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the man page, or write all of them
    #[command(after_help = "Example:\n  haltkick man | man -l -")]
    Man {
        /// Write one page per subcommand into this directory
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

const RUN_FIRST_EXAMPLES: &str = "\
Examples:
  haltkick run --lock ticket --ratio 8              a strict queue: it collapses
  haltkick run --lock qspinlock --pv on --ratio 8   the paravirtual queue under the same conditions
  haltkick run --kernel vmlinuz --initrd initrd     Linux instead of our guest

These are the flags that one types; `haltkick run --help` has all.";

const RUN_EXAMPLES: &str = "\
Examples:
  haltkick run --lock ticket --ratio 8
      a FIFO lock on eight vCPUs per CPU: it collapses
  haltkick run --lock qspinlock --pv on --ratio 8
      the paravirtual queue lock under the same conditions
  haltkick run --vcpus 16 --cpus 0-1 --slice 500us --hold 1us --think 4us --duration 2s --format json
      one JSON record on standard output
  haltkick run --vcpus 16 --workload mixed --work 1s --vm lock=ticket --vm lock=unfair-ticket
      two guests on the same CPUs, each with its own lock: two records with one run id
  haltkick run --lock ticket --ratio 8 --duration 200ms --repeat 8
      eight runs, and the estimates and intervals that they give
  haltkick run --lock ticket --profile --trace ticket.pftrace
      where the vCPUs spend their time, and a trace for ui.perfetto.dev
  haltkick run --engine sim --machine ivybridge-ex-4s --cpus 0-15 --ratio 2 --lock qspinlock --pv on
      the same image on a simulated machine, which needs no KVM (docs/simulated-machine.md)
  haltkick run --workload selftest-hang
      see how a failing guest is explained
  perf record -g haltkick run --engine threads --perf-map --lock mcs
      the guest's code on plain threads, without /dev/kvm, under an ordinary profiler
  haltkick run --kernel vmlinuz --initrd initrd --ratio 4 --pv off --deschedule random,rate=100,for=5ms
      Linux instead of our guest, until it powers off, with its PV spin locks switched off
  haltkick run --kernel vmlinuz --vcpus 2 --workload-inside 'run --lock qspinlock --ratio 4'
      a lock on threads of that kernel, whose scheduler is the one under test";

/// Hides from `run -h` what few people type. The table of settings says which of those are typed. What a kernel boots with needs one: a
/// sweep may have it in `--vary`. What is for our own guest does not go with one.
fn for_one_run(flag: Arg) -> Arg {
    let id = flag.get_id().as_str();
    let is_setting = table::find(id).is_some() && !table::boots(id);
    let is_typed = is_setting || ["repeat", "trace", "format"].contains(&id);
    let is_of_kernel = ["initrd", "append", "marker", "workload_inside"].contains(&id);
    // The table of settings says which ones Linux guests have.
    let is_of_ours =
        ["guest_set", "guest", "no_ideal", "profile", "trace", "perf_map", "repeat"].contains(&id);
    let flag = if is_of_kernel { flag.requires("kernel") } else { flag };
    let flag = if is_of_ours { flag.conflicts_with("kernel") } else { flag };
    if is_typed { flag } else { flag.hide_short_help(true) }
}

#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) settings: Settings,
    /// File with the guests to run at once, a table each; docs/experiment-files.md has the format
    #[arg(long, value_name = "FILE", conflicts_with_all = ["vm", "guests"], help_heading = "Several guests")]
    pub(crate) guest_set: Option<PathBuf>,
    /// Skip the run of the same cell without a lock, which gives the ideal
    #[arg(long, help_heading = "Measuring")]
    pub(crate) no_ideal: bool,
    /// Run the cell N times, each with a seed of its own: --repeat 8
    ///
    /// Estimates are shown; with --format json one record per run.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000), default_value = "1",
          hide_default_value = true, conflicts_with_all = ["profile", "trace"], help_heading = "Measuring")]
    pub(crate) repeat: u32,
    /// Sample where the vCPUs spend their time, once per TIME on each pCPU [default: 1ms]; all time is counted with --engine sim
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, help_heading = "Observing")]
    pub(crate) profile: Option<Option<Span>>,
    /// Write the samples of --profile as folded stacks, for flame graphs and speedscope
    #[arg(long, value_name = "FILE", requires = "profile", help_heading = "Observing")]
    pub(crate) folded: Option<PathBuf>,
    /// Write a trace for ui.perfetto.dev: --trace run.pftrace
    ///
    /// It shows which vCPU ran, waited, held a lock and kicked which other one.
    #[arg(long, value_name = "FILE", help_heading = "Observing")]
    pub(crate) trace: Option<PathBuf>,
    /// How to print the record: --format json
    #[arg(long, value_name = "FORMAT", default_value = "table", help_heading = "Output")]
    pub(crate) format: Format,
    /// With --engine threads: leave the guest's symbols in /tmp/perf-PID.map, where `perf report` looks for them
    #[arg(long, help_heading = "Output")]
    pub(crate) perf_map: bool,
    #[command(flatten, next_help_heading = "Machine")]
    pub(crate) image: ImageArgs,
    #[command(flatten, next_help_heading = "Linux guest")]
    pub(crate) linux: BootArgs,
}

#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ImageArgs {
    /// Run this guest image instead of the built-in one
    #[arg(long, hide_short_help = true, value_name = "FILE")]
    pub(crate) guest: Option<PathBuf>,
    /// With --engine threads: run the code of --guest and of lock objects in this process, with all rights of its user
    #[arg(long, hide_short_help = true)]
    pub(crate) trust_image: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    Table,
    /// For programs
    Json,
}

const BENCH_EXAMPLES: &str = "\
Examples:
  haltkick bench overcommit
      the built-in experiment; results in a new directory named by experiment and time
  haltkick bench overcommit --quick --cpus 2-3 --set hold=5us
      the same in half a minute, on CPUs 2 and 3, with longer critical sections
  haltkick bench overcommit --print > mine.toml && haltkick bench mine.toml
      an experiment of your own, begun from a copy
  haltkick bench locks --dry-run
      its cells, and how long they take; nothing is run

Exit code 7:
  A run that something else on the host disturbed is repeated, up to --retry-disturbed times.
  If it stays disturbed it is kept, marked, and counted in a warning. The command ends with 7 only
  if the headline, the file's first [[compare]], is not valid: if at one of its settings more than
  29 % of its pairs have an invalid run. (Without a [[compare]]: more than 29 % of the runs of an
  arm at a setting.) With --strict one invalid run suffices.
  After --quick, validity is a note and the code is 0; scripts add --strict.";

#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    /// A built-in experiment (`haltkick list experiments`) or a file
    #[arg(value_name = "NAME|FILE", required_unless_present = "resume")]
    pub(crate) experiment: Option<String>,
    #[command(flatten)]
    pub(crate) overrides: Overrides,
    #[command(flatten)]
    pub(crate) conduct: Conduct,
    /// Complete the experiment that this directory holds, from which all else comes
    #[arg(long, value_name = "DIR", help_heading = "Output",
          conflicts_with_all = ["experiment", "output", "print", "dry_run", "Overrides", "load_to"])]
    pub(crate) resume: Option<PathBuf>,
    /// Print the experiment file and stop
    #[arg(long, help_heading = "Parts")]
    pub(crate) print: bool,
}

const ANSWER_EXAMPLES: &str = "\
Examples:
  haltkick answer pv --ratio 2 --hold 500ns --think 5us
      what paravirtual spinlocks gain where two vCPUs share a pCPU, sections take 500 ns and come every 5 us
  haltkick answer pv --ratio 2 --engine sim --machine skylake-8s --cpus 0-7 --for 2m
      the same on a simulated machine, which needs no /dev/kvm, in two minutes
  haltkick answer pv --guests 2 --ratio 1 --engine sim --machine icelake-2s --cpus 0-15 --host linux-7.3
      two guests under a model of Linux' scheduler, where waiters that spin exit

The answer names what it assumes: the ring, exits of waiters that spin (pause-loop exits), the scheduler and its slices, the
machine. It tries the exits on and off, and the slices of another scheduler, and says whether either turns the answer round.
Of a simulated machine it says whether the answer depends on guesses: it tries four machines like it last, if there is time.
Simulated guests run in ring 0, as kernels do; --ring 3 says otherwise. Where other processes spoil the runs, it says which,
and asks a simulated machine like this host instead (exit code 7); --anyway goes on. Ctrl-C ends it with the answer so far
(exit code 130).";

#[derive(Args, Debug)]
pub(crate) struct AnswerArgs {
    /// Question to be answered by an experiment
    #[arg(value_name = "QUESTION")]
    pub(crate) question: Question,
    /// Answer within this time, by the runs that were made until then
    #[arg(long = "for", value_name = "TIME", default_value = "5m")]
    pub(crate) budget: Span,
    /// Fewer runs: a first impression
    #[arg(long)]
    pub(crate) quick: bool,
    /// Passes over all cells
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) blocks: Option<u32>,
    #[command(flatten)]
    pub(crate) patience: Patience,
    #[command(flatten)]
    pub(crate) settings: Settings,
    /// Directory for the results, created if need be [default: named by time]
    #[arg(long, short, value_name = "DIR", help_heading = "Output")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Question {
    /// Gain by paravirtual spinlocks over the lock of a guest without them
    Pv,
}

const TOP_EXAMPLES: &str = "\
Examples:
  haltkick run --live on --ratio 8 --duration 1m & haltkick top $!
      which vCPU holds the lock, who waits for it, and which of them the scheduler has taken off
  haltkick bench overcommit --set live=on --output results & sleep 5; haltkick top results
      the same of an experiment, run by run
  haltkick top results --once --format json
      one frame, for programs";

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

const COMPARE_EXAMPLES: &str = "\
Examples:
  haltkick compare before after --threshold 3%
      all cells of two directories; ends with 8 if an arm surely lost more than 3 %
  haltkick compare 'results:qspinlock pv off' 'results:qspinlock pv on'
      two arms of one directory, as ratios within its blocks";

#[derive(Args, Debug)]
pub(crate) struct CompareArgs {
    /// The baseline: a directory, or DIR:ARM
    #[arg(value_name = "A")]
    pub(crate) baseline: String,
    /// The candidate: a directory, or DIR:ARM
    #[arg(value_name = "B")]
    pub(crate) candidate: String,
    /// Compare by this, not by what the experiment does: `throughput`, `lock-cpu`, or a figure of `haltkick list figures`; several
    /// times for several
    #[arg(long, value_name = "FIGURE", value_parser = |word: &str| Measure::try_from(word.to_owned()))]
    pub(crate) of: Vec<Measure>,
    /// A slow-down that is surely beyond this is a regression: at 2.5 % for all cells together, by Holm's correction
    #[arg(long, value_name = "PERCENT", value_parser = quantity::part, default_value = "5%")]
    pub(crate) threshold: f64,
    /// Compare, with a warning, what was measured with other settings or on another host
    #[arg(long)]
    pub(crate) anyway: bool,
    /// How to print the comparison
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    pub(crate) format: ComparisonFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ComparisonFormat {
    /// For people
    Table,
    /// For programs
    Json,
    /// A line for each cell, as kernels' test runners read them: a regression is a failure
    Ktap,
    /// XML, as most CI systems read it
    Junit,
}

#[derive(Args, Debug)]
pub(crate) struct ReportArgs {
    /// A directory that `haltkick bench` or `haltkick merge` made
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// Show the report in the browser afterwards (with xdg-open)
    #[arg(long)]
    pub(crate) open: bool,
    #[command(flatten)]
    pub(crate) show: ShowArgs,
}

/// How results are shown, and what counts as a success.
#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    /// End with 7 if any run is invalid, also after --quick, not only where the headline comparison is not valid
    #[arg(long)]
    pub(crate) strict: bool,
    /// Print all that stands below the table, not only six lines
    #[arg(long)]
    pub(crate) verbose: bool,
    /// Also write the table as Markdown, into the directory or into FILE (- is standard output); may be given several times
    #[arg(long, value_name = "markdown[=FILE]")]
    pub(crate) export: Vec<export::Asked>,
    /// Output format
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    pub(crate) format: Format,
}

const MERGE_EXAMPLES: &str = "\
Example:
  parallel -j2 'haltkick bench overcommit --cpus {1} --output part{#}' ::: 0 1
  haltkick merge part1 part2 --output both
      one experiment, run on two CPUs at the same time";

#[derive(Args, Debug)]
pub(crate) struct MergeArgs {
    /// Directories of the same experiment
    #[arg(value_name = "DIR", required = true)]
    pub(crate) directories: Vec<PathBuf>,
    /// Merge, with a warning, what was measured with other settings, and other values of those that vary
    #[arg(long)]
    pub(crate) anyway: bool,
    /// Directory for all of their records, created if need be
    #[arg(long, short, value_name = "DIR")]
    pub(crate) output: PathBuf,
    #[command(flatten)]
    pub(crate) show: ShowArgs,
}

const REPRODUCE_EXAMPLES: &str = "\
Examples:
  haltkick reproduce --quick
      the short form of every experiment, and the table
  haltkick reproduce qspinlock --output results
      one seed; the same command again completes what the directory holds and prints its table";

#[derive(Args, Debug)]
pub(crate) struct ReproduceArgs {
    /// Experiments to run [default: all that have published figures]
    #[arg(value_name = "EXPERIMENT")]
    pub(crate) experiments: Vec<String>,
    /// Measure on this host, or on simulated machines like those of the published figures
    #[arg(long, value_name = "ENGINE", default_value = "kvm")]
    pub(crate) engine: ReproducedOn,
    #[command(flatten)]
    pub(crate) overrides: Overrides,
    /// Directory for the results, one below it per experiment [default: named by the time]
    #[arg(long, short, value_name = "DIR", help_heading = "Output")]
    pub(crate) output: Option<PathBuf>,
    /// Output at the end
    #[arg(long, value_name = "FORMAT", default_value = "table", help_heading = "Output")]
    pub(crate) format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ReproducedOn {
    /// This host
    Kvm,
    /// Simulated machines
    Sim,
}

#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// How to print the findings
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    pub(crate) format: Format,
    /// Measure this host's costs and write them as a machine for --engine sim
    #[arg(long, value_name = "FILE", conflicts_with = "format")]
    pub(crate) write_machine: Option<PathBuf>,
    /// Measure this host's scheduler with threads and write it as a host for --engine sim --sched host
    #[arg(long, value_name = "FILE", conflicts_with_all = ["format", "write_machine"])]
    pub(crate) write_host: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    /// Kind of things to list [default: print these words]
    pub(crate) what: Option<Listed>,
    /// How to print it
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    pub(crate) format: Format,
    /// Look into this guest image instead of the built-in one
    #[arg(long, value_name = "FILE")]
    pub(crate) guest: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Listed {
    /// Values of --lock
    Locks,
    /// Values of --workload
    Workloads,
    /// Points at which --deschedule at= can stop an instrumented lock
    Points,
    /// Experiments that `haltkick bench` has built in
    Experiments,
    /// Hosts whose scheduler --engine sim can model
    Hosts,
    /// Machines that --engine sim can simulate
    Machines,
    /// Figures in records and summaries, by which arms can be compared
    Figures,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SchemaOf {
    /// An experiment file, for editors
    Experiment,
    /// One line of runs.jsonl, or the output of `haltkick run --format json`
    Run,
    /// The output of `haltkick run --format json` when the guest fails
    Failure,
    /// manifest.json
    Manifest,
    /// summary.json
    Summary,
    /// The output of `haltkick compare --format json`
    Comparison,
    /// The output of `haltkick worst --format json`
    Worst,
    /// The output of `haltkick reproduce --format json`
    Reproduction,
    /// The output of `haltkick top --format json`
    Top,
    /// The output of `haltkick doctor --format json`
    Doctor,
    /// The output of `haltkick list --format json`
    List,
}
