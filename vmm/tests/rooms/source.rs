//! The sources of a crate: their files, the module that each of them is, and what each imports from elsewhere in its crate: every path in
//! it that begins at the root, above or, in a `use`, here.

use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::TokenTree::{Group, Ident};
use proc_macro2::{Delimiter, TokenStream, TokenTree};

pub(crate) struct Source {
    pub(crate) path: PathBuf,
    /// The names that lead to its module from the root of its crate.
    pub(crate) module: Vec<String>,
    pub(crate) text: String,
}

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the workspace").to_owned()
}

pub(crate) fn sources(folder: &str) -> Vec<Source> {
    let top = root().join(folder);
    let source = |path: PathBuf| {
        let module = module(path.strip_prefix(&top).expect("it lies there"));
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Source { path: path.strip_prefix(root()).expect("it lies there").to_owned(), module, text }
    };
    files(&top).into_iter().map(source).collect()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let within = |path: PathBuf| if path.is_dir() { files(&path) } else { vec![path] };
    // Build output is not source.
    let paths = entries.map(|entry| entry.unwrap().path()).filter(|path| !path.ends_with("target"));
    let mut files: Vec<_> = paths.flat_map(within).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    files.sort();
    files
}

/// The module of a file, by its path below the sources of its crate.
fn module(path: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        path.with_extension("").iter().map(|name| name.to_string_lossy().into_owned()).collect();
    if names.last().is_some_and(|name| ["mod", "lib", "main"].contains(&name.as_str())) {
        names.pop();
    }
    names
}

/// A path that a source names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Import {
    /// From the root of the crate.
    pub(crate) path: Vec<String>,
    /// The name that a `use` gives it.
    pub(crate) name: Option<String>,
    /// Whether only tests of the file name it.
    pub(crate) of_tests: bool,
}

/// The imports of the source `text`, which is that of `module`.
pub(crate) fn imports(module: &[String], text: &str) -> Vec<Import> {
    let tokens = text.parse::<TokenStream>().unwrap_or_else(|error| panic!("{module:?}: {error}"));
    let mut reader = Reader { module: module.to_vec(), of_tests: false, found: Vec::new() };
    reader.read(tokens);
    reader.found
}

/// Reads words, as macros do: so what stands in a macro's braces is read like all else.
struct Reader {
    /// Path of the current module, including modules that are written inside the file.
    module: Vec<String>,
    of_tests: bool,
    found: Vec<Import>,
}

impl Reader {
    fn read(&mut self, tokens: TokenStream) {
        let tokens: Vec<_> = tokens.into_iter().collect();
        let (mut rest, mut of_tests) = (&tokens[..], false);
        while let [first, behind @ ..] = rest {
            rest = behind;
            match (first, behind) {
                (Ident(word), [Ident(name), Group(inside), behind @ ..]) if word == "mod" => {
                    let outside = self.of_tests;
                    self.of_tests |= std::mem::take(&mut of_tests);
                    self.module.push(name.to_string());
                    self.read(inside.stream());
                    self.module.pop();
                    (self.of_tests, rest) = (outside, behind);
                }
                // Not `use<>`, which is of a type, nor `use ::a`, which is of another crate.
                (Ident(word), [Ident(_), ..]) if word == "use" => {
                    let end = behind.iter().position(|token| is(token, ';')).unwrap_or(behind.len());
                    self.read_use(&[], &behind[..end]);
                    rest = &behind[end..];
                }
                (Ident(word), _) if word == "crate" || word == "self" || word == "super" => {
                    let mut path = vec![word.to_string()];
                    while let [first, second, Ident(name), behind @ ..] = rest
                        && is(first, ':')
                        && is(second, ':')
                    {
                        path.push(name.to_string());
                        rest = behind;
                    }
                    if path.len() > 1 {
                        self.note(&path, None);
                    }
                }
                // A macro's `$crate` is the crate in which it is used.
                (mark, [_, behind @ ..]) if is(mark, '$') => rest = behind,
                (mark, [Group(attribute), ..]) if is(mark, '#') => {
                    of_tests |= attribute.stream().to_string().replace(' ', "") == "cfg(test)";
                }
                (Group(group), _) => {
                    of_tests &= group.delimiter() != Delimiter::Brace;
                    self.read(group.stream());
                }
                (mark, _) => of_tests &= !is(mark, ';'),
            }
        }
    }

    /// Reads the tree of a `use` behind the path `before`.
    fn read_use(&mut self, before: &[String], tree: &[TokenTree]) {
        let words = tree.iter().filter(|token| matches!(token, Ident(_)) || is(token, '*'));
        let mut path: Vec<_> = before.iter().cloned().chain(words.map(ToString::to_string)).collect();
        let name = path.last().filter(|name| *name != "*").cloned();
        if let Some(renamed) = path.iter().position(|word| word == "as") {
            path.truncate(renamed);
        }
        match tree.last() {
            Some(Group(trees)) => {
                let trees: Vec<_> = trees.stream().into_iter().collect();
                trees.split(|token| is(token, ',')).for_each(|tree| self.read_use(&path, tree));
            }
            Some(_) => self.note(&path, name),
            None => {}
        }
    }

    /// Notes a path, which begins in this module if it does not say where.
    fn note(&mut self, words: &[String], name: Option<String>) {
        let is_from_root = words.first().is_some_and(|word| word == "crate");
        let mut path = if is_from_root { Vec::new() } else { self.module.clone() };
        for word in words {
            match word.as_str() {
                "crate" | "self" => {}
                "super" => _ = path.pop(),
                other => path.push(other.to_owned()),
            }
        }
        self.found.push(Import { path, name, of_tests: self.of_tests });
    }
}

fn is(token: &TokenTree, mark: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == mark)
}
