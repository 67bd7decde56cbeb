//! Small files made by hand, each with all that its kind can have: what is executed on arbitrary bytes edits them. The embedded
//! image would do, but it is a thousand times as long, and so are executions then.
//!
//! They are put together here, of sections that are given (ELF-64 object file format).

pub(crate) mod guest;
pub(crate) mod lock;
pub(crate) mod nested;

const PROGBITS: u32 = 1;
const SYMBOLS: u32 = 2;
const STRINGS: u32 = 3;
const RELOCATIONS: u32 = 4;
const NOTE: u32 = 7;
const NO_BITS: u32 = 8;

const WRITE: u64 = 1;
const ALLOC: u64 = 2;
const EXECUTE: u64 = 4;

/// Kinds of a symbol that is visible to all files: a function, or a variable.
const GLOBAL_FUNCTION: u8 = 0x12;
const GLOBAL_VARIABLE: u8 = 0x11;

const FILE_HEADER_BYTES: usize = 64;
const SEGMENT_HEADER_BYTES: usize = 56;
const SECTION_HEADER_BYTES: u16 = 64;

/// A section.
#[derive(Default)]
struct Section {
    name: &'static str,
    kind: u32,
    flags: u64,
    address: u64,
    bytes: Vec<u8>,
    /// Length of a section of zeros, which has no bytes.
    zeros: u64,
    /// The numbers of other sections that it is about.
    link: u32,
    info: u32,
    entry_bytes: u64,
    /// Type and rights of the segment that it is alone in.
    segment: Option<[u32; 2]>,
}

/// Joins numbers, each written in its own length in bytes.
fn words(numbers: &[(u64, usize)]) -> Vec<u8> {
    numbers.iter().flat_map(|(number, bytes)| number.to_le_bytes().into_iter().take(*bytes)).collect()
}

/// Texts, each with a zero behind it, after an empty one.
#[derive(Clone)]
struct Strings(Vec<u8>);

impl Strings {
    fn new() -> Self {
        Self(vec![0])
    }

    /// Adds `text`; returns the position of its first byte.
    fn add(&mut self, text: &str) -> u64 {
        let at = self.0.len() as u64;
        self.0.extend_from_slice(text.as_bytes());
        self.0.push(0);
        at
    }
}

/// A symbol as it is in a table: name, kind, section, value, size.
fn symbol(name: u64, kind: u8, section: u16, value: u64, size: u64) -> Vec<u8> {
    words(&[(name, 4), (kind.into(), 1), (0, 1), (section.into(), 2), (value, 8), (size, 8)])
}

/// The file, of a kind (2: a program, 1: a relocatable file). Sections are numbered from 1 on.
fn file(kind: u64, entry: u64, mut sections: Vec<Section>) -> Vec<u8> {
    let mut names = Strings::new();
    let mut starts: Vec<u64> = sections.iter().map(|section| names.add(section.name)).collect();
    starts.push(names.add(".shstrtab"));
    sections.push(Section { kind: STRINGS, bytes: names.0, ..Section::default() });
    let segments = sections.iter().filter(|section| section.segment.is_some()).count();
    let mut file = vec![0; FILE_HEADER_BYTES + SEGMENT_HEADER_BYTES * segments];
    let mut section_headers = vec![0; SECTION_HEADER_BYTES.into()];
    let mut segment_headers = Vec::new();
    for (section, name) in sections.iter().zip(starts) {
        file.resize(file.len().next_multiple_of(8), 0);
        let (at, bytes) = (file.len() as u64, section.bytes.len() as u64);
        let (address, flags, size) = (section.address, section.flags, bytes + section.zeros);
        section_headers.extend(words(&[(name, 4), (section.kind.into(), 4), (flags, 8), (address, 8)]));
        let about = [(section.link.into(), 4), (section.info.into(), 4), (8, 8), (section.entry_bytes, 8)];
        section_headers.extend(words(&[(at, 8), (size, 8)]));
        section_headers.extend(words(&about));
        if let Some([kind, rights]) = section.segment {
            let head = [(kind.into(), 4), (rights.into(), 4), (at, 8), (address, 8), (address, 8)];
            segment_headers.extend(words(&head));
            segment_headers.extend(words(&[(bytes, 8), (size, 8), (8, 8)]));
        }
        file.extend_from_slice(&section.bytes);
    }
    file.resize(file.len().next_multiple_of(8), 0);
    let [at, count] = [file.len() as u64, sections.len() as u64 + 1];
    file.extend(section_headers);
    file[..8].copy_from_slice(b"\x7fELF\x02\x01\x01\x00");
    let rest = [
        (kind, 2),
        (62, 2),
        (1, 4),
        (entry, 8),
        (if segments > 0 { FILE_HEADER_BYTES as u64 } else { 0 }, 8),
        (at, 8),
        (0, 4),
        (FILE_HEADER_BYTES as u64, 2),
        (SEGMENT_HEADER_BYTES as u64, 2),
        (segments as u64, 2),
        (SECTION_HEADER_BYTES.into(), 2),
        (count, 2),
        (count - 1, 2),
    ];
    file[16..FILE_HEADER_BYTES].copy_from_slice(&words(&rest));
    file[FILE_HEADER_BYTES..][..segment_headers.len()].copy_from_slice(&segment_headers);
    file
}
