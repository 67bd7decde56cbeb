//! The shape of the sources.
//!
//! Rules of imports: the sources of a crate lie in rooms, folders next to its `lib.rs`; a room imports from those
//! before it in the table of docs/architecture.md, and so none is in a circle with another. Within a room, files are in
//! no circle either. Also limits on the length of files and names.

mod circles;
mod source;

use std::fs;

use circles::circles;
use source::{Source, imports, root, sources};

/// A crate whose sources lie in rooms.
struct House {
    /// Its sources, from the root of the workspace.
    sources: String,
    /// From the ground up.
    rooms: Vec<String>,
}

/// The page with a table of rooms for each house, from the root of the workspace.
const DOCUMENT: &str = "docs/architecture.md";

fn houses() -> Vec<House> {
    let page = fs::read_to_string(root().join(DOCUMENT)).expect("the page can be read");
    let parts: Vec<_> = page.split("`, from the ground up | |\n| --- | --- |\n").collect();
    let house = |around: &[&str]| {
        let (_, sources) = around[0].rsplit_once("| `").expect("a table is of a folder");
        let room = |row: &str| row.strip_prefix("| `")?.split_once("/` | ").map(|(room, _)| room.to_owned());
        let rows = around[1].lines().take_while(|line| line.starts_with('|'));
        let rooms = rows.map(|row| room(row).unwrap_or_else(|| panic!("{DOCUMENT}: {row}"))).collect();
        House { sources: sources.to_owned(), rooms }
    };
    let houses: Vec<_> = parts.windows(2).map(house).collect();
    assert_eq!(houses.len(), 7, "houses with a table in {DOCUMENT}");
    houses
}

/// A module that stands in for a part of the program in tests: tests of any room of its house may use it.
const DOUBLE: [&str; 2] = ["measure", "synthetic"];

/// Crates without such a table, whose files are in no circle all the same.
const OTHERS: [&str; 2] = ["hypercalls/src", "guest/testing/src"];

/// Most entries at the top of a crate's sources.
const MOST_ENTRIES: usize = 12;

#[test]
fn every_source_lies_in_a_room_and_imports_none_from_above() {
    for house in houses() {
        let wrong: Vec<_> = sources(&house.sources)
            .iter()
            .flat_map(|source| {
                let wrong = wrong_imports(&house, source);
                wrong.into_iter().map(|what| format!("{} imports {what}", source.path.display()))
            })
            .collect();
        let (of, rooms) = (&house.sources, house.rooms.join(" "));
        assert!(wrong.is_empty(), "rooms of {of}, from the ground up: {rooms}\n{}", wrong.join("\n"));
        let entries = fs::read_dir(root().join(of)).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = entries.map(|name| name.into_string().unwrap()).collect();
        // A crate that is a library and a program has two roots.
        names.retain(|name| name != "main.rs");
        assert!(names.len() <= MOST_ENTRIES, "{of} has {} entries", names.len());
        names.retain(|name| name != "lib.rs");
        names.sort();
        let mut rooms = house.rooms.clone();
        rooms.sort();
        assert_eq!(names, rooms, "{of}: entries that are no rooms, or rooms that are not there");
    }
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    let folders = houses().into_iter().map(|house| house.sources).chain(OTHERS.map(str::to_owned));
    let in_folder = |folder: String| {
        let circles = circles(&sources(&folder)).into_iter();
        circles.map(|what| format!("{folder}: {what}")).collect::<Vec<_>>()
    };
    let found: Vec<_> = folders.flat_map(in_folder).collect();
    assert!(found.is_empty(), "these imports make circles:\n{}", found.join("\n"));
}

/// Lists a source's imports from rooms above its own, or from the root itself: names there stand for any room.
fn wrong_imports(house: &House, source: &Source) -> Vec<String> {
    let floor = |name: &str| house.rooms.iter().position(|room| room == name);
    let Some(own) = source.module.first().and_then(|room| floor(room)) else { return Vec::new() };
    let found = imports(&source.module, &source.text).into_iter();
    let found = found.filter(|import| !(import.of_tests && import.path.iter().take(2).eq(DOUBLE)));
    let above = found.filter(|import| match import.path.first() {
        Some(name) => floor(name).is_none_or(|floor| floor > own),
        None => true,
    });
    above.map(|import| import.path.join("::")).collect()
}

#[test]
fn an_import_from_above_or_from_the_root_is_refused() {
    let stand_in =
        "use crate::measure::synthetic; #[cfg(test)] mod tests { use crate::measure::synthetic::a; }";
    let rows: [(&str, &[&str]); 12] = [
        ("use crate::ground::a;", &[]),
        ("use super::a;", &[]),
        ("use crate::{ground::{a, b}, top::c};", &["top::c"]),
        ("pub use child::Name; use self::child::b; mod inside { use super::super::a; }", &[]),
        ("use crate::{ground::b, top::c as d};", &["top::c"]),
        (
            "fn a() -> crate::top::A<crate::ground::B> { assert_eq!(1, crate::top::a(super::b)) }",
            &["top::A", "top::a"],
        ),
        ("// crate::top\nfn a() { \"crate::top\"; std::mem::swap(); other::top(); }", &[]),
        ("macro_rules! a { () => { $crate::top::a() }; }", &[]),
        ("use crate::Name;", &["Name"]),
        ("use super::super::*;", &["*"]),
        ("#[cfg(test)] mod tests { use crate::top::a; }", &["top::a"]),
        // Only tests may use what stands in for a part of the program.
        (stand_in, &["measure::synthetic"]),
    ];
    for (text, found) in rows {
        let rooms = ["ground", "middle", "top"].map(str::to_owned).to_vec();
        let house = House { sources: String::new(), rooms };
        let module = ["middle", "here"].map(str::to_owned).to_vec();
        let source = Source { path: "middle/here.rs".into(), module, text: text.to_owned() };
        assert_eq!(wrong_imports(&house, &source), found, "{text}");
    }
}

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
    // The rule finds what it is there for, in functions and in titles.
    let most = ["word"; MOST_WORDS_OF_A_NAME].join("_");
    for (name, expected) in [(most.clone(), 0), (format!("{most}_more"), 1), (format!("{most}_{{lock}}"), 1)]
    {
        for text in [format!("#[test]\nfn {name}() {{}}"), format!("format!(\"{name}\")")] {
            assert_eq!(long_names(&text), vec![&name; expected]);
        }
    }
    let sources: Vec<Source> = FOLDERS.iter().flat_map(|folder| sources(folder)).collect();
    assert!(sources.len() > 300, "{} sources: where are the others?", sources.len());
    let mut long = Vec::new();
    for source in &sources {
        let (path, lines) = (source.path.display(), source.text.lines().count());
        if lines > MOST_LINES_OF_A_FILE {
            long.push(format!("{path}: {lines} lines: give what is a concept of its own a file of its own"));
        }
        let told = |name: &str| format!("{path}: {name}: a name has {MOST_WORDS_OF_A_NAME} words at most");
        long.extend(long_names(&source.text).into_iter().map(told));
    }
    assert!(long.is_empty(), "{}", long.join("\n"));
}
