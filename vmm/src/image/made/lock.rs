//! A lock object with all kinds of sections, symbols and references that are linked, and an archive of it.

use std::sync::OnceLock;

use super::{
    ALLOC, EXECUTE, GLOBAL_FUNCTION, GLOBAL_VARIABLE, NO_BITS, PROGBITS, RELOCATIONS, STRINGS, SYMBOLS,
    Section, Strings, WRITE, file, symbol, words,
};

const TEXT: u16 = 1;
const CONSTANTS: u16 = 3;
const DATA: u16 = 4;
const ZEROS: u16 = 6;
const SYMBOL_TABLE: u32 = 9;
/// Section number of an undefined symbol, which another file defines; for [`COMMON`] the linker creates zeros.
const ELSEWHERE: u16 = 0;
const COMMON: u16 = 0xfff2;
const SECTION_SYMBOL: u8 = 3;

/// Alignment of each function.
const STEP: usize = 32;
const FUNCTIONS: [(&str, &[u8]); 6] = [
    // mov eax, 1; xchg [rdi], eax; test eax, eax; jz to the end; call hk_waits; jmp to the beginning; ret
    ("hk_lock", &[0xb8, 1, 0, 0, 0, 0x87, 7, 0x85, 0xc0, 0x74, 7, 0xe8, 0, 0, 0, 0, 0xeb, 0xee, 0xc3]),
    // mov dword ptr [rdi], 0; ret
    ("hk_unlock", &[0xc7, 7, 0, 0, 0, 0, 0xc3]),
    // mov rax, [rip + where hk_now is said]; call rax; lea rax, [rip + hk_percpu_area]; mov eax, hk_event_mine; ret
    (
        "hk_pv_lock",
        &[0x48, 0x8b, 5, 0, 0, 0, 0, 0xff, 0xd0, 0x48, 0x8d, 5, 0, 0, 0, 0, 0xb8, 0, 0, 0, 0, 0xc3],
    ),
    // mov rax, .data; ret
    ("hk_pv_unlock", &[0x48, 0xc7, 0xc0, 0, 0, 0, 0, 0xc3]),
    // xor eax, eax; ret
    ("hk_try_lock", &[0x31, 0xc0, 0xc3]),
    ("hk_init", &[0xc3]),
];

/// The symbols, by their numbers: those of sections first.
struct Numbers {
    text: u64,
    data: u64,
    first_global: u32,
    unlock: u64,
    waits: u64,
    now: u64,
    cpu_area: u64,
    event: u64,
    zeros: u64,
    common: u64,
}

pub(crate) fn small_object() -> &'static [u8] {
    static FILE: OnceLock<Vec<u8>> = OnceLock::new();
    FILE.get_or_init(object)
}

/// An archive of the object, twice.
pub(crate) fn small_archive() -> &'static [u8] {
    static FILE: OnceLock<Vec<u8>> = OnceLock::new();
    FILE.get_or_init(archive)
}

fn object() -> Vec<u8> {
    let (table, names, numbers) = symbols();
    let mut text = vec![0x90; FUNCTIONS.len() * STEP];
    for (number, (_, code)) in FUNCTIONS.iter().enumerate() {
        text[number * STEP..][..code.len()].copy_from_slice(code);
    }
    // Behind it: relative to the next instruction.
    let near = (-4_i64).cast_unsigned();
    let pv_lock = 2 * STEP as u64;
    let of_text = [
        (12, numbers.waits, 4, near),
        (pv_lock + 3, numbers.now, 42, near),
        (pv_lock + 12, numbers.cpu_area, 2, near),
        (pv_lock + 17, numbers.event, 10, 0),
        (3 * STEP as u64 + 3, numbers.data, 11, 0),
    ];
    let of_data = [(0, numbers.unlock, 1, 0), (8, numbers.zeros, 1, 0), (16, numbers.common, 1, 8)];
    let of_debug = [(4, numbers.text, 1, 0), (12, numbers.unlock, 10, 0)];
    let plain = |name, flags, bytes| Section { name, kind: PROGBITS, flags, bytes, ..Section::default() };
    let sections = vec![
        plain(".text", ALLOC | EXECUTE, text),
        relocations(".rela.text", TEXT, &of_text),
        plain(".rodata", ALLOC, words(&[(1, 4), (8, 4), (8, 4), (64, 4)])),
        plain(".data", ALLOC | WRITE, vec![0; 24]),
        relocations(".rela.data", DATA, &of_data),
        Section { name: ".bss", kind: NO_BITS, flags: ALLOC | WRITE, zeros: 64, ..Section::default() },
        plain(".debug_info", 0, vec![0; 16]),
        relocations(".rela.debug_info", 7, &of_debug),
        Section {
            name: ".symtab",
            kind: SYMBOLS,
            bytes: table,
            link: SYMBOL_TABLE + 1,
            info: numbers.first_global,
            entry_bytes: 24,
            ..Section::default()
        },
        Section { name: ".strtab", kind: STRINGS, bytes: names.0, ..Section::default() },
    ];
    file(1, 0, sections)
}

fn archive() -> Vec<u8> {
    let mut archive = b"!<arch>\n".to_vec();
    let object = small_object();
    for name in ["first.o/", "second.o/"] {
        let head = format!("{name:<16}{:<12}{:<6}{:<6}{:<8}{:<10}`\n", 0, 0, 0, "644", object.len());
        archive.extend(head.bytes());
        archive.extend(object);
    }
    archive
}

/// Relocations of a section: place, symbol, kind, addend.
fn relocations(name: &'static str, of: u16, rows: &[(u64, u64, u64, u64)]) -> Section {
    let row = |&(place, symbol, kind, addend): &(u64, u64, u64, u64)| {
        words(&[(place, 8), (symbol << 32 | kind, 8), (addend, 8)])
    };
    let bytes = rows.iter().flat_map(row).collect();
    let (link, info) = (SYMBOL_TABLE, of.into());
    Section { name, kind: RELOCATIONS, bytes, link, info, entry_bytes: 24, ..Section::default() }
}

fn symbols() -> (Vec<u8>, Strings, Numbers) {
    let mut names = Strings::new();
    let mut rows = vec![
        symbol(0, 0, 0, 0, 0),
        symbol(0, SECTION_SYMBOL, TEXT, 0, 0),
        symbol(0, SECTION_SYMBOL, DATA, 0, 0),
    ];
    let first_global = rows.len() as u32;
    let mut add = |name: &str, kind, section, value, size| {
        rows.push(symbol(names.add(name), kind, section, value, size));
        rows.len() as u64 - 1
    };
    for (number, (name, code)) in FUNCTIONS.iter().enumerate() {
        add(name, GLOBAL_FUNCTION, TEXT, (number * STEP) as u64, code.len() as u64);
    }
    for (number, name) in
        ["hk_version", "hk_lock_size", "hk_lock_align", "hk_percpu_size"].into_iter().enumerate()
    {
        add(name, GLOBAL_VARIABLE, CONSTANTS, 4 * number as u64, 4);
    }
    let mut elsewhere = |name| add(name, 0x10, ELSEWHERE, 0, 0);
    let [waits, now, cpu_area, event] =
        ["hk_waits", "hk_now", "hk_percpu_area", "hk_event_mine"].map(&mut elsewhere);
    let zeros = add("zeros", GLOBAL_VARIABLE, ZEROS, 0, 64);
    let common = add("common", GLOBAL_VARIABLE, COMMON, 8, 16);
    let unlock = u64::from(first_global) + 1;
    let numbers =
        Numbers { text: 1, data: 2, first_global, unlock, waits, now, cpu_area, event, zeros, common };
    (rows.concat(), names, numbers)
}
