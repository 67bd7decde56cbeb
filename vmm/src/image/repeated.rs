//! Files whose headers name the same bytes again and again, and files in the other order of bytes.

use std::borrow::Cow;
use std::path::Path;

use super::file::{Image, parse};
use super::made::guest::small_image;
use super::made::{SMALL_OBJECT, archive_header};
use super::object::Wanted;
use super::sites::word;

const SECTION_HEADER_BYTES: usize = 64;
const SYMBOL_BYTES: usize = 24;
/// Offset in the file's header of the place and the number of its section headers, and of its segments' headers.
const SECTIONS_AT: usize = 40;
const SECTION_COUNT: usize = 60;
const SEGMENTS_AT: usize = 32;
const SEGMENT_COUNT: usize = 56;
/// In a section's header: kind, place and length.
const KIND: usize = 4;
const PLACE: usize = 24;
const LENGTH: usize = 32;

const SYMBOLS: u32 = 2;
const STRINGS: u32 = 3;
const RELOCATIONS: u32 = 4;

/// An ELF file that is changed.
struct Changed(Vec<u8>);

impl Changed {
    fn word(&self, at: usize) -> usize {
        word(&self.0, at, 8) as usize
    }

    fn put(&mut self, at: usize, number: u64, bytes: usize) {
        self.0[at..at + bytes].copy_from_slice(&number.to_le_bytes()[..bytes]);
    }

    fn sections(&self) -> usize {
        u16::from_le_bytes([self.0[SECTION_COUNT], self.0[SECTION_COUNT + 1]]).into()
    }

    /// Returns the place of the header of the first section of a kind.
    fn header(&self, kind: u32) -> usize {
        let headers =
            (0..self.sections()).map(|number| self.word(SECTIONS_AT) + number * SECTION_HEADER_BYTES);
        let is_it = |header: &usize| self.0[header + KIND..][..4] == kind.to_le_bytes();
        headers.into_iter().find(is_it).expect("there is one")
    }

    fn section(&self, header: usize) -> Vec<u8> {
        self.0[self.word(header + PLACE)..][..self.word(header + LENGTH)].to_vec()
    }

    /// Gives a section other bytes.
    fn replace(&mut self, header: usize, bytes: &[u8]) {
        self.0.resize(self.0.len().next_multiple_of(8), 0);
        self.put(header + PLACE, self.0.len() as u64, 8);
        self.put(header + LENGTH, bytes.len() as u64, 8);
        self.0.extend_from_slice(bytes);
    }

    /// More symbols, all with one name.
    fn add_symbols(&mut self, count: usize, name_bytes: usize, section: u16, size: u64, first_value: u64) {
        let (table, strings) = (self.header(SYMBOLS), self.header(STRINGS));
        let (mut symbols, mut names) = (self.section(table), self.section(strings));
        let name = names.len() as u32;
        names.extend(vec![b'x'; name_bytes]);
        names.push(0);
        for number in 0..count as u64 {
            symbols.extend(name.to_le_bytes());
            symbols.extend([0x12, 0]);
            symbols.extend(section.to_le_bytes());
            symbols.extend((first_value + number).to_le_bytes());
            symbols.extend(size.to_le_bytes());
        }
        assert_eq!(symbols.len() % SYMBOL_BYTES, 0);
        self.replace(table, &symbols);
        self.replace(strings, &names);
    }

    fn linked(self) -> Result<Image, String> {
        let image = parse(Path::new("small"), Cow::Borrowed(small_image())).expect("it is right");
        let wanted = Wanted::bytes(Path::new("changed.o"), self.0);
        image.with_linked(&[wanted]).map_err(|error| error.to_string())
    }

    fn parsed(self) -> Result<Image, String> {
        parse(Path::new("changed"), Cow::Owned(self.0)).map_err(|error| error.to_string())
    }
}

fn object() -> Changed {
    Changed(SMALL_OBJECT.to_vec())
}

fn image() -> Changed {
    Changed(small_image().to_vec())
}

/// An error that has these words.
fn assert_refused(result: Result<Image, String>, words: &str) {
    let error = result.expect_err("it is refused");
    assert!(error.contains(words), "{error}");
}

#[test]
fn an_object_that_names_one_relocation_table_many_times_is_refused() {
    let mut object = object();
    let header = object.header(RELOCATIONS);
    // Kind 0, which does nothing.
    object.replace(header, &vec![0; 2000 * 24]);
    let copied = object.0[header..][..SECTION_HEADER_BYTES].to_vec();
    let headers = object.0[object.word(SECTIONS_AT)..][..object.sections() * SECTION_HEADER_BYTES].to_vec();
    object.put(SECTIONS_AT, object.0.len() as u64, 8);
    object.put(SECTION_COUNT, object.sections() as u64 + 300, 2);
    object.0.extend(headers);
    object.0.extend(copied.repeat(300));
    assert_refused(object.linked(), "again and again");
}

#[test]
fn an_object_whose_symbols_share_a_long_name_is_refused() {
    let mut object = object();
    object.add_symbols(2000, 10_000, 1, 0, 0);
    assert_refused(object.linked(), "again and again");
}

#[test]
fn an_object_whose_functions_overlap_without_end_is_refused() {
    let mut object = object();
    let text = object.header(1);
    let mut code = object.section(text);
    code.resize(1 << 16, 0x90);
    object.replace(text, &code);
    object.add_symbols(200, 5, 1, 1 << 15, 1000);
    assert_refused(object.linked(), "has functions of more than 4096 KiB");
}

/// An archive of `bytes` bytes: half of them are one name, which is that of all members.
fn archive_of_one_name(bytes: usize) -> Vec<u8> {
    let mut archive = b"!<arch>\n".to_vec();
    archive.extend(archive_header("//", bytes / 2));
    archive.extend(vec![b'x'; bytes / 2 - 2]);
    archive.extend(b"/\n");
    let each = archive_header("/0", 0);
    archive.extend(each.repeat((bytes / 2).div_ceil(each.len())));
    archive
}

#[test]
fn an_archive_whose_members_share_a_long_name_is_refused() {
    for mebibytes in [1, 4, 16] {
        let archive = Changed(archive_of_one_name(mebibytes << 20));
        assert_refused(archive.linked(), "again and again");
    }
}

/// An object of `sections` sections that hold the same code, each of which the next one refers to.
fn object_of_one_code(sections: usize, code_bytes: usize) -> Changed {
    let mut object = object();
    let (text, symbols) = (object.header(1), object.header(SYMBOLS));
    let relocations = object.header(RELOCATIONS);
    let mut code = object.section(text);
    code.resize(code_bytes, 0x90);
    object.replace(text, &code);
    let first = object.sections();
    let first_symbol = object.section(symbols).len() / SYMBOL_BYTES;
    let mut more: Vec<u8> = Vec::new();
    let mut named = object.section(symbols);
    let mut references = object.section(relocations);
    for number in 0..sections {
        more.extend(&object.0[text..][..SECTION_HEADER_BYTES]);
        // A symbol of the section, and a reference to it of kind 0, which does nothing.
        named.extend([0, 0, 0, 0, 3, 0]);
        named.extend((first as u16 + number as u16).to_le_bytes());
        named.extend([0; 16]);
        references.extend(code_bytes.to_le_bytes());
        references.extend((((first_symbol + number) as u64) << 32).to_le_bytes());
        references.extend([0; 8]);
    }
    object.replace(symbols, &named);
    object.replace(relocations, &references);
    let headers = object.0[object.word(SECTIONS_AT)..][..first * SECTION_HEADER_BYTES].to_vec();
    object.put(SECTIONS_AT, object.0.len() as u64, 8);
    object.put(SECTION_COUNT, (first + sections) as u64, 2);
    object.0.extend(headers);
    object.0.extend(more);
    object
}

#[test]
fn an_object_whose_sections_share_their_code_is_refused_unread() {
    for mebibytes in [1, 4, 16] {
        let object = object_of_one_code(4000 * mebibytes, mebibytes << 19);
        assert_refused(object.linked(), "takes more than 4096 KiB");
    }
}

#[test]
fn symbols_that_share_a_long_name_take_little_memory() {
    let mut image = image();
    image.add_symbols(20_000, 100_000, 1, 16, 1 << 40);
    let image = image.parsed().expect("its symbols are not looked at");
    let bytes: usize = image.symbols().iter().map(|symbol| symbol.name.len()).sum();
    assert!(bytes <= 64 << 20, "{bytes} bytes of names");
}

#[test]
fn an_image_of_too_many_segments_or_records_is_refused() {
    let mut many = image();
    many.put(SEGMENTS_AT, many.0.len() as u64, 8);
    many.put(SEGMENT_COUNT, 5000, 2);
    many.0.extend(vec![0; 5000 * 56]);
    assert_refused(many.parsed(), "has 5000 segments");
    let mut many = image();
    // The eleventh section: see `made::guest`.
    let header = many.word(SECTIONS_AT) + 10 * SECTION_HEADER_BYTES;
    let sites = many.section(header);
    many.replace(header, &sites.repeat(1000));
    assert_refused(many.parsed(), "has more than 4096 records in");
}

/// Turns the numbers of these lengths around, one after the other.
fn turn(bytes: &mut [u8], lengths: &[usize]) {
    let mut at = 0;
    for length in lengths {
        bytes[at..at + length].reverse();
        at += length;
    }
}

#[test]
fn an_image_in_the_other_order_of_bytes_is_refused() {
    let mut file = image();
    let (segments, sections) = (file.word(SEGMENTS_AT), file.word(SECTIONS_AT));
    let segment_count = usize::from(file.0[SEGMENT_COUNT]);
    let note = (0..segment_count).map(|number| segments + number * 56).find(|at| file.0[*at] == 4);
    let note = file.word(note.expect("there is a note") + 8);
    for number in 0..segment_count {
        turn(&mut file.0[segments + number * 56..], &[4, 4, 8, 8, 8, 8, 8, 8]);
    }
    for number in 0..file.sections() {
        turn(&mut file.0[sections + number * SECTION_HEADER_BYTES..], &[4, 4, 8, 8, 8, 8, 4, 4, 8, 8]);
    }
    turn(&mut file.0[note..], &[4, 4, 4]);
    turn(&mut file.0[16..], &[2, 2, 4, 8, 8, 8, 4, 2, 2, 2, 2, 2, 2]);
    file.0[5] = 2;
    let linked = file.parsed().and_then(|image| {
        let wanted = Wanted::bytes(Path::new("small.o"), SMALL_OBJECT);
        image.with_linked(&[wanted]).map_err(|error| error.to_string())
    });
    assert_refused(linked, "is not an ELF file for x86-64");
}
