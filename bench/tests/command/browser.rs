//! The report in a real browser (Debian's chromium, without a window): in light, dark and on paper, wide and narrow.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::support::{Check, apply, code, command, kvm, scratch, skip, stderr, trial};
use crate::tiny::run_tiny;

/// Widths of windows; chromium has no narrower ones.
const WIDTHS: [u32; 2] = [500, 1100];

fn chromium() -> Check {
    let version = Command::new("chromium").arg("--version").output();
    version.or_else(|error| skip(format_args!("chromium (apt-get install chromium): {error}")))?;
    Ok(())
}

/// Shows `page` in a window of `width`, with a profile of its own.
fn browse(page: &Path, width: u32, option: &str) -> Output {
    let profile = page.with_extension("profile");
    let rendered = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"])
        .args(["--hide-scrollbars", "--enable-logging=stderr", option])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!("--window-size={width},900"))
        .arg(format!("file://{}", page.display()))
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

#[apply(trial)]
fn a_browser_shows_all_of_the_report_without_complaint_and_prints_it() -> Check {
    kvm()?;
    chromium()?;
    let report = run_tiny("rendered").join("report.html");
    let html = fs::read_to_string(&report).unwrap();
    let rendered = browse(&report, WIDTHS[1], "--dump-dom");
    let dom = String::from_utf8_lossy(&rendered.stdout);
    assert_eq!(dom.matches("<section").count(), html.matches("<section").count());
    assert_eq!(dom.matches("<svg").count(), html.matches("<svg").count());
    assert_eq!(complaints(&rendered), [""; 0]);
    let asking = report.with_file_name("asking.html");
    fs::write(&asking, html.replace("<main>", "<main><img src=\"http://127.0.0.1:9/\">")).unwrap();
    let refused = complaints(&browse(&asking, WIDTHS[1], "--dump-dom"));
    assert!(refused.iter().any(|line| line.contains("Content Security Policy")), "{refused:?}");
    let paper = report.with_file_name("report.pdf");
    browse(&report, WIDTHS[1], &format!("--print-to-pdf={}", paper.display()));
    let pdf = fs::read(&paper).expect("a page that was printed");
    assert!(pdf.starts_with(b"%PDF") && pdf.len() > 20_000, "{} bytes", pdf.len());
    Ok(())
}

#[apply(trial)]
fn no_text_of_the_report_is_faint_small_or_cut_off() -> Check {
    kvm()?;
    chromium()?;
    let report = run_tiny("looked-at").join("report.html");
    let html = fs::read_to_string(&report).unwrap();
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
        let page = report.with_file_name(format!("{name}.html"));
        assert!(html.contains(medium), "{medium}");
        let chosen = if medium.is_empty() { looking.clone() } else { looking.replace(medium, "@media all") };
        fs::write(&page, chosen).unwrap();
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

#[apply(trial)]
fn the_desktops_browser_opens_the_report_or_its_absence_is_told() -> Check {
    use std::os::unix::fs::PermissionsExt as _;
    kvm()?;
    let (results, desktop) = (run_tiny("opened"), scratch("desktop"));
    let directory = results.to_str().unwrap();
    let report = |path: &Path| {
        command(&["report", directory, "--open"]).env("PATH", path).output().expect("haltkick can be started")
    };
    let without = report(&desktop);
    assert_eq!(code(&without), 4, "{}", stderr(&without));
    let page = results.join("report.html");
    assert!(stderr(&without).contains(&format!("the report is {}", page.display())), "{}", stderr(&without));
    let (opener, opened) = (desktop.join("xdg-open"), desktop.join("opened"));
    fs::write(&opener, format!("#!/bin/sh\necho \"$1\" > {}\n", opened.display())).unwrap();
    fs::set_permissions(&opener, fs::Permissions::from_mode(0o755)).unwrap();
    let with = report(&desktop);
    assert!([0, 7].contains(&code(&with)), "{}", stderr(&with));
    assert_eq!(fs::read_to_string(opened).unwrap().trim(), page.to_str().unwrap());
    Ok(())
}
