//! Runs guests for hours, or ten thousand of them next to hostile guests, in pieces that can be killed and go on.
//!
//! ```text
//! soak for HOURS [FILE]      locks, ratios, injections, hostile neighbours and kills at random; counts acquisitions
//! soak attacks RUNS [FILE]   one honest guest next to one attack each; prints the outcome of both as a table
//! soak plants [DIRECTORY]    faults put in on purpose, each of which must be reported
//! soak case NUMBER           one run of `for`; `soak attack NUMBER`: one of `attacks`
//! ```
//!
//! The runs are made by a child that is killed now and then; this process counts, and keeps the counts in FILE, with which the next
//! call goes on. A run is drawn from its number alone. A run that the kill cut off is made again in a life that is not killed before
//! it has ended, and no run is killed that takes unusually long: whatever hangs is reported.

mod case;
mod dice;
mod life;
mod plant;
mod resources;
mod supervise;
mod table;
mod tally;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use case::Kind;
use plant::Plant;
use supervise::{Job, Until};

const USAGE: &str = "soak for HOURS [FILE] | soak attacks RUNS [FILE] | soak plants [DIRECTORY] | soak case NUMBER | soak attack NUMBER";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let state = |name: &str| PathBuf::from(words.get(2).copied().unwrap_or(name));
    match (words.first().copied(), words.get(1).and_then(|number| number.parse::<f64>().ok())) {
        (Some("for"), Some(hours)) if (0.0..=10_000.0).contains(&hours) => {
            let until = Until::Time(Duration::from_secs_f64(hours * 3600.0));
            supervise::run(Job { kind: Kind::Soak, until, state: state("target/soak.tally"), plant: None })
        }
        (Some("attacks"), Some(runs)) => {
            let until = Until::Runs(runs as u64);
            supervise::run(Job {
                kind: Kind::Attack,
                until,
                state: state("target/attacks.tally"),
                plant: None,
            })
        }
        (Some("case"), Some(number)) => life::one(Kind::Soak, number as u64),
        (Some("attack"), Some(number)) => life::one(Kind::Attack, number as u64),
        (Some("plants"), _) => {
            supervise::plants(Path::new(words.get(1).copied().unwrap_or("target/soak-plants")))
        }
        (Some("life"), Some(number)) => match words.get(2).copied().and_then(Kind::named) {
            Some(kind) => life::live(kind, number as u64, words.get(3).copied().and_then(Plant::named)),
            None => usage(),
        },
        _ => usage(),
    }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}
