//! The box below a page's title: where and how the figures were measured.

use serde_json::Value;

use crate::page::Page;

/// Compares the quoted lines that end before `comment` with what the records say.
pub(crate) fn compare(page: &mut Page<'_>, comment: usize, records: &str) {
    let start = page.prose[..comment].rfind("\n\n").map_or(0, |end| end + 2);
    let printed = page.text[start..comment].to_owned();
    page.mark_tied(start..comment);
    let mut sentences = Vec::new();
    for name in records.split(", ") {
        let Some(record) = page.record(comment, name) else { return };
        sentences.push(of(&record.facts, records.contains(", ")));
    }
    let expected = wrapped(&format!("**Measured:** {}", sentences.join(" ")));
    if words(&printed) != words(&expected) {
        page.complain(comment, &format!("the box should be\n{expected}"));
        page.edits.push((start..comment, format!("{expected} ")));
    }
}

fn words(text: &str) -> Vec<&str> {
    text.split_whitespace().filter(|word| *word != ">").collect()
}

fn texts(facts: &Value, key: &str) -> Vec<String> {
    let values = facts[key].as_array().into_iter().flatten();
    values.map(|value| value.as_str().map_or_else(|| value.to_string(), String::from)).collect()
}

/// A record's facts in a sentence or two. `is_named`: there are several.
pub(crate) fn of(facts: &Value, is_named: bool) -> String {
    let text = |key: &str| facts[key].as_str().unwrap_or("unknown").to_owned();
    let (runs, invalid) = (facts["runs"].as_u64().unwrap_or(0), facts["invalid"].as_u64().unwrap_or(0));
    let share = 100.0 * invalid as f64 / runs.max(1) as f64;
    let experiment = if is_named { format!("`{}`, ", text("experiment")) } else { String::new() };
    format!(
        "{experiment}{}, {}, commit {}. Invalid runs: {invalid} of {runs} ({share:.*} %).",
        host(facts),
        date(&text("started")),
        commit(&text("commit")),
        usize::from(share > 0.0 && share < 10.0),
    )
}

fn host(facts: &Value) -> String {
    let machines = texts(facts, "machine");
    let schedulers: Vec<String> = texts(facts, "sched").iter().map(|it| scheduler(it, facts)).collect();
    if !machines.is_empty() {
        return format!("simulated machines ({}), {}", machines.join(", "), schedulers.join(" and "));
    }
    let text = |key: &str| facts[key].as_str().unwrap_or("unknown");
    format!(
        "{} pCPUs of {} ({}), Linux {}, `{}`, guest in ring {}, {} pause-loop exits, {}",
        texts(facts, "pcpus").join(" or "),
        if facts["nested"].as_bool() == Some(true) { "a virtual machine" } else { "a physical machine" },
        text("cpu"),
        text("kernel").split('-').next().unwrap_or_default(),
        text("kvm_module"),
        texts(facts, "ring").join(" or "),
        if facts["pause_loop_exits"].as_bool() == Some(true) { "with" } else { "no" },
        schedulers.join(" and "),
    )
}

fn scheduler(name: &str, facts: &Value) -> String {
    let ms = |ns: &String| ns.parse::<f64>().map_or("unknown".into(), |ns| format!("{} ms", ns / 1e6));
    let slices: Vec<String> = texts(facts, "slice_ns").iter().map(ms).collect();
    match name {
        "vmm" => format!("the VMM's scheduler with slices of {}", slices.join(" or ")),
        other => format!("the {other}'s scheduler"),
    }
}

/// `24 November 2026`.
fn date(rfc_3339: &str) -> String {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    let number =
        |range| rfc_3339.get(range).and_then(|digits: &str| digits.parse::<usize>().ok()).unwrap_or(0);
    let month = MONTHS.get(number(5..7).wrapping_sub(1)).unwrap_or(&"unknown month");
    format!("{} {month} {}", number(8..10), number(0..4))
}

fn commit(commit: &str) -> String {
    let short = commit.get(..7).unwrap_or(commit);
    if commit.ends_with("-dirty") { format!("{short} with changes") } else { short.into() }
}

/// In quoted lines of at most 140 columns.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::from(">")];
    for word in text.split(' ') {
        if lines.last().is_some_and(|line| line.len() + word.len() >= 140) {
            lines.push(">".into());
        }
        let line = lines.last_mut().expect("a line");
        line.push(' ');
        line.push_str(word);
    }
    lines.join("\n")
}
