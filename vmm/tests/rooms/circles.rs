//! Circles of imports.
//!
//! The entries of one folder are files and folders. None may import another that imports it, directly or through
//! others. A folder's `mod.rs` is not an entry of it: the module is made of its parts, and these may name what the
//! whole defines. Items that a module only re-exports (`pub use`) are imported from where they are defined.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::{Import, Source, imports};

type Module = Vec<String>;

/// A crate's modules, and what each imports.
struct Imports {
    of: BTreeMap<Module, Vec<Import>>,
}

impl Imports {
    fn new(sources: &[Source]) -> Self {
        let imported = |source: &Source| (source.module.clone(), imports(&source.module, &source.text));
        // A file of tests is no part of what it tests.
        let parts = sources.iter().filter(|source| source.module.last().is_none_or(|name| name != "tests"));
        Self { of: parts.map(imported).collect() }
    }

    /// The module that defines what `path` leads to, from the root of the crate.
    fn defining(&self, path: &[String]) -> Option<Module> {
        let mut path = path.to_vec();
        // As often as one module may hand on what another one hands on.
        for _ in 0..8 {
            let module = (0..=path.len()).rev().find(|&length| self.of.contains_key(&path[..length]))?;
            let Some(name) = path.get(module) else { return Some(path) };
            let handed_on = |import: &&Import| {
                import.name.as_ref() == Some(name) && !import.of_tests && import.path != path
            };
            match self.of[&path[..module]].iter().find(handed_on) {
                Some(import) if self.is_here(&import.path) => {
                    path = [&import.path[..], &path[module + 1..]].concat();
                }
                _ => return Some(path[..module].to_vec()),
            }
        }
        None
    }

    /// Whether `path` leads to something of the crate, and not to another one.
    fn is_here(&self, path: &[String]) -> bool {
        let parent = path.len().saturating_sub(1);
        self.of.contains_key(path) || self.of.contains_key(&path[..parent])
    }

    /// Which entry of a folder imports which other, and by which modules.
    fn between_entries(&self) -> BTreeSet<(Module, Module, String)> {
        let mut between = BTreeSet::new();
        for (from, imports) in &self.of {
            for import in imports.iter().filter(|import| !import.of_tests) {
                let Some(to) = self.defining(&import.path) else { continue };
                let shared = from.iter().zip(&to).take_while(|(one, other)| one == other).count();
                if shared < from.len() && shared < to.len() {
                    let by = format!("{} imports {}", from.join("::"), import.path.join("::"));
                    between.insert((from[..=shared].to_vec(), to[..=shared].to_vec(), by));
                }
            }
        }
        between
    }
}

/// Lists the imports that form the circles in `sources`, one a line.
pub(crate) fn circles(sources: &[Source]) -> Vec<String> {
    let mut between = Imports::new(sources).between_entries();
    // Whatever imports nothing that is left, or is imported by nothing that is left, is in no circle.
    loop {
        let ends = between.iter().map(|(from, to, _)| (from.clone(), to.clone()));
        let (importing, imported): (BTreeSet<_>, BTreeSet<_>) = ends.unzip();
        let before = between.len();
        between.retain(|(from, to, _)| imported.contains(from) && importing.contains(to));
        if between.len() == before {
            return between.into_iter().map(|(.., by)| by).collect();
        }
    }
}

#[test]
fn only_what_imports_each_other_is_a_circle() {
    let circles_in = |files: &[(&str, &str)]| {
        let source = |&(module, text): &(&str, &str)| Source {
            path: module.into(),
            module: module.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect(),
            text: text.to_owned(),
        };
        circles(&files.iter().map(source).collect::<Vec<_>>())
    };
    let circle = [("", ""), ("a", "use crate::b::B;"), ("b", "use crate::c::C;"), ("c", "use super::a::A;")];
    let around = ["a imports b::B", "b imports c::C", "c imports a::A"];
    let hanging_on = [&circle[..], &[("d", "use crate::a::A;"), ("e", "")]].concat();
    let folders = [
        ("a", ""),
        ("a::one", "use crate::b::one::B;"),
        ("a::two", ""),
        ("b", ""),
        ("b::one", ""),
        ("b::two", "fn f() { crate::a::two::f() }"),
    ];
    let root = "mod a; mod b; pub use a::A; pub use b::B;";
    let tests = "#[cfg(test)] mod tests { use crate::b::B; }";
    type Row<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a [&'a str]);
    let rows: [Row<'_>; 8] = [
        ("files", &circle, &around),
        ("what hangs on to a circle is none of it", &hanging_on, &around),
        ("no circle", &circle[..3], &[]),
        ("folders", &folders, &["a::one imports b::one::B", "b::two imports a::two::f"]),
        ("a module and its parts", &[("a", "use part::P; pub struct A;"), ("a::part", "use super::A;")], &[]),
        (
            "what is handed on comes from where it is defined",
            &[("", root), ("a", "use crate::B;"), ("b", "use crate::A;")],
            &["a imports B", "b imports A"],
        ),
        ("another crate's", &[("", "mod a; pub use a::A; pub use std::mem;"), ("a", "use crate::mem;")], &[]),
        ("tests", &[("a", tests), ("b", "use crate::a::A;")], &[]),
    ];
    for (what, files, expected) in rows {
        assert_eq!(circles_in(files), expected, "{what}");
    }
}
