//! Small files, which tests and what is executed on arbitrary bytes edit.
//!
//! The build makes the lock object, of `small.S`: it has all that an object can have. Debug information that is made for a purpose,
//! functions inlined into each other or units that share tables, is put together here.

use std::sync::LazyLock;

use super::symbols::Inflated;

/// A program's file without sections: a test gives its debug information apart.
pub(crate) const ELF: [u8; 64] = {
    let mut file = [0; 64];
    [file[0], file[1], file[2], file[3], file[4], file[5], file[6]] = *b"\x7fELF\x02\x01\x01";
    (file[16], file[18], file[20], file[52]) = (2, 62, 1, 64);
    file
};

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

fn sections(info: Vec<u8>, shapes: Vec<u8>, lines: Vec<u8>) -> Inflated {
    let sections = [(".debug_info", info), (".debug_abbrev", shapes), (".debug_line", lines)];
    Inflated(sections.map(|(name, bytes)| (name.to_owned(), bytes)).into())
}

/// The code that it is about.
pub(crate) const CODE: u64 = 0x40_1000;
const CODE_BYTES: u64 = 16;

// DWARF 4, 7.5.3: number, tag, whether there are entries inside, attributes and how they are stored.
const UNIT: [u8; 11] = [1, 0x11, 1, 0x11, 1, 0x12, 7, 0x10, 0x17, 0, 0];
const FUNCTION: [u8; 9] = [2, 0x2e, 1, 0x11, 1, 0x12, 7, 0, 0];
const INLINED: [u8; 9] = [3, 0x1d, 1, 0x11, 1, 0x12, 7, 0, 0];

/// Debug information in which `depth` functions were inlined into each other; its code is line 7 of `a.c`.
pub(crate) fn nested(depth: usize) -> Inflated {
    let shapes = [&UNIT[..], &FUNCTION, &INLINED, &[0]].concat();
    let entry = |number| words(&[(number, 1), (CODE, 8), (CODE_BYTES, 8)]);
    let mut entries = [entry(1), vec![0; 4], entry(2)].concat();
    entries.extend(entry(3).repeat(depth));
    // Each ends the entries inside another.
    entries.extend(vec![0; depth + 2]);
    sections(unit(0, &entries), shapes, lines("", 1))
}

/// Debug information with the lines of `files` source files, all in one directory whose name has `bytes` letters.
#[cfg(test)]
pub(crate) fn files_of_one_directory(files: usize, bytes: usize) -> Inflated {
    let shapes = [&UNIT[..], &[0]].concat();
    let entries = [words(&[(1, 1), (CODE, 8), (CODE_BYTES, 8)]), vec![0; 5]].concat();
    sections(unit(0, &entries), shapes, lines(&"d".repeat(bytes), files))
}

/// Debug information of `units` units without entries. Each names a table of shapes of its own, `apart` bytes behind the one before, in one
/// long list that ends once.
pub(crate) fn units_with_tables(units: u64, apart: u64) -> Inflated {
    // Numbers of shapes have two bytes, so that each shape has eleven: DWARF 4, 7.6.
    let shape = |number: u64| {
        let number = [number as u8 & 0x7f | 0x80, (number >> 7) as u8 & 0x7f];
        [&number[..], &FUNCTION[1..], &[]].concat()
    };
    let mut shapes: Vec<u8> = (1..units + 1).flat_map(shape).collect();
    shapes.push(0);
    sections((0..units).flat_map(|number| unit(number * apart, &[0])).collect(), shapes, lines("", 1))
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
