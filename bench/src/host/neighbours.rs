//! Processes that use the CPUs besides this one, by name.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use std::{fs, thread};

use haltkick_vmm::printable;

use super::noise::TICK;
use super::probe;
use crate::text::quantity::significant;

/// How often they are looked at, and how long it is between two looks: long enough together for ticks to tell a few percent, and
/// short enough for compilers that soon end.
const LOOKS: (u32, Duration) = (5, Duration::from_millis(200));
const MOST_NAMES: usize = 3;
/// A smaller share of the CPUs is not worth a name.
const WORTH_NAMING: f64 = 0.02;

/// Names of the processes that use these CPUs now, with their shares of the CPUs' time: "rustc 61.0 %, cc1 20.0 %". `None` where no
/// process shows itself, as in a container.
pub(crate) fn using(cpus: &[u32]) -> Option<String> {
    let (mut before, begun) = (used(), Instant::now());
    let mut seconds: BTreeMap<String, f64> = BTreeMap::new();
    let (looks, between) = LOOKS;
    for _ in 0..looks {
        thread::sleep(between);
        let now = used();
        for (pid, process) in now.iter().filter(|(_, process)| cpus.contains(&process.last_cpu)) {
            let earlier = before.get(pid).map_or(0, |earlier| earlier.ticks);
            let ticks = process.ticks.saturating_sub(earlier) as f64;
            *seconds.entry(process.name.clone()).or_default() += ticks * TICK.as_secs_f64();
        }
        before = now;
    }
    let offered = begun.elapsed().as_secs_f64() * cpus.len() as f64;
    in_words(seconds.into_iter().map(|(name, seconds)| (name, seconds / offered)))
}

/// The largest shares, the largest first.
fn in_words(shares: impl IntoIterator<Item = (String, f64)>) -> Option<String> {
    let worth_naming = |(_, share): &(String, f64)| *share >= WORTH_NAMING;
    let mut shares: Vec<(String, f64)> = shares.into_iter().filter(worth_naming).collect();
    shares.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    let each = shares.iter().take(MOST_NAMES);
    let words: Vec<String> =
        each.map(|(name, share)| format!("{name} {} %", significant(share.min(1.0) * 100.0))).collect();
    (!words.is_empty()).then(|| words.join(", "))
}

struct Process {
    name: String,
    /// CPU time of all its threads since it began.
    ticks: u64,
    last_cpu: u32,
}

/// All processes that show themselves but this one, by number.
fn used() -> BTreeMap<u32, Process> {
    let pids = probe::names("/proc").into_iter().filter_map(|name| name.parse::<u32>().ok());
    let others = pids.filter(|pid| *pid != std::process::id());
    // A name need not be UTF-8.
    let read = |pid| fs::read(format!("/proc/{pid}/stat")).ok();
    others.filter_map(|pid| Some((pid, parse(&String::from_utf8_lossy(&read(pid)?))?))).collect()
}

/// Reads `/proc/PID/stat`: user and system time are fields 14 and 15, the CPU is field 39.
fn parse(stat: &str) -> Option<Process> {
    let name = printable(stat.rsplit_once(')')?.0.split_once('(')?.1);
    let field = |number| probe::stat_field(stat, number)?.parse::<u64>().ok();
    Some(Process { name, ticks: field(14)? + field(15)?, last_cpu: u32::try_from(field(39)?).ok()? })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_is_read_whatever_its_name_holds() {
        let fields = "R 1 1 1 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 1 0 100 1 1 18446744073709551615 1 1 1 1 1 0 0 0 0 0 0 0 17 3 0 0";
        for (name, told) in [("cc1", "cc1"), ("a) R 1 (b", "a) R 1 (b"), ("x\u{1b}[31m", "x\u{fffd}[31m")] {
            let process = parse(&format!("42 ({name}) {fields}")).unwrap();
            assert_eq!((process.name.as_str(), process.ticks, process.last_cpu), (told, 300, 3));
        }
        assert!(parse("42 (cut) R 1").is_none() && parse("").is_none());
    }

    #[test]
    fn the_largest_shares_are_told_first_and_small_ones_not() {
        let shares = [("sshd", 0.01), ("cc1", 0.2), ("rustc", 0.61), ("ld", 0.03), ("make", 0.02)];
        let shares = shares.map(|(name, share)| (name.to_owned(), share));
        assert_eq!(in_words(shares).unwrap(), "rustc 61.0 %, cc1 20.0 %, ld 3.00 %");
        assert_eq!(in_words([("sshd".to_owned(), 0.01)]), None);
    }

    #[test]
    fn another_process_is_seen_and_this_one_is_not() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let seen = used();
        child.kill().unwrap();
        child.wait().unwrap();
        let name = seen.get(&child.id()).map(|process| process.name.as_str());
        assert!(name == Some("sleep") && !seen.contains_key(&std::process::id()), "{name:?}");
    }
}
