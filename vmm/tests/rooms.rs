//! What may import what. The sources of a crate lie in rooms, folders beside its `lib.rs`; a room imports from those before it
//! in the table, and so none is in a circle with another.

use std::fs;
use std::path::{Path, PathBuf};

/// A crate whose sources lie in rooms.
struct House {
    /// Its sources, from the root of the workspace.
    sources: &'static str,
    /// From the ground up.
    rooms: &'static [&'static str],
    /// What stands in for a part of the program in tests: tests of any room may use it.
    double: Option<&'static str>,
}

const HOUSES: &[House] = &[
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
        double: None,
    },
    House {
        sources: "vmm/src",
        rooms: &[
            "host", "image", "guest", "machine", "observe", "sched", "explain", "run", "engines", "probes",
        ],
        double: None,
    },
    House {
        sources: "bench/src",
        rooms: &[
            "text",
            "host",
            "settings",
            "experiment",
            "record",
            "analysis",
            "results",
            "show",
            "measure",
            "cli",
            "commands",
        ],
        double: Some("crate::measure::synthetic"),
    },
];

/// Most entries at the top of a crate's sources.
const MOST_ENTRIES: usize = 12;

#[test]
fn no_room_imports_from_one_above_it() {
    for house in HOUSES {
        let mut wrong = Vec::new();
        for room in house.rooms {
            for file in sources(&root().join(house.sources).join(room)) {
                let text = without_double(house.double, &fs::read_to_string(&file).unwrap());
                let depth = modules_above(&file, &root().join(house.sources));
                let name = file.strip_prefix(root()).unwrap().display();
                let found = wrong_imports(house.rooms, room, depth, &text);
                wrong.extend(found.into_iter().map(|what| format!("{name} imports {what}")));
            }
        }
        assert!(
            wrong.is_empty(),
            "rooms of {}, from the ground up: {:?}\n{}",
            house.sources,
            house.rooms,
            wrong.join("\n")
        );
    }
}

#[test]
fn every_source_lies_in_a_room() {
    for house in HOUSES {
        let entries =
            fs::read_dir(root().join(house.sources)).unwrap().map(|entry| entry.unwrap().file_name());
        let names: Vec<_> = entries.map(|name| name.into_string().unwrap()).collect();
        assert!(names.len() <= MOST_ENTRIES, "{} has {} entries", house.sources, names.len());
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

#[test]
fn an_import_from_above_is_found_however_it_is_written() {
    let wrong = |depth, text| wrong_imports(&["ground", "middle", "top"], "middle", depth, text);
    for fine in [
        "use crate::ground::a;",
        "use crate::middle::{a, b};",
        "// crate::top",
        "use super::a;",
        "use other::top;",
    ] {
        assert_eq!(wrong(2, fine), [""; 0], "{fine}");
    }
    for (depth, text, found) in [
        (2, "use crate::top::a;", "crate::top"),
        (2, "use crate::{ground::{a, b}, top::c};", "crate::top"),
        (2, "let a = crate::top::a();", "crate::top"),
        (2, "use super::super::top::a;", "super::super::top"),
        (1, "use super::top::a;", "super::top"),
        (2, "use crate::{\n    Name,\n    ground,\n};", "crate::Name"),
        (2, "use crate::Name;", "crate::Name"),
    ] {
        assert_eq!(wrong(depth, text), [found], "{text}");
    }
    let inline = "#[cfg(test)]\nmod tests {\n    use super::super::a;\n    use super::*;\n}\n";
    assert_eq!(wrong(1, inline), ["super::super::a"]);
    assert_eq!(wrong(2, inline), [""; 0]);
}

/// The text of a source without the lines of its tests that name `double`.
fn without_double(double: Option<&str>, text: &str) -> String {
    let tests = text.find("mod tests {").unwrap_or(text.len());
    let (code, tests) = text.split_at(tests);
    let stays = |line: &&str| double.is_none_or(|double| !line.contains(double));
    let tests: Vec<&str> = tests.lines().filter(stays).collect();
    format!("{code}{}", tests.join("\n"))
}

#[test]
fn only_tests_may_use_what_stands_in_for_a_part_of_the_program() {
    let text = "use crate::top::double;\n\n#[cfg(test)]\nmod tests {\n    use crate::top::double;\n}\n";
    let wrong = |double| wrong_imports(&["ground", "top"], "ground", 2, &without_double(double, text));
    assert_eq!(wrong(Some("crate::top::double")), ["crate::top"]);
    assert_eq!(wrong(None).len(), 2);
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the workspace").to_owned()
}

/// All source files under `folder`.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let of = |path: PathBuf| if path.is_dir() { sources(&path) } else { vec![path] };
    let mut files: Vec<_> = paths.flat_map(|entry| of(entry.unwrap().path())).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    files.sort();
    files
}

/// How many `super::` lead from a file to the root of its crate.
fn modules_above(file: &Path, sources: &Path) -> usize {
    let depth = file.strip_prefix(sources).unwrap().components().count();
    if file.file_name().is_some_and(|name| name == "mod.rs") { depth - 1 } else { depth }
}

/// What a file of `room`, so many modules below the root, imports from rooms above it, or from the root itself: names there
/// stand for any room.
fn wrong_imports(rooms: &[&str], room: &str, depth: usize, text: &str) -> Vec<String> {
    let floor = |name: &str| rooms.iter().position(|room| *room == name);
    let own = floor(room).expect("rooms are looked at that are in the table");
    let code: Vec<&str> = text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    let mut wrong = Vec::new();
    let (mut rest, mut at) = (code.join("\n"), depth);
    while let Some((before, path, names, after)) = next_path(&rest, at) {
        // Inside a module that is written in its parent's file, one more `super::` leads to the root.
        if at == depth && before.contains("mod tests {") {
            at += 1;
            rest = rest[before.find("mod tests {").expect("just found") + 1..].to_owned();
            continue;
        }
        let above = names.into_iter().filter(|name| floor(name).is_none_or(|floor| floor > own));
        wrong.extend(above.map(|name| format!("{path}{name}")));
        rest = after;
    }
    wrong
}

/// The next path in `code` that begins at the root: what comes before it, the way to the root, the names that it takes there,
/// and what comes after.
fn next_path(code: &str, depth: usize) -> Option<(String, String, Vec<String>, String)> {
    let up = "super::".repeat(depth);
    let begins = |way: &str| {
        let starts = |at: &usize| {
            !code[..*at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':' || c == '$')
        };
        code.match_indices(way).map(|(at, _)| at).find(starts)
    };
    let (at, way) = [begins("crate::").map(|at| (at, "crate::")), begins(&up).map(|at| (at, up.as_str()))]
        .into_iter()
        .flatten()
        .min()?;
    let tail = &code[at + way.len()..];
    let word = |text: &str| {
        text.trim_start()
            .split(|c: char| !(c.is_alphanumeric() || c == '_'))
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    let (names, used) = match tail.strip_prefix('{') {
        None => (vec![word(tail)], 0),
        Some(group) => {
            let (mut names, mut depth, mut end) = (vec![word(group)], 0, 0);
            for (at, c) in group.char_indices() {
                match c {
                    '{' => depth += 1,
                    '}' if depth == 0 => {
                        end = at;
                        break;
                    }
                    '}' => depth -= 1,
                    ',' if depth == 0 => names.push(word(&group[at + 1..])),
                    _ => {}
                }
            }
            (names, end)
        }
    };
    let names = names.into_iter().filter(|name| !name.is_empty()).collect();
    Some((code[..at].to_owned(), way.to_owned(), names, tail[used..].to_owned()))
}
