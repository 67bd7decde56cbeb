//! Sentences of README.md and docs against the records that they name: a wrong digit fails.
//!
//! [`page`] has the notation. `HALTKICK_WRITE_CLAIMS=1 cargo test --package haltkick --test claims` writes the records' digits and
//! boxes into the pages; words such as "faster" are the author's.

mod boxes;
mod kept;
mod links;
mod page;
mod printed;
mod tables;

use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::path::PathBuf;

use page::{Known, Page};

/// Set, it writes the records' figures into the pages.
const WRITE: &str = "HALTKICK_WRITE_CLAIMS";

fn pages() -> Vec<(String, PathBuf)> {
    let files = kept::pages().into_iter().chain([kept::root().join("README.md")]);
    let name = |path: &PathBuf| path.file_name().expect("a file").to_string_lossy().into_owned();
    let mut pages: Vec<_> = files.map(|path| (name(&path), path)).collect();
    pages.sort();
    pages
}

/// The part of a page where each figure needs a record: up to the first heading; of README the text before and the findings.
fn part_with_claims(name: &str, text: &str) -> Vec<Range<usize>> {
    let heading = |from: usize| text[from..].find("\n## ").map_or(text.len(), |at| from + at);
    let first = 0..heading(0);
    let findings = text.find("\n## What we found").filter(|_| name == "README.md");
    [Some(first), findings.map(|at| at..heading(at + 1))].into_iter().flatten().collect()
}

/// Figures in these parts that no kept record has: page, figure, and why.
const UNRECORDED: &[(&str, &str, &str)] = &[
    ("measuring.md", "5.0", "bench aa, 22 November 2026"),
    ("osq.md", "15 to 23", "published, 1.150 to 1.227"),
    ("simulated-truth.md", "25", "the margin"),
    ("simulated-truth.md", "76.9", "bench predict, 26 November 2026"),
    ("simulated-truth.md", "80", "the goal"),
    ("simulated-truth.md", "80.6", "the same"),
    ("tutorial.md", "1.8 to 3.2", "the page's table"),
];

/// Pages of figures of which no record is kept. Their box says so in the author's words.
const WITHOUT_RECORD: &[&str] = &[
    "engines.md",
    "explain.md",
    "harm.md",
    "linux-guest.md",
    "lock-objects.md",
    "locks.md",
    "measuring.md",
    "simulated-truth.md",
    "tutorial.md",
];

fn known() -> Known {
    Known { records: kept::records(), published: kept::published() }
}

#[test]
fn every_tied_figure_and_every_box_is_what_its_record_says() {
    let known = known();
    let mut problems = Vec::new();
    for (name, path) in pages() {
        let page = Page::examine(&known, &fs::read_to_string(&path).expect("a page"));
        if std::env::var_os(WRITE).is_some() {
            fs::write(&path, page.corrected()).expect("a file of the repository");
        }
        problems.extend(page.problems.iter().map(|problem| format!("{name}: {problem}")));
    }
    assert!(
        problems.is_empty(),
        "pages say something else than the records that they name:\n{}\n\
         Write the records' digits and boxes into the pages, then look at each sentence that changed:\n    \
         {WRITE}=1 cargo test --package haltkick --test claims",
        problems.join("\n")
    );
}

#[test]
fn every_figure_of_the_findings_names_its_record() {
    let known = known();
    let mut untied = BTreeSet::new();
    for (name, path) in pages() {
        let page = Page::examine(&known, &fs::read_to_string(&path).expect("a page"));
        for part in part_with_claims(&name, &page.text) {
            untied.extend(page.untied(part).into_iter().map(|figure| (name.clone(), figure)));
        }
    }
    let listed: BTreeSet<_> =
        UNRECORDED.iter().map(|(page, figure, _)| (page.to_string(), figure.to_string())).collect();
    let new: Vec<_> = untied.difference(&listed).collect();
    assert!(new.is_empty(), "figures without a comment that names their record:\n{new:#?}");
    let gone: Vec<_> = listed.difference(&untied).collect();
    assert!(gone.is_empty(), "no longer in the pages: take them from UNRECORDED:\n{gone:#?}");
}

#[test]
fn every_page_of_figures_opens_with_the_conditions_they_were_measured_under() {
    let mut without = Vec::new();
    for (name, path) in pages() {
        let text = fs::read_to_string(&path).expect("a page");
        // README names the conditions in the captions of its tables.
        let has_figures =
            name != "README.md" && text.contains("<!-- table ") || WITHOUT_RECORD.contains(&name.as_str());
        let below_title = text.split("\n\n").nth(1).unwrap_or_default();
        let is_box = match WITHOUT_RECORD.contains(&name.as_str()) {
            true => below_title.starts_with("> **Measured:**") && below_title.contains("no record"),
            false => below_title.starts_with("> **Measured:**") && below_title.contains("<!-- box of "),
        };
        if has_figures && !is_box {
            without.push(name);
        }
    }
    assert!(without.is_empty(), "no box below the title: {without:?}");
}

/// Wrong figures that these tests must find.
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use kept::Record;

    fn examined(known: &Known, text: &str) -> (Vec<String>, String, Vec<String>) {
        let page = Page::examine(known, text);
        (page.problems.clone(), page.corrected(), page.untied(0..text.len()))
    }

    fn one() -> Known {
        static FOLDERS: AtomicU32 = AtomicU32::new(0);
        let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("haltkick-claims-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let figures = "faster\tratio=2\t1.529\t1.411\t1.668\nfaster\tratio=8\t4.663\t3.714\t5.876\nshare of tas\t\t0.8637\n";
        fs::write(folder.join("figures.tsv"), figures).unwrap();
        fs::write(folder.join("table.txt"), "ratio lock  throughput\n    2 tas   583 k/s +- 3.3 %  1.00\n")
            .unwrap();
        fs::write(
            folder.join("record.json"),
            r#"{"runs": 4, "invalid": 1, "started": "2026-11-24T08:17:11Z"}"#,
        )
        .unwrap();
        let record = Record::at(&folder);
        fs::remove_dir_all(&folder).unwrap();
        Known { records: [("r".to_owned(), record)].into(), published: vec![7.34] }
    }

    #[test]
    fn a_wrong_digit_is_found() {
        let known = one();
        let right = "It is 4.66 times (3.71\nto 5.88) as fast <!-- r: faster @ ratio=8 -->, of 86 % and 7.34 times \
                     <!-- r: share of tas; published -->. It is 1.53 to 4.66 times as fast <!-- r: faster -->.\n";
        assert_eq!(examined(&known, right), (vec![], right.to_owned(), vec![]));
        for (digits, wrong) in
            [("4.66 times", "4.67 times"), ("5.88)", "5.89)"), ("86 %", "87 %"), ("1.53 to", "1.54 to")]
        {
            let text = right.replacen(digits, wrong, 1);
            let (problems, corrected, _) = examined(&known, &text);
            assert_eq!(
                (problems.len(), corrected),
                (1, right.replacen("86 %", if wrong == "87 %" { "86.4 %" } else { "86 %" }, 1)),
                "{wrong}"
            );
        }
        let other = right.replace("7.34", "7.35");
        assert!(examined(&known, &other).0[0].contains("no published figure"), "{other}");
    }

    #[test]
    fn a_figure_without_a_record_is_found() {
        let known = one();
        assert_eq!(examined(&known, "Now 2.5 times (2 to 3) and `3 times`.\n").2, ["2.5 times (2 to 3"]);
        for text in [
            "A gain. <!-- r: faster @ ratio=8 -->\n",
            "4.66 times <!-- s: faster @ ratio=8 -->\n",
            "4.66 times <!-- r: faster -->\n",
        ] {
            assert_eq!(examined(&known, text).0.len(), 1, "{text}");
        }
    }

    #[test]
    fn wrong_cells_lines_and_boxes_are_found() {
        let known = one();
        let table = "| | 2 | 8 |\n|---|---|---|\n| x | **1.53** (1.41 to 1.67) | **4.66** (3.71 to 5.88) |\n\n\
                     <!-- table r: faster | @ ratio=2; @ ratio=8 | bold excludes 1 -->\n";
        assert_eq!(examined(&known, table), (vec![], table.to_owned(), vec![]));
        for (right, wrong) in [("1.67", "1.68"), ("**1.53**", "1.53")] {
            assert_eq!(examined(&known, &table.replace(right, wrong)).0.len(), 1, "{wrong}");
        }
        let lines = "```text\nlock throughput\ntas 583 k/s +- 3.3 %\n```\n<!-- lines of r -->\n";
        assert_eq!(examined(&known, lines).0, Vec::<String>::new());
        assert_eq!(examined(&known, &lines.replace("583", "584")).0.len(), 1);
        let (problems, page, _) = examined(&known, "# T\n\n> **Measured:** long ago. <!-- box of r -->\n");
        assert!(
            problems.len() == 1 && page.contains("24 November 2026") && page.contains("1 of 4 (25 %)"),
            "{page}"
        );
        assert_eq!(examined(&known, &page).0, Vec::<String>::new());
    }
}
