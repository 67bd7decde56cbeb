//! The shape of the sources.
//!
//! Rules of imports: the sources of a crate lie in rooms, folders next to its `lib.rs`; a room imports from those
//! before it in the table, and so none is in a circle with another. Within a room, files are in no circle either. Also
//! limits on the length of files, functions and names.

mod circles;
mod embedded;
mod imports;
mod sizes;
mod source;
mod written;

use std::fs;

use circles::circles;
use imports::imports;
use source::{Source, root, sources};

/// A crate whose sources lie in rooms.
struct House {
    /// Its sources, from the root of the workspace.
    sources: &'static str,
    /// From the ground up.
    rooms: &'static [&'static str],
    /// Modules that stand in for a part of the program in tests: tests of any room may use them.
    double: &'static [&'static str],
}

const HOUSES: &[House] = &[
    House {
        sources: "guest/locks/src",
        rooms: &[
            "memory",
            "faults",
            "contract",
            "waiting",
            "centralized",
            "qspinlock",
            "queued",
            "reader_writer",
            "sleeping",
        ],
        double: &[],
    },
    House {
        sources: "guest/mm/src",
        rooms: &["records", "contract", "address_space", "page_faults"],
        double: &[],
    },
    House {
        sources: "guest/grants/src",
        rooms: &["interface", "locking", "machine", "tables", "operations", "workload"],
        double: &[],
    },
    House {
        sources: "guest/src",
        rooms: &[
            "image",
            "cpu",
            "monitor",
            "traps",
            "observe",
            "lock",
            "memory",
            "work",
            "workloads",
            "boot",
        ],
        double: &[],
    },
    House {
        sources: "vmm/src",
        rooms: &[
            "host", "image", "guest", "machine", "observe", "sched", "explain", "run", "engines", "probes",
            "worst",
        ],
        double: &[],
    },
    House {
        sources: "vmm/sim/src",
        rooms: &["cpu", "sourced", "machine", "hosts", "schedule", "lines", "board"],
        double: &[],
    },
    House {
        sources: "bench/src",
        rooms: &[
            "text",
            "host",
            "settings",
            "record",
            "experiment",
            "analysis",
            "results",
            "show",
            "measure",
            "cli",
            "commands",
        ],
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
            "rooms of {}, from the ground up: {rooms:?}\n{}",
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
        let known = |name: &String| {
            house.rooms.contains(&name.as_str()) || ["lib.rs", "main.rs"].contains(&name.as_str())
        };
        let strangers: Vec<_> = names.iter().filter(|name| !known(name)).collect();
        assert!(strangers.is_empty(), "{}: {strangers:?} are no rooms", house.sources);
        assert!(
            house.rooms.iter().all(|room| names.iter().any(|name| name == room)),
            "{}: {names:?}",
            house.sources
        );
    }
}

/// Lists a source's imports from rooms above its own, or from the root itself: names there stand for any room.
fn wrong_imports(house: &House, source: &Source) -> Vec<String> {
    let floor = |name: &str| house.rooms.iter().position(|room| *room == name);
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

#[cfg(test)]
fn wrong(double: &'static [&'static str], text: &str) -> Vec<String> {
    let house = House { sources: "", rooms: &["ground", "middle", "top"], double };
    let module = ["middle", "here"].map(str::to_owned).to_vec();
    wrong_imports(&house, &Source { path: "middle/here.rs".into(), module, text: text.to_owned() })
}

#[test]
fn an_import_from_above_or_from_the_root_is_refused() {
    for fine in ["use crate::ground::a;", "use crate::middle::{a, b};", "use super::a;", "use other::top;"] {
        assert_eq!(wrong(&[], fine), [""; 0], "{fine}");
    }
    for (text, found) in [
        ("use crate::{ground::{a, b}, top::c};", "top::c"),
        ("use super::super::top::a;", "top::a"),
        ("use crate::Name;", "Name"),
        ("use super::super::*;", "*"),
        ("#[cfg(test)] mod tests { use crate::top::a; }", "top::a"),
    ] {
        assert_eq!(wrong(&[], text), [found], "{text}");
    }
}

#[test]
fn only_tests_may_use_stand_ins_for_parts_of_the_program() {
    let text = "use crate::top::double;\n\n#[cfg(test)]\nmod tests {\n    use crate::top::double::a;\n}\n";
    assert_eq!(wrong(&["top", "double"], text), ["top::double"]);
    assert_eq!(wrong(&[], text).len(), 2);
}
