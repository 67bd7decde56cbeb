//! The shape of the sources.
//!
//! Rules of imports: the sources of a crate lie in rooms, folders next to its `lib.rs`; a room imports from those
//! before it in the table, and so none is in a circle with another. Within a room, files are in no circle either. Also
//! limits on the length of files and names; the tables of rooms in docs/architecture.md; and the files that `vmm/build.rs`
//! watches.

mod circles;
mod sizes;
mod source;

use std::collections::BTreeSet;
use std::fs;

use circles::circles;
use source::{Source, imports, root, sources};

/// A crate whose sources lie in rooms.
struct House {
    /// Its sources, from the root of the workspace.
    sources: &'static str,
    /// From the ground up, with spaces between.
    rooms: &'static str,
    /// Modules that stand in for a part of the program in tests: tests of any room may use them.
    double: &'static [&'static str],
}

impl House {
    fn rooms(&self) -> impl Iterator<Item = &'static str> {
        self.rooms.split(' ')
    }
}

const HOUSES: &[House] = &[
    House {
        sources: "guest/locks/src",
        rooms: "memory faults contract waiting centralized qspinlock queued reader_writer sleeping",
        double: &[],
    },
    House { sources: "guest/mm/src", rooms: "records contract address_space page_faults", double: &[] },
    House {
        sources: "guest/grants/src",
        rooms: "interface locking machine tables operations workload",
        double: &[],
    },
    House {
        sources: "guest/src",
        rooms: "image cpu monitor traps observe lock memory work workloads boot",
        double: &[],
    },
    House {
        sources: "vmm/src",
        rooms: "host image guest machine observe sched explain run engines probes worst",
        double: &[],
    },
    House { sources: "vmm/sim/src", rooms: "cpu sourced machine hosts schedule lines board", double: &[] },
    House {
        sources: "bench/src",
        rooms: "text host settings record experiment analysis results show measure cli commands",
        double: &["measure", "synthetic"],
    },
];

/// Crates without such a table, whose files are in no circle all the same.
const OTHERS: &[&str] = &["hypercalls/src", "guest/testing/src"];

/// Most entries at the top of a crate's sources.
const MOST_ENTRIES: usize = 12;

#[test]
fn no_room_imports_from_one_above_it() {
    for house in HOUSES {
        let wrong: Vec<_> = sources(house.sources)
            .iter()
            .flat_map(|source| {
                let wrong = wrong_imports(house, source);
                wrong.into_iter().map(|what| format!("{} imports {what}", source.path.display()))
            })
            .collect();
        let rooms = house.rooms;
        assert!(
            wrong.is_empty(),
            "rooms of {}, from the ground up: {rooms}\n{}",
            house.sources,
            wrong.join("\n")
        );
    }
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    let folders = HOUSES.iter().map(|house| house.sources).chain(OTHERS.iter().copied());
    let found: Vec<_> = folders
        .flat_map(|folder| circles(&sources(folder)).into_iter().map(move |what| format!("{folder}: {what}")))
        .collect();
    assert!(found.is_empty(), "these imports make circles:\n{}", found.join("\n"));
}

#[test]
fn every_source_lies_in_a_room() {
    for house in HOUSES {
        let entries =
            fs::read_dir(root().join(house.sources)).unwrap().map(|entry| entry.unwrap().file_name());
        let names: Vec<_> = entries.map(|name| name.into_string().unwrap()).collect();
        // A crate that is a library and a program has two roots.
        let entries = names.iter().filter(|name| *name != "main.rs").count();
        assert!(entries <= MOST_ENTRIES, "{} has {entries} entries", house.sources);
        let known = |name: &String| house.rooms().chain(["lib.rs", "main.rs"]).any(|room| room == name);
        let strangers: Vec<_> = names.iter().filter(|name| !known(name)).collect();
        assert!(strangers.is_empty(), "{}: {strangers:?} are no rooms", house.sources);
        assert!(
            house.rooms().all(|room| names.iter().any(|name| name == room)),
            "{}: {names:?}",
            house.sources
        );
    }
}

/// Lists a source's imports from rooms above its own, or from the root itself: names there stand for any room.
fn wrong_imports(house: &House, source: &Source) -> Vec<String> {
    let floor = |name: &str| house.rooms().position(|room| room == name);
    let Some(own) = source.module.first().and_then(|room| floor(room)) else { return Vec::new() };
    let of_double = |path: &[String]| {
        !house.double.is_empty()
            && path.len() >= house.double.len()
            && path.iter().zip(house.double).all(|(one, other)| one == other)
    };
    let found = imports(&source.module, &source.text).into_iter();
    let found = found.filter(|import| !(import.of_tests && of_double(&import.path)));
    let above = found.filter(|import| match import.path.first() {
        Some(name) => floor(name).is_none_or(|floor| floor > own),
        None => true,
    });
    above.map(|import| import.path.join("::")).collect()
}

#[test]
fn an_import_from_above_or_from_the_root_is_refused() {
    let stand_in = "use crate::top::double; #[cfg(test)] mod tests { use crate::top::double::a; }";
    let rows: [(&'static [&'static str], &str, &[&str]); 11] = [
        (&[], "use crate::ground::a;", &[]),
        (&[], "use crate::middle::{a, b};", &[]),
        (&[], "use super::a;", &[]),
        (&[], "use other::top;", &[]),
        (&[], "use crate::{ground::{a, b}, top::c};", &["top::c"]),
        (&[], "use super::super::top::a;", &["top::a"]),
        (&[], "use crate::Name;", &["Name"]),
        (&[], "use super::super::*;", &["*"]),
        (&[], "#[cfg(test)] mod tests { use crate::top::a; }", &["top::a"]),
        // Only tests may use what stands in for a part of the program.
        (&["top", "double"], stand_in, &["top::double"]),
        (&[], stand_in, &["top::double", "top::double::a"]),
    ];
    for (double, text, found) in rows {
        let house = House { sources: "", rooms: "ground middle top", double };
        let module = ["middle", "here"].map(str::to_owned).to_vec();
        let source = Source { path: "middle/here.rs".into(), module, text: text.to_owned() };
        assert_eq!(wrong_imports(&house, &source), found, "{text}");
    }
}

/// The page with the tables of rooms, from the root of the workspace: their rows are the rooms of the tables above, in their order. Only
/// there does it say in words what a room holds.
const DOCUMENT: &str = "docs/architecture.md";

#[test]
fn the_tables_of_the_architecture_page_list_these_rooms() {
    let text = fs::read_to_string(root().join(DOCUMENT)).expect("the document can be read");
    for house in HOUSES {
        let header = format!("| `{}`, from the ground up | |\n| --- | --- |\n", house.sources);
        let (_, table) = text.split_once(&header).unwrap_or_else(|| panic!("{DOCUMENT} lacks {header}"));
        let room = |row: &str| row.strip_prefix("| `")?.split_once("/` | ").map(|(room, _)| room.to_owned());
        let rows: Vec<_> = table.lines().take_while(|line| line.starts_with('|')).map(room).collect();
        let expected: Vec<_> = house.rooms().map(|room| Some(room.to_owned())).collect();
        assert_eq!(rows, expected, "{DOCUMENT}: {}", house.sources);
    }
}

/// The folders of those of our crates that `folder` uses, itself included; what only its tests use is not in the image.
fn crates(folder: &str, found: &mut BTreeSet<String>) {
    if !found.insert(folder.to_owned()) {
        return;
    }
    let manifest = fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap();
    let lines = manifest.lines().skip_while(|line| *line != "[dependencies]").skip(1);
    for line in lines.take_while(|line| !line.starts_with('[')) {
        let name = line.split(['.', ' ', '=']).next().and_then(|name| name.strip_prefix("haltkick-"));
        let Some(name) = name else { continue };
        let places = [format!("guest/{name}"), name.to_owned()];
        let place = places.iter().find(|place| root().join(place).join("Cargo.toml").exists());
        crates(place.unwrap_or_else(|| panic!("{folder}: where is {name}?")), found);
    }
}

#[test]
fn an_edit_of_any_crate_in_the_image_builds_it_anew() {
    let mut used = BTreeSet::new();
    crates("guest", &mut used);
    assert!(used.contains("guest/locks") && used.contains("hypercalls"), "{used:?}");
    let script = fs::read_to_string(root().join("vmm/build.rs")).unwrap();
    for part in used.iter().flat_map(|of| [format!("{of}/Cargo.toml"), format!("{of}/src")]) {
        assert!(script.contains(&format!("\"../{part}\"")), "vmm/build.rs does not watch {part}");
    }
}
