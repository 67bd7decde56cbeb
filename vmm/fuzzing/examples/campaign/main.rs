//! Guides targets by coverage, one after the other, and counts their executions over all calls.
//!
//! ```text
//! campaign MINUTES [TARGET]...   each target, or each of these, for MINUTES minutes; prints the table of all calls
//! ```
//!
//! The counts are in target/fuzz.tally, what coverage has found in fuzz/corpus: the next call goes on from both.

mod fuzzer;
mod tally;

use std::path::Path;
use std::process::ExitCode;

use tally::Tally;

const STATE: &str = "target/fuzz.tally";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((minutes, targets)) = arguments.split_first() else { return usage() };
    let Some(minutes) = minutes.parse().ok().filter(|minutes| (0.0..1e6).contains(minutes)) else {
        return usage();
    };
    match campaign(minutes, targets) {
        Ok(failed) if failed.is_empty() => ExitCode::SUCCESS,
        Ok(failed) => {
            eprintln!("did not hold: {}; the inputs are in fuzz/artifacts", failed.join(", "));
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("campaign MINUTES [TARGET]...");
    ExitCode::from(2)
}

/// The targets that failed.
fn campaign(minutes: f64, chosen: &[String]) -> std::io::Result<Vec<String>> {
    let state = Path::new(STATE);
    let mut tally = Tally::read(state)?;
    let mut failed = Vec::new();
    for target in if chosen.is_empty() { fuzzer::targets()? } else { chosen.to_vec() } {
        let done = fuzzer::run(&target, (minutes * 60.0) as u64)?;
        tally.add(&target, &done);
        tally.write(state)?;
        if !done.held {
            failed.push(target);
        }
    }
    print!("{tally}");
    Ok(failed)
}
