//! Runs that are drawn from their numbers: locks under all that befalls them, or an honest guest next to a hostile one. `soak.sh`
//! makes them for hours, kills the process now and then, and judges.
//!
//! ```text
//! soak runs soak|attacks NUMBER [PLANT]   runs from NUMBER on, a line for each, until it is killed
//! soak case NUMBER                        a look at one run of `soak`; `soak attack NUMBER`: at one of `attacks`
//! soak plants                             faults that can be put in on purpose, and the words with which each is to be reported
//! ```

mod case;
mod life;
mod plant;
mod resources;

use std::process::ExitCode;

use plant::{PLANTS, Plant};

const USAGE: &str =
    "soak runs soak|attacks NUMBER [PLANT] | soak case NUMBER | soak attack NUMBER | soak plants";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["runs", kind @ ("soak" | "attacks"), number, ref plant @ ..] => {
            let plant = plant.first().copied().and_then(Plant::named);
            number.parse().ok().map(|number| life::live(kind, number, plant))
        }
        ["case", number] => number.parse().ok().map(|number| life::one("soak", number)),
        ["attack", number] => number.parse().ok().map(|number| life::one("attacks", number)),
        ["plants"] => {
            PLANTS.iter().for_each(|it| println!("{}\t{}\t{}", it.name, it.kind, it.says));
            Some(ExitCode::SUCCESS)
        }
        _ => None,
    };
    done.unwrap_or_else(|| {
        eprintln!("{USAGE}");
        ExitCode::from(2)
    })
}
