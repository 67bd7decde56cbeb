//! The sources of the locks: their words.
#![cfg(not(miri))]

use std::{collections::BTreeMap, fs, path::Path};

/// A type, not a step.
const A_NAME: &str = "V16";

/// Module whose codes all others may use.
const RACES: &str = "faults/races";

/// The codes in a text: a capital, one or two digits, perhaps a letter.
fn codes(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric()).filter(|word| {
        let mut rest = word.chars();
        let capital = rest.next().is_some_and(|c| c.is_ascii_uppercase());
        let rest = rest.as_str().trim_end_matches(|c: char| c.is_ascii_lowercase());
        let digits = (1..3).contains(&rest.len()) && rest.chars().all(|c| c.is_ascii_digit());
        capital && digits && word.len() <= rest.len() + 2 && *word != A_NAME
    })
}

/// The codes that a line of a module's documentation explains: at its beginning, in a column, or in the first of a table.
fn explained(line: &str) -> impl Iterator<Item = &str> {
    let text = line.strip_prefix("//! ").unwrap_or("");
    let columns = text.strip_prefix("| ").unwrap_or(text).split("  ").map(str::trim);
    columns.filter_map(|column| {
        let first = column.split(' ').next()?;
        codes(first).next().filter(|code| *code == first)
    })
}

/// The lines of each module, all files of the queue spinlock counting as one, and the resilient one, which is made of it and has its steps.
fn modules() -> BTreeMap<String, Vec<String>> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut modules = BTreeMap::<_, Vec<_>>::new();
    let mut unread = vec![src.clone()];
    while let Some(path) = unread.pop() {
        if path.is_dir() {
            unread.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let inside = path.strip_prefix(&src).unwrap().with_extension("");
        let is_one_lock = inside.starts_with("qspinlock") || inside == Path::new("queued/rqspinlock");
        let module = if is_one_lock { Path::new("qspinlock") } else { &inside };
        let lines = text.lines().map(|line| line.trim().into());
        modules.entry(module.display().to_string()).or_default().extend(lines);
    }
    modules
}

#[test]
fn every_step_and_race_has_one_explained_name() {
    let modules = modules();
    let mut explained_in = BTreeMap::new();
    for (module, lines) in &modules {
        for code in lines.iter().flat_map(|line| explained(line)) {
            let before = explained_in.insert(code, module.as_str());
            assert!(before.is_none_or(|before| before == module), "{code}: {module} and {before:?}");
        }
    }
    assert!(explained_in.len() > 90, "only {} codes found", explained_in.len());
    for (module, lines) in &modules {
        let comments = lines.iter().filter_map(|line| line.find("//").map(|at| &line[at..]));
        for code in comments.flat_map(codes) {
            let at = explained_in.get(code).unwrap_or_else(|| panic!("{module}: nobody explains {code}"));
            let is_known = *at == module || *at == RACES || module == RACES;
            assert!(is_known, "{module} means the {code} of {at}");
        }
    }
}
