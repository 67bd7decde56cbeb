//! A file whose debug information says that one function was inlined into another, and so on.

use super::elf::{PROGBITS, Section, file, words};

/// The code that it is about.
pub(crate) const CODE: u64 = 0x40_1000;
const CODE_BYTES: u64 = 16;

/// The file; `depth` functions were inlined into each other.
pub(crate) fn nested(depth: usize) -> Vec<u8> {
    // DWARF 4, 7.5.3: number, tag, whether there are entries inside, attributes and how they are stored.
    const UNIT: [u8; 9] = [1, 0x11, 1, 0x11, 1, 0x12, 7, 0, 0];
    const FUNCTION: [u8; 9] = [2, 0x2e, 1, 0x11, 1, 0x12, 7, 0, 0];
    const INLINED: [u8; 9] = [3, 0x1d, 1, 0x11, 1, 0x12, 7, 0, 0];
    let shapes = [&UNIT[..], &FUNCTION, &INLINED, &[0]].concat();
    let entry = |number| words(&[(number, 1), (CODE, 8), (CODE_BYTES, 8)]);
    let mut entries = [entry(1), entry(2)].concat();
    entries.extend(entry(3).repeat(depth));
    // Each ends the entries inside another.
    entries.extend(vec![0; depth + 2]);
    let mut info = words(&[(entries.len() as u64 + 7, 4), (4, 2), (0, 4), (8, 1)]);
    info.extend(entries);
    let plain = |name, bytes| Section { name, kind: PROGBITS, bytes, ..Section::default() };
    file(2, CODE, vec![plain(".debug_info", info), plain(".debug_abbrev", shapes)])
}
