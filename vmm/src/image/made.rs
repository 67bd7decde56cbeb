//! Small files, which tests and what is executed on arbitrary bytes edit.
//!
//! The build makes the lock object, of `small.S`: it has all that an object can have. Files with debug information that is made for a
//! purpose, functions inlined into each other or units that share tables, are put together here (ELF-64 object file format).

use std::sync::LazyLock;

const PROGBITS: u64 = 1;
const STRINGS: u64 = 3;

const FILE_HEADER_BYTES: usize = 64;
const SEGMENT_HEADER_BYTES: u64 = 56;
const SECTION_HEADER_BYTES: usize = 64;

/// A lock object with all kinds of sections, symbols and references that are linked.
pub(crate) static SMALL_OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/small.o"));

/// An archive of the object, twice.
pub(crate) static SMALL_ARCHIVE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let member = |name| [&archive_header(name, SMALL_OBJECT.len())[..], SMALL_OBJECT].concat();
    [&b"!<arch>\n"[..], &member("first.o/"), &member("second.o/")].concat()
});

/// The header of an archive's member.
pub(crate) fn archive_header(name: &str, length: usize) -> Vec<u8> {
    format!("{name:<16}{:<12}{:<6}{:<6}{:<8}{length:<10}`\n", 0, 0, 0, "644").into_bytes()
}

/// Joins numbers, each written in its own length in bytes.
fn words(numbers: &[(u64, usize)]) -> Vec<u8> {
    numbers.iter().flat_map(|(number, bytes)| number.to_le_bytes().into_iter().take(*bytes)).collect()
}

/// A program's file of these sections and of their names, without segments.
fn file(info: Vec<u8>, shapes: Vec<u8>, lines: Vec<u8>) -> Vec<u8> {
    let sections = [(".debug_info", info), (".debug_abbrev", shapes), (".debug_line", lines)];
    let mut names = vec![0];
    let mut placed = Vec::new();
    for (name, bytes) in sections {
        placed.push((names.len() as u64, PROGBITS, bytes));
        names.extend([name.as_bytes(), &[0]].concat());
    }
    placed.push((0, STRINGS, names));
    let mut file = vec![0; FILE_HEADER_BYTES];
    let mut headers = vec![0; SECTION_HEADER_BYTES];
    for (name, kind, bytes) in &placed {
        file.resize(file.len().next_multiple_of(8), 0);
        let place = [(0, 8), (0, 8), (file.len() as u64, 8), (bytes.len() as u64, 8)];
        headers.extend(words(&[(*name, 4), (*kind, 4)]));
        headers.extend(words(&place));
        headers.extend(words(&[(0, 8), (8, 8), (0, 8)]));
        file.extend(bytes);
    }
    file.resize(file.len().next_multiple_of(8), 0);
    let [at, last] = [file.len() as u64, placed.len() as u64];
    file.extend(headers);
    file[..8].copy_from_slice(b"\x7fELF\x02\x01\x01\x00");
    let head = [
        (2, 2),
        (62, 2),
        (1, 4),
        (CODE, 8),
        (0, 8),
        (at, 8),
        (0, 4),
        (FILE_HEADER_BYTES as u64, 2),
        (SEGMENT_HEADER_BYTES, 2),
        (0, 2),
        (SECTION_HEADER_BYTES as u64, 2),
        (last + 1, 2),
        (last, 2),
    ];
    file[16..FILE_HEADER_BYTES].copy_from_slice(&words(&head));
    file
}

/// The code that it is about.
pub(crate) const CODE: u64 = 0x40_1000;
const CODE_BYTES: u64 = 16;

// DWARF 4, 7.5.3: number, tag, whether there are entries inside, attributes and how they are stored.
const UNIT: [u8; 11] = [1, 0x11, 1, 0x11, 1, 0x12, 7, 0x10, 0x17, 0, 0];
const FUNCTION: [u8; 9] = [2, 0x2e, 1, 0x11, 1, 0x12, 7, 0, 0];
const INLINED: [u8; 9] = [3, 0x1d, 1, 0x11, 1, 0x12, 7, 0, 0];

/// A file in which `depth` functions were inlined into each other; its code is line 7 of `a.c`.
pub(crate) fn nested(depth: usize) -> Vec<u8> {
    let shapes = [&UNIT[..], &FUNCTION, &INLINED, &[0]].concat();
    let entry = |number| words(&[(number, 1), (CODE, 8), (CODE_BYTES, 8)]);
    let mut entries = [entry(1), vec![0; 4], entry(2)].concat();
    entries.extend(entry(3).repeat(depth));
    // Each ends the entries inside another.
    entries.extend(vec![0; depth + 2]);
    file(unit(0, &entries), shapes, lines("", 1))
}

/// A file with the lines of `files` source files, all in one directory whose name has `bytes` letters.
#[cfg(test)]
pub(crate) fn files_of_one_directory(files: usize, bytes: usize) -> Vec<u8> {
    let shapes = [&UNIT[..], &[0]].concat();
    let entries = [words(&[(1, 1), (CODE, 8), (CODE_BYTES, 8)]), vec![0; 5]].concat();
    file(unit(0, &entries), shapes, lines(&"d".repeat(bytes), files))
}

/// A file of `units` units without entries. Each names a table of shapes of its own, `apart` bytes behind the one before, in one
/// long list that ends once.
pub(crate) fn units_with_tables(units: u64, apart: u64) -> Vec<u8> {
    // Numbers of shapes have two bytes, so that each shape has eleven: DWARF 4, 7.6.
    let shape = |number: u64| {
        let number = [number as u8 & 0x7f | 0x80, (number >> 7) as u8 & 0x7f];
        [&number[..], &FUNCTION[1..], &[]].concat()
    };
    let mut shapes: Vec<u8> = (1..units + 1).flat_map(shape).collect();
    shapes.push(0);
    file((0..units).flat_map(|number| unit(number * apart, &[0])).collect(), shapes, lines("", 1))
}

/// Bytes of a shape of `units_with_tables`.
pub(crate) const SHAPE_BYTES: u64 = 10;

/// A unit whose shapes begin at `shapes`.
fn unit(shapes: u64, entries: &[u8]) -> Vec<u8> {
    let mut unit = words(&[(entries.len() as u64 + 7, 4), (4, 2), (shapes, 4), (8, 1)]);
    unit.extend(entries);
    unit
}

/// A line program (DWARF 4, 6.2): `files` files, in `directory` if it has a name, and one row at the code.
fn lines(directory: &str, files: usize) -> Vec<u8> {
    let lengths = [0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1];
    let (directories, number) = match directory {
        "" => (vec![0], 0),
        name => ([name.as_bytes(), &[0, 0]].concat(), 1),
    };
    let file = [&b"a.c\0"[..], &[number, 0, 0]].concat();
    let names = [directories, file.repeat(files), vec![0]].concat();
    let head = [&[1, 1, 1, 0xfb, 14, 13][..], &lengths, &names].concat();
    let program = [&[0, 9, 2][..], &CODE.to_le_bytes(), &[3, 6, 1, 2, CODE_BYTES as u8, 0, 1, 1]].concat();
    let head_bytes = head.len() as u64;
    let all = head_bytes + program.len() as u64 + 6;
    [words(&[(all, 4), (4, 2), (head_bytes, 4)]), head, program].concat()
}
