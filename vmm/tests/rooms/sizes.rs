//! How long files, functions and names may be.

use proc_macro2::TokenTree::{Group, Ident};
use proc_macro2::{Delimiter, TokenStream};

use crate::source::{Source, is, sources};

const MOST_LINES_OF_A_FILE: usize = 800;
const MOST_LINES_OF_A_FUNCTION: usize = 60;
const MOST_WORDS_OF_A_NAME: usize = 12;
/// Begins the reason of a longer function, in the comment above it.
const REASON: &str = "Long: ";

/// All of the workspace.
const FOLDERS: [&str; 4] = ["hypercalls", "guest", "vmm", "bench"];

/// The functions of `text` that are too long without a reason: line, length.
fn long_functions(text: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    look(text.parse().expect("a source can be read"), &text.lines().collect::<Vec<_>>(), &mut found);
    found
}

fn look(tokens: TokenStream, lines: &[&str], found: &mut Vec<(usize, usize)>) {
    // The beginning of a function whose body has not come.
    let mut begun = None;
    for token in tokens {
        match token {
            Ident(word) if word == "fn" => begun = Some(word.span().start().line),
            Group(group) => {
                if group.delimiter() == Delimiter::Brace
                    && let Some(first) = begun.take()
                {
                    let length = group.span_close().end().line - first + 1;
                    let above = lines[..first - 1].iter().rev().map(|line| line.trim_start());
                    let mut comment =
                        above.take_while(|line| line.starts_with("//") || line.starts_with("#["));
                    if length > MOST_LINES_OF_A_FUNCTION && !comment.any(|line| line.contains(REASON)) {
                        found.push((first, length));
                    }
                }
                look(group.stream(), lines, found);
            }
            mark if is(&mark, ';') => begun = None,
            _ => {}
        }
    }
}

/// The names in `text` that have too many words: those of tests, and titles that a test's parameters are filled into.
fn long_names(text: &str) -> Vec<&str> {
    let names = text.split(|c: char| !(c.is_ascii_alphanumeric() || "_{}".contains(c)));
    let words = |name: &str| name.split('_').filter(|word| !word.is_empty()).count();
    names.filter(|name| words(name) > MOST_WORDS_OF_A_NAME).collect()
}

#[test]
fn no_file_function_or_name_is_too_long() {
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
        let functions = long_functions(&source.text).into_iter();
        long.extend(functions.map(|(line, length)| {
            format!("{path}:{line}: {length} lines: divide it, or give a reason (`{REASON}...` above it)")
        }));
    }
    assert!(long.is_empty(), "{}", long.join("\n"));
}

#[test]
fn a_long_function_is_found_anywhere_unless_a_reason_is_given() {
    let body = "\n".repeat(MOST_LINES_OF_A_FUNCTION - 1);
    assert_eq!(long_functions(&format!("fn f() {{{body}}}")), []);
    let function = |before: &str| format!("{before}fn f() {{\n{body}}}");
    let found = |text: String| long_functions(&text).into_iter().map(|(line, _)| line).collect::<Vec<_>>();
    assert_eq!(found(function("")), [1]);
    assert_eq!(found(function("/// It does.\n")), [2]);
    assert_eq!(found(function("/// It does. Long: it is a table.\n#[inline]\n")), [0; 0]);
    assert_eq!(found(function("// Long: elsewhere.\nfn g() {}\n")), [3]);
    assert_eq!(found(format!("impl A {{\n{}\n}}", function("fn g();\npub "))), [3]);
    assert_eq!(found(format!("mod a {{ trait A {{\n{}\n}} }}", function(""))), [2]);
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
