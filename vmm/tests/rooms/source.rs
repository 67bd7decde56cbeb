//! The sources of a crate: their files, the module that each of them is, and what each imports from elsewhere in its crate: every path in
//! it that begins at the root, above or, in a `use`, here.

use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Item, UseTree};

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
    let file = syn::parse_file(text).unwrap_or_else(|error| panic!("{module:?}: {error}"));
    let mut reader = Reader { module: module.to_vec(), of_tests: false, found: Vec::new() };
    reader.visit_file(&file);
    reader.found
}

struct Reader {
    /// Path of the current module, including modules that are written inside the file.
    module: Vec<String>,
    of_tests: bool,
    found: Vec<Import>,
}

impl Reader {
    /// Notes the path of these `segments`, if it says where it begins or `begins_here` if it does not.
    fn note(&mut self, segments: &[String], begins_here: bool, name: Option<String>) {
        let mut path = match segments.first().map(String::as_str) {
            Some("crate") => Vec::new(),
            Some("self" | "super") => self.module.clone(),
            Some(_) if begins_here => self.module.clone(),
            _ => return,
        };
        for segment in segments {
            match segment.as_str() {
                "crate" | "self" => {}
                "super" => _ = path.pop(),
                other => path.push(other.to_owned()),
            }
        }
        self.found.push(Import { path, name, of_tests: self.of_tests });
    }

    fn read_use(&mut self, before: &[String], tree: &UseTree) {
        let with = |name: &dyn ToString| [before, &[name.to_string()]].concat();
        match tree {
            UseTree::Path(path) => self.read_use(&with(&path.ident), &path.tree),
            UseTree::Name(name) => self.note(&with(&name.ident), true, Some(name.ident.to_string())),
            UseTree::Rename(rename) => self.note(&with(&rename.ident), true, Some(rename.rename.to_string())),
            UseTree::Glob(_) => self.note(&with(&"*"), true, None),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.read_use(before, tree)),
        }
    }

    /// The content of a macro is not parsed yet.
    fn read_tokens(&mut self, tokens: TokenStream) {
        let mut words = Vec::new();
        let mut after_dollar = false;
        for token in tokens {
            match token {
                TokenTree::Ident(word) if !after_dollar => words.push(word.to_string()),
                TokenTree::Punct(mark) if mark.as_char() == ':' && !words.is_empty() => {
                    words.push(":".into())
                }
                TokenTree::Group(group) => {
                    self.end_path(&mut words);
                    self.read_tokens(group.stream());
                }
                TokenTree::Punct(mark) => {
                    self.end_path(&mut words);
                    after_dollar = mark.as_char() == '$';
                    continue;
                }
                _ => self.end_path(&mut words),
            }
            after_dollar = false;
        }
        self.end_path(&mut words);
    }

    /// `words`: names and colons, in the order of a text.
    fn end_path(&mut self, words: &mut Vec<String>) {
        let words = std::mem::take(words);
        let begins: Vec<usize> =
            (0..words.len()).filter(|&at| ["crate", "super", "self"].contains(&words[at].as_str())).collect();
        for at in begins.into_iter().filter(|&at| at == 0 || words[at - 1] != ":") {
            let mut path = vec![words[at].clone()];
            for more in words[at + 1..].chunks(3) {
                match more {
                    [first, second, name] if first == ":" && second == ":" && name != ":" => {
                        path.push(name.clone());
                    }
                    _ => break,
                }
            }
            if path.len() > 1 {
                self.note(&path, false, None);
            }
        }
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast Item) {
        let was = self.of_tests;
        if let Item::Mod(inner) = item
            && inner.content.is_some()
        {
            self.of_tests |= is_of_tests(&inner.attrs);
            self.module.push(inner.ident.to_string());
            visit::visit_item(self, item);
            self.module.pop();
        } else {
            visit::visit_item(self, item);
        }
        self.of_tests = was;
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if item.leading_colon.is_none() {
            self.read_use(&[], &item.tree);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<_> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if segments.len() > 1 && path.leading_colon.is_none() {
            self.note(&segments, false, None);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        self.visit_path(&called.path);
        self.read_tokens(called.tokens.clone());
    }
}

/// `#[cfg(test)]`.
fn is_of_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Path>().is_ok_and(|cfg| cfg.is_ident("test"))
    })
}

#[test]
fn an_import_is_found_however_it_is_written() {
    let module = ["middle".to_owned(), "here".to_owned()];
    let paths =
        |text| imports(&module, text).into_iter().map(|import| import.path.join("::")).collect::<Vec<_>>();
    for (text, expected) in [
        ("use crate::top::a;", &["top::a"][..]),
        ("use crate::{ground::{a, b}, top::c as d};", &["ground::a", "ground::b", "top::c"]),
        ("use crate::{\n    Name,\n    ground,\n};", &["Name", "ground"]),
        ("pub use child::Name;", &["middle::here::child::Name"]),
        ("use super::super::top::*;", &["top::*"]),
        ("use self::child::a;", &["middle::here::child::a"]),
        (
            "fn a() -> crate::top::A<crate::ground::B> { super::b(self::c) }",
            &["top::A", "ground::B", "middle::b", "middle::here::c"],
        ),
        ("fn a() { assert_eq!(1, crate::top::a(super::b)) }", &["top::a", "middle::b"]),
        ("impl crate::top::A for B {}", &["top::A"]),
        ("mod inside { use super::super::a; }", &["middle::a"]),
        (
            "// crate::top\n/// [`crate::top`]\nfn a() { \"crate::top\"; std::mem::swap(); other::top(); }",
            &[],
        ),
        ("macro_rules! a { () => { $crate::top::a() }; }", &[]),
    ] {
        assert_eq!(paths(text), expected, "{text}");
    }
}

#[test]
fn an_import_of_tests_is_told_from_the_others() {
    let text = "use crate::a;\n#[cfg(test)]\nmod tests {\n    use super::*;\n    use crate::b;\n}\nfn c() { crate::c() }";
    let of_tests: Vec<_> = imports(&["here".into()], text)
        .into_iter()
        .map(|import| (import.path.join("::"), import.of_tests))
        .collect();
    let expected = [("a", false), ("here::*", true), ("b", true), ("c", false)];
    assert_eq!(of_tests, expected.map(|(path, of_tests)| (path.to_owned(), of_tests)));
}
