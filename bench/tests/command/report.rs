//! The report: as a file, with published figures, and in a real browser (Debian's chromium, without a window), in light, dark and on
//! paper, wide and narrow.

use std::fs;
use std::process::{Command, Output};

use serde_json::Value;

use crate::support::{
    Check, FINISHED, apply, assert_valid, command, end_of, finished, has, json, kvm_trial, read, run_tiny,
    runs, scratch, tiny, written,
};

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
fn browse(page: &str, width: u32, option: &str) -> Output {
    let profile = format!("{page}.profile");
    let rendered = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"])
        .args(["--hide-scrollbars", "--enable-logging=stderr", option])
        .arg(format!("--user-data-dir={profile}"))
        .arg(format!("--window-size={width},900"))
        .arg(format!("file://{page}"))
        .output()
        .expect("chromium can be started");
    let _ = fs::remove_dir_all(profile);
    rendered
}

/// Returns the browser's complaints about the page. A rule of the page forbids all requests, so a request is a
/// complaint.
fn complaints(rendered: &Output) -> Vec<String> {
    let log = String::from_utf8_lossy(&rendered.stderr);
    log.lines().filter(|line| line.contains("CONSOLE")).map(str::to_owned).collect()
}

#[apply(kvm_trial)]
fn a_browser_shows_all_of_the_report_without_complaint_and_prints_it() -> Check {
    has("chromium")?;
    let results = run_tiny("rendered");
    let report = format!("{results}/report.html");
    let html = read(&report);
    let rendered = browse(&report, WIDTHS[1], "--dump-dom");
    let dom = String::from_utf8_lossy(&rendered.stdout);
    for element in ["<section", "<svg"] {
        assert_eq!(dom.matches(element).count(), html.matches(element).count(), "{element}");
    }
    assert_eq!(complaints(&rendered), [""; 0]);
    let asking = html.replace("<main>", "<main><img src=\"http://127.0.0.1:9/\">");
    let asking = written(format!("{results}/asking.html"), asking);
    let refused = complaints(&browse(&asking, WIDTHS[1], "--dump-dom"));
    assert!(refused.iter().any(|line| line.contains("Content Security Policy")), "{refused:?}");
    let paper = format!("{results}/report.pdf");
    browse(&report, WIDTHS[1], &format!("--print-to-pdf={paper}"));
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
            let rendered = browse(&page, width, "--dump-dom");
            let dom = String::from_utf8_lossy(&rendered.stdout);
            let found = dom.split_once("<pre id=\"found\">").and_then(|(_, rest)| rest.split_once("</pre>"));
            let (found, _) = found.unwrap_or_else(|| panic!("{name}, {width}: {:?}", complaints(&rendered)));
            let (texts, wrong) = found.split_once('\n').unwrap_or((found, ""));
            let texts: usize = texts.trim_end_matches(" texts").parse().expect("how many texts there are");
            assert!(wrong.is_empty() && texts > 100, "{name}, {width} px, {texts} texts:\n{wrong}");
        }
    }
    Ok(())
}

#[apply(kvm_trial)]
fn the_report_needs_no_network_and_the_desktops_browser_opens_it() {
    use std::os::unix::fs::PermissionsExt as _;
    let (results, desktop) = (run_tiny("opened"), scratch("desktop"));
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
