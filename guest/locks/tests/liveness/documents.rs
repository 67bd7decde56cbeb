//! Statements of the README of the locks and of `docs/locks.md` on overtaking, to be compared with the searches' results.

use std::{env, fs, path::PathBuf};

fn read(path: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn cells(row: &str) -> Vec<&str> {
    row.trim_matches('|').split('|').map(str::trim).collect()
}

/// The README's cell on overtaking for a type of lock.
pub(crate) fn readme(kind: &str) -> String {
    let text = read("README.md");
    let (_, table) = text.split_once("| type | overtaken |").expect("the table of what each lock guarantees");
    let mut rows =
        table.lines().take_while(|line| line.starts_with('|') || line.contains("cycles")).map(cells);
    let of_kind = rows.find(|cells| cells[0].contains(&format!("`{kind}`")));
    of_kind.unwrap_or_else(|| panic!("the README has no row for {kind}"))[1].to_owned()
}

/// The cell of `docs/locks.md` in the row that begins so, for a lock by its name on the command line.
pub(crate) fn page(row: &str, lock: &str) -> String {
    let text = read("../../docs/locks.md");
    let mut column = None;
    for line in text.lines().filter(|line| line.starts_with('|')) {
        let cells = cells(line);
        if cells[0].is_empty() {
            column = cells.iter().position(|cell| *cell == lock);
        } else if cells[0].starts_with(row) {
            let column =
                column.unwrap_or_else(|| panic!("the table with \"{row}\" has no column for {lock}"));
            return cells[column].into();
        }
    }
    panic!("docs/locks.md has no row \"{row}\"");
}

/// A bound in the words of both documents, with `others` other CPUs.
pub(crate) fn in_words(most: Option<u32>, others: u32) -> &'static str {
    match most {
        None => "without bound",
        Some(0) => "never",
        Some(most) if most == others => "once by each other CPU",
        Some(most) => panic!("neither document has words for {most} beside {others} CPUs"),
    }
}
