//! Links of the pages: each relative file exists, and each anchor is a heading of its page.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::kept;

/// Pages whose links are checked, besides those of docs.
const AT_THE_TOP: &[&str] = &["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"];

/// Anchor that GitHub makes of a heading.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|letter| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_'));
    kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect()
}

/// Lines of a page that are not code.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    let mut in_code = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        !in_code && !fence
    })
}

fn anchors(text: &str) -> Vec<String> {
    let mut seen = BTreeMap::new();
    let headings = lines(text).filter(|line| line.starts_with('#')).map(anchor);
    headings
        .map(|name| {
            let before = seen.entry(name.clone()).or_insert(0);
            *before += 1;
            if *before == 1 { name } else { format!("{name}-{}", *before - 1) }
        })
        .collect()
}

/// Targets of the links of a page, without those that name a protocol.
fn targets(text: &str) -> Vec<String> {
    let text = lines(text).collect::<Vec<_>>().join("\n");
    let after = text.split("](").skip(1);
    let targets = after.filter_map(|rest| rest.split_once(')')).map(|(target, _)| target.to_owned());
    targets.filter(|target| !target.contains("://") && !target.starts_with("mailto:")).collect()
}

/// Fault of a link, if it has one.
fn fault(page: &Path, target: &str) -> Option<String> {
    let (file, wanted) = target.split_once('#').map_or((target, None), |(file, name)| (file, Some(name)));
    let path = match file {
        "" => page.to_owned(),
        file => page.parent().expect("a folder").join(file),
    };
    if !path.exists() {
        return Some(format!("{target}: there is no such file"));
    }
    let wanted = wanted.filter(|_| path.extension().is_some_and(|extension| extension == "md"))?;
    let known = anchors(&fs::read_to_string(&path).expect("a page"));
    (!known.iter().any(|name| name == wanted)).then(|| format!("{target}: no heading has this anchor"))
}

fn pages() -> Vec<PathBuf> {
    let at_the_top = AT_THE_TOP.iter().map(|name| kept::root().join(name));
    let mut pages: Vec<_> = kept::pages().into_iter().chain(at_the_top).collect();
    pages.sort();
    pages
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let mut faults = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).expect("a page");
        let of_page = targets(&text).into_iter().filter_map(|target| fault(&page, &target));
        faults.extend(of_page.map(|fault| format!("{}: {fault}", page.display())));
    }
    assert!(faults.is_empty(), "broken links:\n{}", faults.join("\n"));
}

#[test]
fn a_missing_file_or_heading_is_found() {
    let page = kept::root().join("README.md");
    assert_eq!(
        targets("[a](docs/x.md#y) [b](https://c.d) ![e](f.svg)\n```\n[g](h)\n```\n"),
        ["docs/x.md#y", "f.svg"]
    );
    assert_eq!(anchors("# A `b-c`: d?\n## E\n## E\n"), ["a-b-c-d", "e", "e-1"]);
    for wrong in ["docs/no-such-page.md", "docs/glossary.md#no-such-heading", "#no-such-heading"] {
        assert!(fault(&page, wrong).is_some(), "{wrong}");
    }
    assert_eq!(fault(&page, "docs/glossary.md#what-is-measured"), None);
}
