//! The tables of rooms in docs/architecture.md: their rows are the rooms of the table in `main.rs`, in its order. Only there does it
//! say in words what a room holds.

use std::fs;

use super::source::root;
use super::{HOUSES, House};

/// The document, from the root of the workspace.
const DOCUMENT: &str = "docs/architecture.md";

#[test]
fn the_tables_of_the_architecture_page_list_these_rooms() {
    let text = fs::read_to_string(root().join(DOCUMENT)).expect("the document can be read");
    let wrong: Vec<String> = HOUSES.iter().filter_map(|house| correction(house, &text)).collect();
    assert!(wrong.is_empty(), "{DOCUMENT} should have these tables:\n\n{}", wrong.join("\n"));
}

/// The right table of a crate, if the text has another one.
fn correction(house: &House, text: &str) -> Option<String> {
    let header = format!("| `{}`, from the ground up | |\n| --- | --- |\n", house.sources);
    let rows = text.split_once(&header).map_or("", |(_, after)| after).lines();
    let rows: Vec<&str> = rows.take_while(|line| line.starts_with('|')).collect();
    let start = |room: &str| format!("| `{room}/` | ");
    let right: Vec<String> = house
        .rooms
        .iter()
        .map(|room| {
            let written = rows.iter().find(|row| row.starts_with(&start(room)));
            written.map_or_else(
                || format!("{}{} |", start(room), first_line(house, room)),
                |row| (*row).to_owned(),
            )
        })
        .collect();
    (right != rows).then(|| format!("{header}{}\n", right.join("\n")))
}

/// The beginning of a room's own documentation.
fn first_line(house: &House, room: &str) -> String {
    let module = fs::read_to_string(root().join(house.sources).join(room).join("mod.rs")).unwrap_or_default();
    module.lines().next().unwrap_or_default().trim_start_matches("//! ").to_owned()
}

#[test]
fn a_missing_strange_or_misplaced_row_brings_forth_the_right_table() {
    let house = House { sources: "x/src", rooms: &["low", "high"], double: &[] };
    let header = "| `x/src`, from the ground up | |\n| --- | --- |\n";
    let right = format!("{header}| `low/` | a |\n| `high/` | b |\n");
    assert_eq!(correction(&house, &format!("Rooms:\n\n{right}\nMore.")), None);
    for rows in [
        "| `high/` | b |\n| `low/` | a |\n",
        "| `low/` | a |\n| `middle/` | c |\n| `high/` | b |\n",
        "| `low/` | a |\n| `high/` | b |\n| `low/` | a |\n",
    ] {
        assert_eq!(correction(&house, &format!("{header}{rows}")), Some(right.clone()), "{rows}");
    }
    let without = format!("{header}| `low/` | a |\n| `high/` |  |\n");
    assert_eq!(correction(&house, &format!("{header}| `low/` | a |\n")), Some(without));
}
