//! The machines of engine sim, and the hosts that schedule there: built in, or in files. A machine like another is a point of a Latin
//! hypercube.

use std::path::Path;

use haltkick_vmm::hosts::{self, Host};
use haltkick_vmm::machines::{CHOICES, Machine, presets};
use haltkick_vmm::{Schedule, input, printable};
use rand::rngs::ChaCha8Rng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};

use crate::host::probe;
use crate::text::nearest;

/// A built-in machine has less than a hundredth of it.
const MOST_TEXT_BYTES: u64 = 1 << 20;
/// The text of a minute of a busy host's switches.
const MOST_TRACE_BYTES: u64 = 256 << 20;

/// Seed of the order in which parts of the hypercube's dimensions meet.
const SEED: u64 = 1;
const MOST_LIKE: usize = 200;

/// Number `number` of the `points` machines like `machine`, which are a Latin hypercube: its guesses and choices together.
fn like(machine: &Machine, number: usize, points: usize) -> Result<Machine, String> {
    let guesses = machine.guesses();
    let shares = latin_hypercube(guesses.len() + CHOICES.len(), points, SEED).swap_remove(number - 1);
    let (of_figures, of_choices) = shares.split_at(guesses.len());
    let figures: Vec<_> =
        guesses.iter().zip(of_figures).map(|(guess, share)| (guess, guess.at(*share))).collect();
    let choices = CHOICES
        .iter()
        .zip(of_choices)
        .map(|((key, values), share)| (*key, values[(share * values.len() as f64) as usize]));
    let varied = machine.varied(&figures, &choices.collect::<Vec<_>>());
    varied.map_err(|error| printable(&error.to_string()))
}

/// The name of machine `number` of `all` that are like one: `nehalem-2s~3/12`.
pub(crate) fn name_like(machine: &str, number: u32, all: u32) -> String {
    format!("{machine}~{number}/{all}")
}

/// The machine that this name is like, the number and how many there are; none where the name is like none.
fn parts(name: &str) -> Option<(&str, usize, usize)> {
    let (machine, numbers) = name.rsplit_once('~')?;
    let (number, all) = numbers.split_once('/')?;
    let (number, all) = (number.parse().ok()?, all.parse().ok()?);
    (!machine.is_empty() && (1..=all).contains(&number) && all <= MOST_LIKE).then_some((machine, number, all))
}

pub(crate) fn is_like(name: &str) -> bool {
    parts(name).is_some()
}

/// The built-in machine whose cores are most like this host's, by the instructions that they have.
pub(crate) fn like_this_host() -> &'static str {
    like_cores_with(|flag| probe::has_cpu_flag(flag) == Ok(true))
}

fn like_cores_with(has: impl Fn(&str) -> bool) -> &'static str {
    // Only AMD has SSE4a.
    let flags = [
        ("sse4a", if has("avx512f") { "genoa-2s" } else { "milan-1s" }),
        ("amx_tile", "sapphirerapids-2s"),
        ("avx512_vbmi2", "icelake-2s"),
        ("avx512f", "skylake-8s"),
        ("adx", "broadwell-2s"),
        ("avx2", "haswell-2s"),
    ];
    flags.into_iter().find(|(flag, _)| has(flag)).map_or("sandybridge-2s", |(_, machine)| machine)
}

pub(crate) fn of_likes(name: &str) -> Option<&str> {
    parts(name).map(|(machine, ..)| machine)
}

/// Ends the name of a machine whose stores become visible late: `nehalem-2s~late-stores`.
const LATE_STORES: &str = "~late-stores";

/// The machine of this name, in this file, or like one of those.
pub(crate) fn find(name: &str) -> Result<Machine, String> {
    if let Some(machine) = name.strip_suffix(LATE_STORES) {
        let late = find(machine)?.varied(&[], &[("stores", "late")]);
        return late.map_err(|error| printable(&error.to_string()));
    }
    if let Some((machine, number, all)) = parts(name) {
        return like(&find(machine)?, number, all);
    }
    let built_in: Vec<_> = presets().iter().map(|preset| (preset.name, preset.text)).collect();
    let text = read("machine", name, &built_in)?;
    Machine::parse(name, &text).map_err(|error| printable(&error.to_string()))
}

/// The host of this name, or in this file.
pub(crate) fn find_host(name: &str) -> Result<Host, String> {
    let built_in: Vec<_> = hosts::presets().iter().map(|preset| (preset.name, preset.text)).collect();
    let text = read("host", name, &built_in)?;
    Host::parse(name, &text).map_err(|error| printable(&error.to_string()))
}

pub(crate) fn find_schedule(path: &str) -> Result<Schedule, String> {
    let bytes = input::read(Path::new(path), MOST_TRACE_BYTES).map_err(|error| format!("{path}: {error}"))?;
    let mut schedule = Schedule::parse(path, &bytes).map_err(|message| format!("{path}: {message}"))?;
    schedule.sha256 = probe::hash(&bytes);
    Ok(schedule)
}

/// The text of a file, built in or not.
fn read(kind: &str, name: &str, built_in: &[(&str, &str)]) -> Result<String, String> {
    if let Some((_, text)) = built_in.iter().find(|(known, _)| *known == name) {
        return Ok((*text).to_owned());
    }
    let path = Path::new(name);
    let is_path = name.contains('/') || path.extension().is_some_and(|it| it == "toml") || path.exists();
    if !is_path {
        let names: Vec<&str> = built_in.iter().map(|(known, _)| *known).collect();
        return Err(nearest::unknown(kind, name, &names));
    }
    input::read_text(path, MOST_TEXT_BYTES).map_err(|error| format!("{name}: {error}"))
}

/// `points` points in the unit cube of `dimensions` dimensions. Each dimension's range is cut into as many equal parts as there
/// are points; every part has one of them.
pub(crate) fn latin_hypercube(dimensions: usize, points: usize, seed: u64) -> Vec<Vec<f64>> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut cube = vec![vec![0.0; dimensions]; points];
    for dimension in 0..dimensions {
        let mut parts: Vec<usize> = (0..points).collect();
        parts.shuffle(&mut random);
        for (point, part) in cube.iter_mut().zip(parts) {
            point[dimension] = (part as f64 + random.random::<f64>()) / points as f64;
        }
    }
    cube
}

#[cfg(test)]
mod tests {
    use haltkick_vmm::machines::{Model, Stores};

    use super::*;

    #[test]
    fn a_machine_like_another_is_named_after_it() {
        let (nominal, like) = (find("nehalem-2s").unwrap(), find("nehalem-2s~2/4").unwrap());
        assert_eq!(like, find(&name_like("nehalem-2s", 2, 4)).unwrap());
        assert_ne!(like.costs, nominal.costs);
        assert_eq!(like.topology, nominal.topology);
        let others =
            ["nehalem-2s~1/4", "nehalem-2s~3/4", "nehalem-2s~2/5"].map(|name| find(name).unwrap().costs);
        assert!(others.iter().all(|other| *other != like.costs));
        assert!(is_like("a/b.toml~1/4") && of_likes("a/b.toml~1/4") == Some("a/b.toml"));
        for name in
            ["nehalem-2s", "nehalem-2s~0/4", "nehalem-2s~5/4", "nehalem-2s~1/201", "~/1", "~1/4", "x~a/b"]
        {
            assert!(!is_like(name), "{name}");
        }
        // One with late stores differs in nothing else.
        let late = find("nehalem-2s~late-stores").unwrap();
        assert_eq!(late.costs, nominal.costs);
        assert_eq!(late.model, Model { stores: Stores::Late, ..nominal.model });
        assert!(find("nehalem-3s~late-stores").is_err());
    }

    #[test]
    fn a_machine_like_this_host_has_the_cores_that_its_flags_tell() {
        for (flags, machine) in [
            ("sse4a avx2 adx", "milan-1s"),
            ("sse4a avx2 adx avx512f avx512_vbmi2", "genoa-2s"),
            ("avx2 adx avx512f avx512_vbmi2 amx_tile", "sapphirerapids-2s"),
            ("avx2 adx avx512f avx512_vbmi2", "icelake-2s"),
            ("avx2 adx avx512f", "skylake-8s"),
            ("avx2 adx", "broadwell-2s"),
            ("avx2", "haswell-2s"),
            ("", "sandybridge-2s"),
        ] {
            let like = like_cores_with(|flag| flags.split(' ').any(|it| it == flag));
            assert!(like == machine && find(like).is_ok(), "{flags}: {like}");
        }
    }

    #[test]
    fn every_part_of_every_dimension_has_one_point() {
        let cube = latin_hypercube(5, 12, 7);
        for dimension in 0..5 {
            let mut parts: Vec<u32> = cube.iter().map(|point| (point[dimension] * 12.0) as u32).collect();
            parts.sort_unstable();
            assert_eq!(parts, (0..12).collect::<Vec<_>>());
        }
        assert_eq!(cube, latin_hypercube(5, 12, 7));
        assert_ne!(cube, latin_hypercube(5, 12, 8));
        assert_ne!(cube[0][0], cube[0][1], "dimensions differ");
    }
}
