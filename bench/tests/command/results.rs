//! Directories of results: the files that an experiment leaves, merged ones, and refusals there; experiments that are interrupted,
//! killed or cut off lose nothing. Results for other programs: exports, the script that draws the headline picture again, lists and
//! stacks. The report: as a file, with published figures, and in a real browser (Debian's chromium, without a window), in light, dark
//! and on paper, wide and narrow.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::support::*;

#[apply(kvm_trial)]
fn an_experiment_leaves_a_complete_directory_that_keeps_to_the_schemas() {
    let (experiment, results) = tiny("complete");
    finished(&format!("bench {experiment} --output {results}"));
    assert_eq!(runs(&results).len(), 3 * CELLS_PER_BLOCK);
    assert!(runs(&results).values().all(|count| *count == 1));
    records(&results).iter().for_each(assert_complete);
    for of in ["manifest", "summary"] {
        assert_valid(of, &json(format!("{results}/{of}.json")));
    }
    for name in ["summary.csv", "runs.csv", "report.html"] {
        assert!(!read(format!("{results}/{name}")).is_empty(), "{name}");
    }
    for name in ["throughput", "efficiency", "fairness", "time"] {
        assert!(!read(format!("{results}/{name}.svg")).is_empty(), "{name}");
    }
    let names = fs::read_dir(&results).unwrap().flatten().map(|file| file.file_name());
    let left_over: Vec<_> = names.filter(|name| name.to_string_lossy().contains("partial")).collect();
    assert!(left_over.is_empty(), "{left_over:?}");
}

#[apply(trial)]
fn broken_old_and_foreign_records_are_refused_with_file_and_line() {
    let results = results("broken");
    let (path, report) = (format!("{results}/runs.jsonl"), format!("report {results}"));
    let good = read(&path);
    let of_version_9 = good.lines().nth(1).unwrap().replace("\"schema_version\":2", "\"schema_version\":9");
    for (replacement, expected) in [
        ("garbage", "no JSON"),
        (
            "{\"schema\":\"somebody.else\",\"schema_version\":2}",
            "schema is 'somebody.else', not 'haltkick.run'",
        ),
        (&of_version_9, "version 9 of haltkick.run, where this haltkick reads version 2"),
        ("{\"schema\":\"haltkick.run\",\"schema_version\":2}", "broken ("),
    ] {
        let mut lines: Vec<&str> = good.lines().collect();
        lines[1] = replacement;
        fs::write(&path, lines.join("\n") + "\n").unwrap();
        refuses(&report, &format!("{path}:2: {expected}"));
    }
    fs::remove_file(&path).unwrap();
    symlink("/dev/zero", &path).unwrap();
    refuses(&report, "runs.jsonl: it is no regular file");
}

/// A question about two small guests on a modelled host, whose waiters exit when they spin.
const QUESTION: &str = "answer pv --engine sim --machine nehalem-2s --cpus 0-1 --guests 2 --ratio 1 \
                        --host linux-7.3 --window 2ms --warmup 500us";

#[apply(trial)]
fn an_answer_is_given_when_stopped_or_when_its_time_is_over() {
    /// Cells of a block: three guests as asked for, without exits, and under another scheduler; and the A/A pair's second half.
    const CELLS: usize = 10;
    for (name, blocks, time, expected) in [
        ("answer-stopped", "100000", "1h", 130),
        ("answer-late", "100000", "10s", 0),
        ("answer-whole", "2", "1h", 0),
    ] {
        let results = format!("{}/out", scratch(name));
        let line = format!("{QUESTION} --output {results} --blocks {blocks} --for {time}");
        let mut answer = started(&mut command(&line));
        if expected == 130 {
            // Each of two guests has a record.
            wait_for_records(&results, 4 * CELLS);
            answer.signal(Signal::INT);
        }
        let ended = answer.ended().with(&[expected]).prints(&[
            "in ring 0, where waiters that spin exit, slices of 1.4ms by the scheduler of linux-7.3",
            "2 guests of 2 vCPUs on 2 pCPUs of the simulated nehalem-2s",
        ]);
        for tried in ["--pause-exits off", "--host cfs-2019"] {
            assert_eq!(ended.out.matches(tried).count(), 2, "{tried}: {ended}");
        }
        assert_eq!(ended.out.contains("a longer --for"), blocks != "2", "{ended}");
        let like = ended.out.lines();
        let like = like.filter_map(|line| line.strip_prefix("  on 4 machines like the simulated one: "));
        let tried: Vec<bool> = like.map(|word| word != "not tried yet").collect();
        assert_eq!(tried, [blocks == "2"; 2], "{ended}");
    }
}

/// The records that are on disk, as text: all lines of `runs.jsonl` that have an end.
fn kept(results: &str) -> String {
    let text = fs::read_to_string(format!("{results}/runs.jsonl")).unwrap_or_default();
    text.rfind('\n').map_or_else(String::new, |end| text[..=end].to_owned())
}

pub(crate) fn wait_for_records(results: &str, count: usize) {
    eventually(&format!("{count} records"), || (kept(results).lines().count() >= count).then_some(()));
}

#[apply(kvm_trial)]
fn an_experiment_killed_again_and_again_is_completed_without_loss() {
    let (experiment, results) = tiny("killed");
    let (blocks, resume) = (9, format!("bench --resume {results}"));
    let begin = format!("bench {experiment} --blocks {blocks} --output {results}");
    for kill in 0..8u64 {
        let before = kept(&results);
        let bench = started(&mut command(if kill == 0 { &begin } else { &resume }));
        // Half of them are killed between cells or in one, the others wherever they are.
        if kill % 2 == 0 {
            wait_for_records(&results, before.lines().count() + 1);
        }
        std::thread::sleep(Duration::from_millis(kill * 29 % 97));
        drop(bench);
        assert!(kept(&results).starts_with(&before), "what was recorded was touched");
    }
    let done = runs(&results).len();
    assert!(done < blocks * CELLS_PER_BLOCK, "it was over before it was killed for the last time");
    finished(&resume);
    let complete = runs(&results);
    assert_eq!(complete.len(), blocks * CELLS_PER_BLOCK);
    assert!(complete.values().all(|count| *count == 1), "{complete:?}");
    // Half a last line is cut off, and its cell runs again.
    let path = format!("{results}/runs.jsonl");
    let text = read(&path);
    written(path, &text[..text.len() - 100]);
    let before = kept(&results);
    finished(&resume);
    assert!(kept(&results).starts_with(&before), "what was recorded was touched");
    assert_eq!(runs(&results), complete);
}

/// Two locks on a simulated machine, twice: needs no KVM.
fn results(name: &str) -> String {
    let results = format!("{}/results", scratch(name));
    let sweep = "sweep --vary ratio=1 --vary lock=ticket,mcs --compare --blocks 2";
    // Next to the directory, where a process that runs guests opens nothing from then on.
    let table = format!("markdown={results}.table.md");
    finished(&format!("{sweep} {SIMULATED} --output {results} --export {table}")).prints(&["model's"]);
    results
}

#[apply(trial)]
fn a_directorys_table_is_exported_to_files_and_to_standard_output() {
    let results = results("exports");
    let both = format!("report {results} --export markdown --export markdown={results}.again.md");
    let exported = finished(&both);
    assert_eq!(exported.err.matches("exported: ").count(), 2, "{exported}");
    let table = read(format!("{results}/table.md"));
    assert!(table.starts_with("### Sweep of lock over ratio\n"), "{table}");
    assert!(table.contains("| mcs/ticket |"), "{table}");
    assert_eq!(finished(&format!("report {results} --export markdown=-")).out, table);
    assert!(["table", "again"].iter().all(|name| read(format!("{results}.{name}.md")) == table));
    let nowhere = format!("report {results} --export markdown={results}/none/table.md");
    refuses(&nowhere, "none/table.md: No such file or directory");
}

#[apply(trial)]
fn the_script_recomputes_the_headline_picture_and_notices_a_difference() -> Check {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/headline.py");
    has("python3")?;
    let results = results("headline");
    let points = || end_of(Command::new("python3").args([script, &results, "--points"]));
    let drawn = points().with(&[0]).out;
    assert!(drawn.starts_with("ratio,arm,estimate,low,high"), "{drawn}");
    assert_eq!(drawn.lines().count(), 1 + 3, "two arms and the lock-free cell: {drawn}");
    let runs = format!("{results}/runs.csv");
    let text = read(&runs);
    let is_of_it = |line: &&str| line.contains(",acquisitions_per_second,") && line.contains(",ticket,arm,");
    // All values are changed, so that any estimate of them is this one.
    let changed = text.lines().map(|line| match line.rsplit_once(',').filter(|_| is_of_it(&line)) {
        Some((rest, _)) => format!("{rest},12345\n"),
        None => format!("{line}\n"),
    });
    written(runs, changed.collect::<String>());
    let ended = points().says(&["and the runs give 12345"]);
    assert_ne!(ended.code, 0);
}

#[apply(trial)]
fn lists_answer_in_json_with_the_names_of_the_table() {
    for of in ["locks", "workloads", "points", "experiments", "machines"] {
        let listing = haltkick(&format!("list {of} --format json")).json();
        assert_valid("list", &listing);
        let told = haltkick(&format!("list {of}")).out;
        let names: Vec<&str> = told.lines().filter_map(|line| line.split_whitespace().next()).collect();
        let listed =
            listing["entries"].as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap());
        assert_eq!(listed.collect::<Vec<_>>(), names, "{of}");
        assert_eq!(listing["of"], of);
    }
    let locks = haltkick("list locks --format json").json();
    let locks = locks["entries"].as_array().unwrap();
    let lock = |name: &str| locks.iter().find(|lock| lock["name"] == name).unwrap();
    assert_eq!(lock("qspinlock")["pv"], serde_json::json!(["on", "off"]));
    assert_eq!(lock("tas")["pv"], serde_json::json!(["off"]));
    // A lock in several layouts is listed once.
    assert_eq!(locks.iter().filter(|lock| lock["name"].as_str().unwrap().starts_with("mutex")).count(), 1);
    assert_eq!(lock("mutex")["layouts"].as_array().unwrap().len(), 4);
    haltkick("list locks").prints(&["--layout packed, split, cached, prev-cpu\n"]);
    haltkick("list").prints(&["haltkick list locks", "haltkick list machines", "haltkick list figures"]);
}

#[apply(trial)]
fn each_arms_first_run_keeps_its_timeline_for_the_report() {
    let results = results("timeline");
    for record in records(&results) {
        let is_first = record["place"]["block"] == 0 && record["place"]["role"] == "arm";
        assert_eq!(record["timeline"].is_object(), is_first, "{record}");
        let why = "records have it of the first run of each arm";
        assert_eq!(record["why"]["timeline"] == why, !is_first, "{}", record["why"]);
        for side in ["on_pcpu", "off_pcpu"].into_iter().filter(|_| is_first) {
            let vcpus = record["timeline"][side].as_array().unwrap();
            assert_eq!(vcpus.len() as u64, record["settings"]["vcpus"].as_u64().unwrap());
            assert!(vcpus.iter().all(|vcpu| (1..=100).contains(&vcpu.as_str().unwrap().len())), "{vcpus:?}");
        }
    }
    let page = read(format!("{results}/report.html"));
    assert!(page.contains("over seeds only, without"));
    assert!(page.contains("Where each vCPU was") && page.contains("<title>mcs: on a pCPU</title>"));
}

/// Sums of what vCPUs say of themselves go beyond what a number holds.
#[apply(trial)]
fn counts_as_great_as_a_number_holds_are_reported_like_others() {
    let results = results("great");
    let mut records = records(&results);
    let vcpus = records.iter_mut().flat_map(|record| record["per_vcpu"].as_array_mut().expect("vCPUs"));
    let fields = vcpus.flat_map(|vcpu| vcpu.as_object_mut().expect("a vCPU").values_mut());
    let counts: Vec<&mut Value> = fields.filter(|field| field.is_u64()).collect();
    assert!(counts.len() > 50, "{} counts", counts.len());
    counts.into_iter().for_each(|count| *count = u64::MAX.into());
    let lines = records.iter().map(|record| format!("{record}\n"));
    written(format!("{results}/runs.jsonl"), lines.collect::<String>());
    finished(&format!("report {results}"));
}

#[apply(trial)]
fn a_profile_is_written_as_folded_stacks() {
    let folded = format!("{}/ticket.folded", scratch("folded"));
    let run = "run --engine sim --machine cascadelake-2s --cpus 0-1 --ratio 1 --duration 20ms --no-ideal --lock ticket";
    let record = finished(&format!("{run} --profile --folded {folded} --format json")).json();
    let text = read(folded);
    let samples: u64 =
        text.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum();
    assert_eq!(Some(samples), record["profile"]["samples"].as_u64());
    let is_stack = |line: &str| line.starts_with("ticket;") && line.matches(';').count() >= 2;
    assert!(samples > 0 && text.lines().all(is_stack), "{text}");
    finished(&format!("{run} --profile")).prints(&["# Overhead  State", "that vCPUs had on simulated pCPUs"]);
}

#[apply(kvm_trial)]
fn published_figures_stand_beside_ours() {
    let (_, results) = tiny("reproduce");
    let short = "--blocks=2 --ratios=1,4 --window=20ms --set=warmup=5ms --set=work=5ms --set=think=20us";
    let reproduce = format!("reproduce qspinlock {short} --format=json --output {results}");
    let reproduction = finished(&reproduce).json();
    assert_valid("reproduction", &reproduction);
    assert_eq!(reproduction, json(format!("{results}/reproduction.json")));
    // Which ratio each row finds: `analysis::summary::published`.
    let is_vm2 = |row: &&Value| row["published"]["name"].as_str().unwrap().ends_with("VM2");
    let row = reproduction["rows"].as_array().unwrap().iter().find(is_vm2).expect("the study's VM2");
    assert_eq!((&row["published"]["value"], &row["like"]), (&Value::from([2.01]), &"LR--".into()), "{row}");
    let results = format!("{results}/qspinlock");
    let summary = json(format!("{results}/summary.json"));
    finished(&format!("report {results}")).prints(&["qspinlock with PV support, v16 (2015), VM2: "]);
    assert_eq!(summary["published"], reproduction["rows"]);
    // A repetition: the records are there, so that no run is needed.
    let runs = runs(&results);
    finished(&reproduce);
    assert_eq!(self::runs(&results), runs);
}

/// Widths of windows; chromium has no narrower ones.
const WIDTHS: [u32; 2] = [500, 1100];

/// Shows a page in a window of `width`, with a profile of its own.
fn browse(page: &str, width: u32, option: &str) -> Result<Ended, Failed> {
    let profile = format!("{page}.profile");
    let mut chromium = Command::new("chromium");
    chromium.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]);
    chromium.args(["--hide-scrollbars", "--enable-logging=stderr", option]);
    chromium.arg(format!("--user-data-dir={profile}")).arg(format!("--window-size={width},900"));
    let rendered = end_if_there(chromium.arg(format!("file://{page}")));
    let _ = fs::remove_dir_all(profile);
    rendered
}

/// Returns the browser's complaints about the page. A rule of the page forbids all requests, so a request is a
/// complaint.
fn complaints(rendered: &Ended) -> Vec<&str> {
    rendered.err.lines().filter(|line| line.contains("CONSOLE")).collect()
}

#[apply(trial)]
fn a_browser_shows_all_of_the_report_without_complaint_and_prints_it() -> Check {
    let results = results("rendered");
    let report = format!("{results}/report.html");
    let html = read(&report);
    let rendered = browse(&report, WIDTHS[1], "--dump-dom")?;
    for element in ["<section", "<svg"] {
        assert_eq!(rendered.out.matches(element).count(), html.matches(element).count(), "{element}");
    }
    assert_eq!(complaints(&rendered), [""; 0]);
    let asking = html.replace("<main>", "<main><img src=\"http://127.0.0.1:9/\">");
    let asking = written(format!("{results}/asking.html"), asking);
    let asked = browse(&asking, WIDTHS[1], "--dump-dom")?;
    let refused = complaints(&asked);
    assert!(refused.iter().any(|line| line.contains("Content Security Policy")), "{refused:?}");
    let paper = format!("{results}/report.pdf");
    browse(&report, WIDTHS[1], &format!("--print-to-pdf={paper}"))?;
    let pdf = fs::read(&paper).expect("a page that was printed");
    assert!(pdf.starts_with(b"%PDF") && pdf.len() > 20_000, "{} bytes", pdf.len());

    // No text is faint, small or cut off.
    let policy = html.find("<meta http-equiv").expect("the page has a policy, under which it runs no script");
    let after = policy + html[policy..].find('>').unwrap() + 1;
    let script = format!("<script>{}</script>", include_str!("look.js"));
    let looking = format!("{}{script}{}", &html[..policy], &html[after..]);
    // Printed pages are as wide as a wide window.
    for (name, medium, widths) in [
        ("light", "", &WIDTHS[..]),
        ("dark", "@media (prefers-color-scheme:dark)", &WIDTHS[..]),
        ("paper", "@media print", &WIDTHS[1..]),
    ] {
        assert!(html.contains(medium), "{medium}");
        let chosen = if medium.is_empty() { looking.clone() } else { looking.replace(medium, "@media all") };
        let page = written(format!("{results}/{name}.html"), chosen);
        for &width in widths {
            let rendered = browse(&page, width, "--dump-dom")?;
            let found =
                rendered.out.split_once("<pre id=\"found\">").and_then(|(_, rest)| rest.split_once("</pre>"));
            let (found, _) = found.unwrap_or_else(|| panic!("{name}, {width}: {:?}", complaints(&rendered)));
            let (texts, wrong) = found.split_once('\n').unwrap_or((found, ""));
            let texts: usize = texts.trim_end_matches(" texts").parse().expect("how many texts there are");
            assert!(wrong.is_empty() && texts > 100, "{name}, {width} px, {texts} texts:\n{wrong}");
        }
    }
}

#[apply(trial)]
fn the_report_needs_no_network_and_the_desktops_browser_opens_it() {
    let (results, desktop) = (results("opened"), scratch("desktop"));
    let page = format!("{results}/report.html");
    let html = read(&page);
    assert!(html.contains("<section") && html.contains("<svg"), "{html}");
    assert!(html.len() < 3 << 20, "{} bytes", html.len());
    let addresses = html.match_indices("http").map(|(at, _)| &html[at..(at + 26).min(html.len())]);
    // The policy that keeps a browser from making requests is an attribute of this name.
    let addresses: Vec<&str> = addresses.filter(|at| !at.starts_with("http-equiv=")).collect();
    assert!(addresses.iter().all(|address| *address == "http://www.w3.org/2000/svg"), "{addresses:?}");
    assert!(!html.contains("<script") && !html.contains("@import") && !html.contains("src="));
    let report = || end_of(command(&format!("report {results} --open")).env("PATH", &desktop));
    report().with(&[4]).says(&[&format!("the report is {page}")]);
    let script = format!("#!/bin/sh\necho \"$1\" > {desktop}/opened\n");
    let opener = written(format!("{desktop}/xdg-open"), script);
    fs::set_permissions(&opener, fs::Permissions::from_mode(0o755)).unwrap();
    report().with(FINISHED);
    assert_eq!(read(format!("{desktop}/opened")).trim(), page);
}
