//! A guest image: the first rows of the embedded one's tables, and a few sites that call a few functions.

use std::sync::OnceLock;

use haltkick_hypercalls::{
    ABI_FINGERPRINT, ABI_VERSION, CALLS_SECTION, Descriptor, EVENTS_SECTION, IMPORTS_SECTION, Import,
    LOCKS_SECTION, LockObjects, NOTE_OWNER, NOTE_TYPE, OBJECTS_SECTION, POINTS_SECTION, SITES_SECTION,
    WORKLOADS_SECTION,
};
use object::{Object as _, ObjectSection as _, ObjectSymbol as _, SymbolKind};

use super::{
    ALLOC, EXECUTE, GLOBAL_FUNCTION, NOTE, PROGBITS, STRINGS, SYMBOLS, Section, Strings, WRITE, file, symbol,
    words,
};
use crate::image::IMAGE_BASE;
use crate::image::file::Image;

const LOCKS: usize = 3;
const SITES: u64 = 8;
const OPERATIONS: u64 = 4;
/// From one site, and from one function, to the next.
const STEP: u64 = 16;
const FUNCTIONS: u64 = IMAGE_BASE + SITES * STEP;
/// Functions that sites call, the first of them so short that it can stand in a site.
const CODE: [&[u8]; 4] = [
    &[0xc6, 0x07, 0x00, 0xc3],
    &[0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0, 0xc3],
    &[0xf0, 0x0f, 0xb1, 0x17, 0x75, 0xfa, 0xc3],
    &[0xc3],
];
/// 256 stubs of a byte each.
const STUBS: u64 = FUNCTIONS + CODE.len() as u64 * STEP;
const DATA: u64 = IMAGE_BASE + 0x1000;

pub(crate) fn small_image() -> &'static [u8] {
    static FILE: OnceLock<Vec<u8>> = OnceLock::new();
    FILE.get_or_init(make)
}

fn function(number: usize) -> u64 {
    FUNCTIONS + number as u64 * STEP
}

fn make() -> Vec<u8> {
    let embedded = object::File::parse(Image::embedded_elf()).expect("the embedded image is an ELF file");
    let rows = |name: &'static str, row: usize, count: usize| {
        let data = embedded.section_by_name(name).and_then(|section| section.data().ok());
        let bytes = data.expect("the embedded image has all tables")[..row * count].to_vec();
        Section { name, kind: PROGBITS, bytes, ..Section::default() }
    };
    let imports = embedded.section_by_name(IMPORTS_SECTION).map_or(0, |section| section.size() as usize);
    let imports = imports / size_of::<Import>();
    let table = |name, bytes| Section { name, kind: PROGBITS, bytes, ..Section::default() };
    let loaded = |name, address, flags, rights, bytes| {
        let segment = Some([1, rights]);
        Section { name, kind: PROGBITS, flags: ALLOC | flags, address, bytes, segment, ..Section::default() }
    };
    let (symbols, names) = symbols(&embedded);
    let sections = vec![
        loaded(".text", IMAGE_BASE, EXECUTE, 5, code()),
        loaded(OBJECTS_SECTION, DATA, WRITE, 6, vec![0; size_of::<LockObjects>()]),
        Section { name: ".note", kind: NOTE, bytes: note(), segment: Some([4, 4]), ..Section::default() },
        rows(LOCKS_SECTION, size_of::<Descriptor>(), LOCKS),
        rows(WORKLOADS_SECTION, size_of::<Descriptor>(), 2),
        rows(POINTS_SECTION, size_of::<Descriptor>(), 2),
        rows(EVENTS_SECTION, 32, 3),
        rows(IMPORTS_SECTION, size_of::<Import>(), imports),
        table(CALLS_SECTION, calls()),
        table(SITES_SECTION, (0..SITES).flat_map(site).collect()),
        Section {
            name: ".symtab",
            kind: SYMBOLS,
            bytes: symbols,
            link: 12,
            info: 1,
            entry_bytes: 24,
            ..Section::default()
        },
        Section { name: ".strtab", kind: STRINGS, bytes: names.0, ..Section::default() },
    ];
    file(IMAGE_BASE, sections)
}

/// Sites, then functions, then stubs.
fn code() -> Vec<u8> {
    let mut code = vec![0xcc; (STUBS + 256 - IMAGE_BASE) as usize];
    for number in 0..SITES {
        let (at, slot) = (number * STEP, DATA + number % OPERATIONS * 8);
        // call [rip + distance]
        let distance = slot - (IMAGE_BASE + at + 6);
        code[at as usize..][..6].copy_from_slice(&words(&[(0x15ff, 2), (distance, 4)]));
    }
    for (number, bytes) in CODE.iter().enumerate() {
        code[(function(number) - IMAGE_BASE) as usize..][..bytes.len()].copy_from_slice(bytes);
    }
    code
}

/// A row of the table of sites.
fn site(number: u64) -> Vec<u8> {
    let operation = number % OPERATIONS;
    words(&[(IMAGE_BASE + number * STEP, 8), (DATA + operation * 8, 8), (6, 4), (operation, 4)])
}

/// The first lock is called by locks' sites, the second by readers' too; the third has a paravirtual form alone.
fn calls() -> Vec<u8> {
    let [lock, unlock, read, read_unlock] = [0, 1, 2, 3].map(function);
    let rows = [
        [lock, unlock, 0, 0],
        [unlock, lock, 0, 0],
        [read, lock, read, read_unlock],
        [0; 4],
        [0; 4],
        [read, lock, 0, 0],
    ];
    let row = |row: &[u64; 4]| {
        let functions: Vec<_> = row.iter().map(|&address| (address, 8)).collect();
        [words(&functions), words(&[(4, 4), (64, 4)])].concat()
    };
    rows.iter().flat_map(row).collect()
}

fn note() -> Vec<u8> {
    let mut note = words(&[(NOTE_OWNER.len() as u64, 4), (24, 4), (NOTE_TYPE.into(), 4)]);
    note.extend(NOTE_OWNER);
    note.resize(note.len().next_multiple_of(4), 0);
    note.extend(words(&[(ABI_VERSION.into(), 4), (1, 4), (STUBS, 8), (ABI_FINGERPRINT, 8)]));
    note
}

/// Functions under names of the embedded image's.
fn symbols(embedded: &object::File<'_>) -> (Vec<u8>, Strings) {
    let mut names = Strings::new();
    let mut table = symbol(0, 0, 0, 0, 0);
    let functions = embedded.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text);
    let theirs = functions.filter_map(|symbol| symbol.name().ok()).take(CODE.len());
    for (number, name) in theirs.enumerate() {
        table.extend(symbol(names.add(name), GLOBAL_FUNCTION, 1, function(number), STEP));
    }
    (table, names)
}
