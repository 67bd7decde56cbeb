//! The end-to-end tests on KVM with hardware semantics, in machines that `nested.sh` starts.
//!
//!     just test-nested [--or-skip] [--cpus N] [--all] [TEXT]...
//!
//! runs the tests whose names contain one of the texts. Without a text it runs all but those of which `flakes.toml`
//! says that they repeat others, and with `--all` these as well. Under QEMU 7.2 emulated machines die or hang now and
//! then (see nested.sh), a vCPU stands still for seconds or triple-faults, for unknown reasons. So the suite goes
//! through several short-lived machines, as many at once as there are CPUs. A test that failed gets two more machines,
//! and a test that passes in one of them is flaky. The tolerated flakes stand in `flakes.toml`; anything else fails the
//! suite, as does a test that was not tested. All tests are run, whatever fails.
//!
//! Exit code: 0 passed, 1 not passed, 2 usage, 4 something is missing here (0 with `--or-skip`), 130 stopped.

mod flakes;
mod group;
mod suite;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;

use crate::flakes::Flakes;
use crate::group::{Group, Programs};
use crate::suite::{Event, Launcher};

/// A host on which every machine hangs would take hours.
const TIME: Duration = Duration::from_secs(3000);

/// The end-to-end tests on KVM with hardware semantics, in emulated machines
#[derive(Parser)]
struct Arguments {
    /// End with 0 where machines cannot be set up
    #[arg(long)]
    or_skip: bool,
    /// For as many machines [default: all of this host]
    #[arg(long, value_name = "N")]
    cpus: Option<NonZeroUsize>,
    /// Also tests that repeat others
    #[arg(long)]
    all: bool,
    /// Only tests whose names contain one of these
    texts: Vec<String>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match Command::new(here().join("nested.sh")).arg("setup").status().map(|status| status.code()) {
        Ok(Some(0)) => {}
        Ok(Some(4)) => {
            say("skipped, not tested: see the line above".into());
            support::note("nested skipped cannot be set up here, see above");
            return if arguments.or_skip { ExitCode::SUCCESS } else { ExitCode::from(4) };
        }
        other => {
            say(format!("nested.sh setup failed: {other:?}"));
            return ExitCode::FAILURE;
        }
    }
    tested(&arguments).unwrap_or_else(|error| {
        say(format!("FAILED: {error}"));
        ExitCode::FAILURE
    })
}

fn tested(arguments: &Arguments) -> Result<ExitCode, String> {
    let began = Instant::now();
    let flakes = std::fs::read_to_string(here().join("flakes.toml")).map_err(|error| error.to_string())?;
    let flakes = Flakes::parse(&flakes)?;
    let root = here().join("../../..").canonicalize().map_err(|error| error.to_string())?;
    let nested =
        std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from).join("nested");
    let work = Work(nested.join(format!("suite.{}", std::process::id())));
    std::fs::create_dir_all(&work.0).map_err(|error| format!("{}: {error}", work.0.display()))?;
    let groups = group::all(&work.0, &nested.join("kernel"))?;
    let programs = Programs::build(&root, &work.0, &groups)?;
    let mut tests = vec![];
    for (place, group) in groups.iter().enumerate() {
        tests.extend(programs.tests(group)?.into_iter().map(|test| (place, test)));
    }
    if let Some(pattern) = flakes.idle(&tests) {
        return Err(format!("flakes.toml speaks of {pattern}, and there is no such test"));
    }
    if !arguments.texts.is_empty() {
        tests.retain(|(_, test)| arguments.texts.iter().any(|text| test.contains(text)));
    } else if !arguments.all {
        flakes.leave_out(&mut tests).into_iter().for_each(say);
    }

    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).map_err(|error| error.to_string())?;
    }
    let launcher =
        Launcher { script: here().join("nested.sh"), root: &root, programs: &programs, stop: &stop };
    let machine =
        |group: &Group, tests: &[String], tell: &mut dyn FnMut(Event)| launcher.run(group, tests, tell);
    let cpus = arguments.cpus.or_else(|| std::thread::available_parallelism().ok()).map_or(1, Into::into);
    let results = suite::run(&groups, tests, &machine, flakes.machines_die_at_most, cpus, TIME, &say);
    let passed = flakes.conclude(&results, &say);
    say(format!("took {:.0} s in all", began.elapsed().as_secs_f64()));
    Ok(match passed {
        _ if stop.load(Ordering::Relaxed) => ExitCode::from(130),
        Some(passed) => {
            support::note(&format!("nested passed {passed} tests"));
            ExitCode::SUCCESS
        }
        None => ExitCode::FAILURE,
    })
}

/// The folder with this file and `nested.sh`.
fn here() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/nested"))
}

fn say(line: String) {
    println!("test-nested: {line}");
}

/// A folder that goes when the suite ends.
struct Work(PathBuf);

impl Drop for Work {
    fn drop(&mut self) {
        // The rest goes with the target folder.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
