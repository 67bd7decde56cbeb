//! Files with debug information that is made for a purpose: functions inlined into each other, units that share tables.

use super::{PROGBITS, Section, file, words};

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
    of(unit(0, &entries), shapes, lines("", 1))
}

/// A file with the lines of `files` source files, all in one directory whose name has `bytes` letters.
pub(crate) fn files_of_one_directory(files: usize, bytes: usize) -> Vec<u8> {
    let shapes = [&UNIT[..], &[0]].concat();
    let entries = [words(&[(1, 1), (CODE, 8), (CODE_BYTES, 8)]), vec![0; 5]].concat();
    of(unit(0, &entries), shapes, lines(&"d".repeat(bytes), files))
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
    of((0..units).flat_map(|number| unit(number * apart, &[0])).collect(), shapes, lines("", 1))
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

fn of(info: Vec<u8>, shapes: Vec<u8>, lines: Vec<u8>) -> Vec<u8> {
    let plain = |name, bytes| Section { name, kind: PROGBITS, bytes, ..Section::default() };
    let sections =
        vec![plain(".debug_info", info), plain(".debug_abbrev", shapes), plain(".debug_line", lines)];
    file(2, CODE, sections)
}
