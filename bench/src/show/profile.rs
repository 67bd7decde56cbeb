//! A profile as people read it: a table like that of `perf report`, with the state of the vCPU.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use haltkick_vmm::{Profile, ProfileRow};

use crate::text::quantity::{count, time_ns};

/// Rows below this share are summed up.
const LEAST_SHARE: f64 = 0.005;
/// Columns of the function's name.
const NAME_WIDTH: usize = 44;

/// The table, of at most 100 columns but for long paths.
pub(crate) fn table(profile: &Profile) -> String {
    let mut text = if profile.period_ns == 1 {
        format!(
            "# all {} that vCPUs had on simulated pCPUs\n# no vCPU on the pCPU: {}\n",
            time_ns(profile.samples as f64),
            time_ns(profile.nobody as f64),
        )
    } else {
        format!(
            "# {} samples of running vCPUs, every {} of a pCPU on average\n# no vCPU on the pCPU: {}; \
             noticed too late, and so not counted: {}\n",
            count(profile.samples),
            time_ns(profile.period_ns as f64),
            count(profile.nobody),
            count(profile.late),
        )
    };
    if profile.samples == 0 {
        return text;
    }
    let share = |samples: u64| samples as f64 / profile.samples as f64;
    let mut states: BTreeMap<String, u64> = BTreeMap::new();
    for row in &profile.rows {
        let samples = states.entry(state(row)).or_default();
        *samples = samples.saturating_add(row.samples);
    }
    let mut states: Vec<_> = states.into_iter().collect();
    states.sort_by_key(|(_, samples)| std::cmp::Reverse(*samples));
    let states: Vec<_> =
        states.iter().map(|(state, samples)| format!("{state} {:.1}%", share(*samples) * 100.0)).collect();
    let _ = writeln!(text, "# by state: {}\n#", states.join(", "));
    let _ = writeln!(text, "# {:<8}  {:<10}  {:<NAME_WIDTH$}  Source", "Overhead", "State", "Function");
    let (shown, rest): (Vec<_>, Vec<_>) =
        profile.rows.iter().partition(|row| share(row.samples) >= LEAST_SHARE);
    for row in shown {
        let _ = writeln!(
            text,
            "{:>9.2}%  {:<10}  {:<NAME_WIDTH$}  {}",
            share(row.samples) * 100.0,
            state(row),
            name(row),
            row.source.as_deref().unwrap_or("-"),
        );
    }
    if !rest.is_empty() {
        let samples = rest.iter().map(|row| row.samples).fold(0, u64::saturating_add);
        let _ = writeln!(text, "{:>9.2}%  in {} more", share(samples) * 100.0, rest.len());
    }
    text
}

/// The samples as folded stacks: frames from the outermost in, separated by semicolons, and their number. What the vCPU was
/// doing stands outside of the function, and `lock` outside of all.
pub(crate) fn folded(profile: &Profile, lock: &str) -> String {
    // A semicolon in a name, as in that of an array's type, would end the frame.
    let frame = |name: &str| name.replace(';', ",");
    let line = |row: &ProfileRow| {
        let symbol = row.symbol.as_deref().unwrap_or("[outside of the image]");
        // The function that holds the code is the outer one.
        let frames =
            [Some(lock), Some(&state(row)), Some(symbol), row.inlined.as_deref()].map(|name| name.map(frame));
        format!("{} {}\n", frames.into_iter().flatten().collect::<Vec<_>>().join(";"), row.samples)
    };
    profile.rows.iter().map(line).collect()
}

/// The activity of the vCPU, and whether the VMM was doing it for the vCPU.
fn state(row: &ProfileRow) -> String {
    if row.in_vmm { format!("{}+vmm", row.activity) } else { row.activity.to_owned() }
}

/// The function, cut to its column.
fn name(row: &ProfileRow) -> String {
    let Some(name) = row.inlined.as_ref().or(row.symbol.as_ref()) else {
        return format!("{:#x}", row.hottest);
    };
    match name.char_indices().nth(NAME_WIDTH) {
        Some(_) => name.chars().take(NAME_WIDTH - 3).chain("...".chars()).collect(),
        None => name.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(samples: u64, activity: &'static str, in_vmm: bool, symbol: &str) -> ProfileRow {
        ProfileRow {
            samples,
            activity,
            in_vmm,
            symbol: Some(symbol.into()),
            inlined: None,
            source: Some("guest/src/cpu/time.rs:30".into()),
            hottest: 0x40_0000,
        }
    }

    #[test]
    fn shares_add_up_to_the_whole() {
        let mut rows = vec![row(900, "holder", false, "time::work"), row(60, "waiter", true, "lock_slow")];
        rows.extend((0..10).map(|_| row(4, "other", false, "rare")));
        let profile = Profile { period_ns: 1_000_000, samples: 1000, nobody: 5, late: 2, rows };
        let text = table(&profile);
        let shares = text.lines().filter(|line| !line.starts_with('#'));
        let shares: Vec<f64> =
            shares.map(|line| line.split_once('%').unwrap().0.trim().parse().unwrap()).collect();
        assert_eq!(shares, [90.0, 6.0, 4.0], "{text}");
        assert!(text.contains("by state: holder 90.0%, waiter+vmm 6.0%, other 4.0%"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        // Time that was counted in full is no number of samples, and of none nothing is divided.
        let none = table(&Profile { period_ns: 1, samples: 0, nobody: 500_000, late: 0, rows: vec![] });
        let head = "# all 0 ns that vCPUs had on simulated pCPUs\n# no vCPU on the pCPU: 500 us\n";
        assert_eq!(none, head);
    }
}
