//! How long files and names may be. Clippy says how long functions may be.

use crate::source::{Source, sources};

const MOST_LINES_OF_A_FILE: usize = 800;
const MOST_WORDS_OF_A_NAME: usize = 12;

/// All of the workspace.
const FOLDERS: [&str; 4] = ["hypercalls", "guest", "vmm", "bench"];

/// The names in `text` that have too many words: those of tests, and titles that a test's parameters are filled into.
fn long_names(text: &str) -> Vec<&str> {
    let names = text.split(|c: char| !(c.is_ascii_alphanumeric() || "_{}".contains(c)));
    let words = |name: &str| name.split('_').filter(|word| !word.is_empty()).count();
    names.filter(|name| words(name) > MOST_WORDS_OF_A_NAME).collect()
}

#[test]
fn no_file_or_name_is_too_long() {
    let sources: Vec<Source> = FOLDERS.iter().flat_map(|folder| sources(folder)).collect();
    assert!(sources.len() > 300, "{} sources: where are the others?", sources.len());
    let mut long = Vec::new();
    for source in &sources {
        let (path, lines) = (source.path.display(), source.text.lines().count());
        if lines > MOST_LINES_OF_A_FILE {
            long.push(format!("{path}: {lines} lines: give what is a concept of its own a file of its own"));
        }
        let names = long_names(&source.text).into_iter();
        long.extend(
            names.map(|name| format!("{path}: {name}: a name has {MOST_WORDS_OF_A_NAME} words at most")),
        );
    }
    assert!(long.is_empty(), "{}", long.join("\n"));
}

#[test]
fn a_name_of_13_words_is_found_in_functions_and_titles() {
    let most = ["word"; MOST_WORDS_OF_A_NAME].join("_");
    for text in [format!("fn {most}() {{}}"), format!("format!(\"{most}\")")] {
        assert_eq!(long_names(&text), [""; 0]);
    }
    for long in [format!("{most}_more"), format!("{most}_{{lock}}")] {
        assert_eq!(long_names(&format!("#[test]\nfn {long}() {{}}")), [&long]);
        assert_eq!(long_names(&format!("format!(\"{long}\")")), [&long]);
    }
}
