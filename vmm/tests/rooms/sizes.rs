//! How long files, functions and names may be.

use syn::visit::{self, Visit};

use crate::source::{Source, sources};

const MOST_LINES_OF_A_FILE: usize = 800;
const MOST_LINES_OF_A_FUNCTION: usize = 60;
const MOST_WORDS_OF_A_NAME: usize = 12;
/// Begins the reason of a longer function, in the comment above it.
const REASON: &str = "Long: ";

/// All of the workspace.
const FOLDERS: [&str; 4] = ["hypercalls", "guest", "vmm", "bench"];

/// The functions of `text` that are too long without a reason: name, line, length.
fn long_functions(text: &str) -> Vec<(String, usize, usize)> {
    let file = syn::parse_file(text).expect("a source can be read");
    let mut reader = Reader { lines: text.lines().collect(), found: Vec::new() };
    reader.visit_file(&file);
    reader.found
}

/// The names in `text` that have too many words: those of tests, and titles that a test's parameters are filled into.
fn long_names(text: &str) -> Vec<&str> {
    let names = text.split(|c: char| !(c.is_ascii_alphanumeric() || "_{}".contains(c)));
    let words = |name: &str| name.split('_').filter(|word| !word.is_empty()).count();
    names.filter(|name| words(name) > MOST_WORDS_OF_A_NAME).collect()
}

struct Reader<'t> {
    lines: Vec<&'t str>,
    found: Vec<(String, usize, usize)>,
}

impl Reader<'_> {
    fn look(&mut self, signature: &syn::Signature, body: &syn::Block) {
        let (first, last) = (signature.fn_token.span.start().line, body.brace_token.span.close().end().line);
        let length = last - first + 1;
        let above = self.lines[..first - 1].iter().rev().map(|line| line.trim_start());
        let mut comment = above.take_while(|line| line.starts_with("//") || line.starts_with("#["));
        if length > MOST_LINES_OF_A_FUNCTION && !comment.any(|line| line.contains(REASON)) {
            self.found.push((signature.ident.to_string(), first, length));
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.look(&function.sig, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.look(&function.sig, &function.block);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        if let Some(body) = &function.default {
            self.look(&function.sig, body);
        }
        visit::visit_trait_item_fn(self, function);
    }
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
        long.extend(functions.map(|(name, line, length)| {
            format!(
                "{path}:{line}: {name}: {length} lines: divide it, or give a reason (`{REASON}...` above it)"
            )
        }));
    }
    assert!(long.is_empty(), "{}", long.join("\n"));
}

#[test]
fn a_long_function_is_found_anywhere_unless_a_reason_is_given() {
    let body = "\n".repeat(MOST_LINES_OF_A_FUNCTION - 1);
    let function = |before: &str| format!("{before}fn f() {{{body}}}");
    assert_eq!(long_functions(&function("")), []);
    let function = |before: &str| format!("{before}fn f() {{\n{body}}}");
    let found = |text: String| long_functions(&text).into_iter().map(|(_, line, _)| line).collect::<Vec<_>>();
    assert_eq!(found(function("")), [1]);
    assert_eq!(found(function("/// It does.\n")), [2]);
    assert_eq!(found(function("/// It does. Long: it is a table.\n#[inline]\n")), [0; 0]);
    assert_eq!(found(function("// Long: elsewhere.\nfn g() {}\n")), [3]);
    assert_eq!(found(format!("impl A {{\n{}\n}}", function("pub "))), [2]);
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
