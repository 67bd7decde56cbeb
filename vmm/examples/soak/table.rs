//! The counts, formatted for people.

use std::collections::BTreeSet;

use crate::resources::RESOURCES;
use crate::tally::Tally;

/// Attacks, and what became of both guests.
pub(crate) fn attacks(tally: &Tally) -> String {
    let groups: BTreeSet<&str> =
        tally.all().filter_map(|(name, _)| name.strip_prefix("group/")?.split('/').next()).collect();
    let mut table = String::from(
        "| attack | scheduler | ring | runs | nothing wrong | the honest guests' share of the CPU time, mean and least of 20 runs | the other one ended with |\n\
         | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for group in groups {
        let count = |what: &str| tally.get(&format!("group/{group}/{what}"));
        let (runs, wrong, shares) = (count("runs"), count("wrong"), count("shares"));
        let share = match shares {
            0 if group.contains(" host ") => "the host's".into(),
            0 => "not looked at".into(),
            _ => {
                let percent = |permille: u64| permille as f64 / 20.0;
                let least = tally.get(&format!("group/{group}/share-of-20-least"));
                let least = if least == 0 { String::new() } else { format!(", {:.1}", percent(least)) };
                format!("{:.1} %{least}", percent(count("share-permille") / shares))
            }
        };
        let prefix = format!("group/{group}/beside/");
        let ended: Vec<String> = tally
            .all()
            .filter_map(|(name, count)| Some(format!("{} {count}", name.strip_prefix(&prefix)?)))
            .collect();
        let [workload, sched, ring] = group.split(' ').collect::<Vec<_>>()[..] else { continue };
        let (unharmed, ended) = (runs - wrong, ended.join(", "));
        table += &format!("| `{workload}` | {sched} | {ring} | {runs} | {unharmed} | {share} | {ended} |\n");
    }
    table
}

/// The running count.
pub(crate) fn running(tally: &Tally) -> String {
    let count = |name: &str| tally.get(name);
    let gained = RESOURCES.map(|it| format!("{} {}", count(&format!("gained/{}", it.name)), it.name));
    format!(
        "{} runs ({} more without CPU time), {} acquisitions, {} wrong, {} kills in {} lives; gained at most {}",
        count("runs"),
        count("starved"),
        count("acquisitions"),
        count("wrong"),
        count("kills"),
        count("lives"),
        gained.join(", "),
    )
}
