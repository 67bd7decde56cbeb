//! Images and lock objects that were edited: what is refused, in a line that says why, and what is read all the same. Among them are files
//! whose headers name the same bytes again and again.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use haltkick_hypercalls::{
    ABI_VERSION, CALLS_SECTION, LOCKS_SECTION, NOTE_OWNER, OBJECTS_SECTION, SITES_SECTION,
};

use super::file::{Image, parse};
use super::made::{SMALL_ARCHIVE, SMALL_OBJECT, archive_header};
use super::object::{FILE_PREFIX, Wanted};
use super::sites::word;
use crate::host::text::printable;

const SECTION_HEADER_BYTES: usize = 64;
const SEGMENT_HEADER_BYTES: usize = 56;
const SYMBOL_BYTES: usize = 24;
/// Offset in the file's header of its order of bytes, its type, its machine and its entry; of the place and the number of its section
/// headers and of its segments' headers; and of the number of the section that has the names of sections.
const ORDER: usize = 5;
const TYPE: usize = 16;
const MACHINE: usize = 18;
const ENTRY: usize = 24;
const SEGMENTS_AT: usize = 32;
const SECTIONS_AT: usize = 40;
const SEGMENT_COUNT: usize = 56;
const SECTION_COUNT: usize = 60;
const NAMES: usize = 62;
/// In a section's header: kind, address, place, length, the number of another section, and one that depends on the kind.
const KIND: usize = 4;
const ADDRESS: usize = 16;
const PLACE: usize = 24;
const LENGTH: usize = 32;
const LINK: usize = 40;
const INFO: usize = 44;

const SYMBOLS: u32 = 2;
const RELOCATIONS: u32 = 4;

/// An ELF file that is edited.
struct Edited(Vec<u8>);

impl Edited {
    fn word(&self, at: usize) -> usize {
        word(&self.0, at, 8) as usize
    }

    fn put(&mut self, at: usize, number: u64, bytes: usize) {
        self.0[at..at + bytes].copy_from_slice(&number.to_le_bytes()[..bytes]);
    }

    fn find(&self, what: &[u8]) -> usize {
        self.0.windows(what.len()).position(|bytes| bytes == what).expect("the file has it")
    }

    fn sections(&self) -> usize {
        word(&self.0, SECTION_COUNT, 2) as usize
    }

    /// Returns the place of a section's header.
    fn numbered(&self, section: usize) -> usize {
        self.word(SECTIONS_AT) + section * SECTION_HEADER_BYTES
    }

    fn first(&self, is_it: impl Fn(usize) -> bool) -> usize {
        (0..self.sections())
            .map(|section| self.numbered(section))
            .find(|&at| is_it(at))
            .expect("there is one")
    }

    /// As [`Self::numbered`], of the first section of a kind.
    fn header(&self, kind: u32) -> usize {
        self.first(|header| word(&self.0, header + KIND, 4) == u64::from(kind))
    }

    /// As [`Self::numbered`], of the section with a name.
    fn named(&self, name: &str) -> usize {
        let names = self.word(self.numbered(word(&self.0, NAMES, 2) as usize) + PLACE);
        let ended = [name.as_bytes(), b"\0"].concat();
        self.first(|header| self.0[names + word(&self.0, header, 4) as usize..].starts_with(&ended))
    }

    fn range(&self, header: usize) -> Range<usize> {
        self.word(header + PLACE)..self.word(header + PLACE) + self.word(header + LENGTH)
    }

    fn section(&self, header: usize) -> Vec<u8> {
        self.0[self.range(header)].to_vec()
    }

    /// Gives a section other bytes.
    fn replace(&mut self, header: usize, bytes: &[u8]) {
        self.0.resize(self.0.len().next_multiple_of(8), 0);
        self.put(header + PLACE, self.0.len() as u64, 8);
        self.put(header + LENGTH, bytes.len() as u64, 8);
        self.0.extend_from_slice(bytes);
    }

    /// Moves the headers of the sections behind all else, and more of them behind these.
    fn add_sections(&mut self, more: &[u8]) {
        let own = &self.0[self.numbered(0)..self.numbered(self.sections())];
        let headers = [own, more].concat();
        self.put(SECTIONS_AT, self.0.len() as u64, 8);
        self.put(SECTION_COUNT, (headers.len() / SECTION_HEADER_BYTES) as u64, 2);
        self.0.extend(headers);
    }

    /// More symbols, all with one name.
    fn add_symbols(&mut self, count: usize, name_bytes: usize, section: u16, size: u64, first_value: u64) {
        let table = self.header(SYMBOLS);
        let strings = self.numbered(word(&self.0, table + LINK, 4) as usize);
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
        let wanted = Wanted::bytes(Path::new("changed.o"), self.0);
        Image::embedded().with_linked(&[wanted]).map_err(|error| error.to_string())
    }

    fn parsed(self) -> Result<Image, String> {
        parse(Path::new("changed"), Cow::Owned(self.0)).map_err(|error| error.to_string())
    }

    /// As [`Self::parsed`], and the small object behind it.
    fn with_object(self) -> Result<Image, String> {
        let wanted = Wanted::bytes(Path::new("small.o"), SMALL_OBJECT);
        self.parsed()?.with_linked(&[wanted]).map_err(|error| error.to_string())
    }
}

fn object() -> Edited {
    Edited(SMALL_OBJECT.to_vec())
}

fn image() -> Edited {
    Edited(Image::embedded_elf().to_vec())
}

/// An error in a line that has these words, and does nothing to a terminal.
#[track_caller]
fn assert_refused(result: Result<Image, String>, words: &str) {
    let error = result.expect_err("it is refused");
    assert!(error.contains(words), "{error}: does not say `{words}`");
    assert_eq!(error, printable(&error));
}

/// Checks that the embedded image with `edit` is refused.
#[track_caller]
fn refused(words: &str, edit: impl FnOnce(&mut Edited)) {
    let mut file = image();
    edit(&mut file);
    let said = file.parsed();
    assert!(said.as_ref().is_err_and(|said| said.contains("changed")), "{words}: names the file");
    assert_refused(said, words);
}

type Edit<'a> = &'a dyn Fn(&mut Edited);
type EditSection<'a> = &'a dyn Fn(&mut [u8]);

#[test]
fn a_file_that_is_no_image_is_refused_with_the_reason() {
    /// Behind our note's name: ABI version, and later its fingerprint.
    const VERSION: usize = NOTE_OWNER.len().next_multiple_of(4);
    const FINGERPRINT: usize = VERSION + 16;
    // The address in the header of the first segment that is loaded, behind that of the note.
    const SEGMENT: usize = 64 + SEGMENT_HEADER_BYTES + 16;
    let version = format!("was built for ABI version 77, this haltkick speaks version {ABI_VERSION}");
    // As many bytes as `change` says, in a table with this name.
    let length = |file: &mut Edited, of: &str, change: fn(usize) -> usize| {
        let length = file.named(of) + LENGTH;
        file.put(length, change(file.word(length)) as u64, 8);
    };
    let rows: [(&str, Edit<'_>); 20] = [
        ("not an ELF file", &|file| file.0.clear()),
        ("not an ELF file", &|file| file.0[ORDER] = 2),
        ("not an ELF file", &|file| file.0 = b"#!/bin/sh\nexit 0\n".to_vec()),
        ("x86-64", &|file| file.put(MACHINE, 0xb7, 2)),
        ("x86-64", &|file| file.put(TYPE, 3, 2)),
        ("no Haltkick note", &|file| file.put(file.find(&NOTE_OWNER), b'X'.into(), 1)),
        (&version, &|file| file.put(file.find(&NOTE_OWNER) + VERSION, 77, 4)),
        ("another state of the ABI", &|file| file.put(file.find(&NOTE_OWNER) + FINGERPRINT, 1, 8)),
        ("entry point", &|file| file.put(ENTRY, 0x10, 8)),
        ("0x1000 that is not within", &|file| file.put(SEGMENT, 0x1000, 8)),
        ("0x10000000000 that is not within", &|file| file.put(SEGMENT, 1 << 40, 8)),
        ("0xffffffffffffff9b that is not within", &|file| file.put(SEGMENT, u64::MAX - 100, 8)),
        // Two segments are made of one.
        ("segments that overlap", &|file| {
            let first = file.word(SEGMENTS_AT) + SEGMENT_HEADER_BYTES;
            file.0.copy_within(first..first + SEGMENT_HEADER_BYTES, first + SEGMENT_HEADER_BYTES);
        }),
        ("has 5000 segments", &|file| {
            file.put(SEGMENTS_AT, file.0.len() as u64, 8);
            file.put(SEGMENT_COUNT, 5000, 2);
            file.0.extend(vec![0; 5000 * SEGMENT_HEADER_BYTES]);
        }),
        (SITES_SECTION, &|file| length(file, SITES_SECTION, |bytes| bytes - 1)),
        (SITES_SECTION, &|file| length(file, SITES_SECTION, |_| 1 << 40)),
        (CALLS_SECTION, &|file| length(file, CALLS_SECTION, |bytes| bytes - 1)),
        (CALLS_SECTION, &|file| length(file, CALLS_SECTION, |_| 1 << 40)),
        ("two for each", &|file| length(file, CALLS_SECTION, |bytes| bytes - 80)),
        ("has more than 4096 records in", &|file| {
            let header = file.named(SITES_SECTION);
            file.replace(header, &file.section(header).repeat(1000));
        }),
    ];
    for (words, edit) in rows {
        refused(words, edit);
    }
    // One without a fingerprint was written to the version, not compiled from the file.
    let mut written = image();
    written.put(written.find(&NOTE_OWNER) + FINGERPRINT, 0, 8);
    written.parsed().expect("an image");
}

#[test]
fn a_file_that_is_cut_short_anywhere_is_refused() {
    let whole = Image::embedded_elf().len();
    for length in (0..whole).step_by(whole / 40) {
        refused("", |file| file.0.truncate(length));
    }
}

#[test]
fn call_sites_and_lock_functions_that_cannot_be_are_refused() {
    const SITE_BYTES: usize = 24;
    fn begin(sites: &mut [u8], address: u64) {
        sites[..8].copy_from_slice(&address.to_le_bytes());
    }
    // Lock sites that say they unlock call through the slot of the lock.
    let swaps = |sites: &mut [u8]| {
        for site in sites.chunks_exact_mut(SITE_BYTES).filter(|site| site[20] < 2).skip(1) {
            site[20] ^= 1;
        }
    };
    let repeats = |sites: &mut [u8]| {
        let (first, rest) = sites.split_at_mut(SITE_BYTES);
        let same = rest.chunks_exact_mut(SITE_BYTES).find(|site| site[20] == first[20]);
        same.expect("two of a kind").copy_from_slice(first);
    };
    let long = |length: u32| move |sites: &mut [u8]| sites[16..20].copy_from_slice(&length.to_le_bytes());
    let rows: [(&str, &str, EditSection<'_>); 17] = [
        (SITES_SECTION, "at 0x0, 6 bytes long, that is not within its code", &|sites| begin(sites, 0)),
        (SITES_SECTION, "at 0x1000, 6 bytes", &|sites| begin(sites, 0x1000)),
        (SITES_SECTION, "at 0x10000000000, 6 bytes", &|sites| begin(sites, 1 << 40)),
        (SITES_SECTION, "at 0xfffffffffffffffd, 6 bytes", &|sites| begin(sites, u64::MAX - 2)),
        // Data is within the image, but no code.
        (SITES_SECTION, "not within its code", &|sites| sites.copy_within(8..16, 0)),
        (SITES_SECTION, "not within its code", &long(0)),
        (SITES_SECTION, "something of another length", &long(5)),
        (SITES_SECTION, "something of another length", &long(7)),
        (SITES_SECTION, "not within its code", &long(u32::MAX)),
        (SITES_SECTION, "is no call through", &|sites| sites[0] ^= 1),
        (SITES_SECTION, "overlap", &repeats),
        (SITES_SECTION, "through 0x", &|sites| sites[8] ^= 8),
        (SITES_SECTION, "outside its memory", &|sites| sites[8..16].fill(0xff)),
        (SITES_SECTION, "where another", &swaps),
        (SITES_SECTION, "unknown operation 9", &|sites| sites[20] = 9),
        (CALLS_SECTION, "at 0x1000 in .haltkick.calls, outside its code", &|calls| begin(calls, 0x1000)),
        (CALLS_SECTION, "taken and not released", &|calls| calls[8..16].fill(0)),
    ];
    for (of, words, edit) in rows {
        refused(words, |file| {
            let range = file.range(file.named(of));
            edit(&mut file.0[range]);
        });
    }
    // A jump through the slot in the place of the call.
    refused("another instruction", |file| {
        let (site, text) = (file.range(file.named(SITES_SECTION)).start, file.named(".text"));
        let code = file.word(text + PLACE) + file.word(site) - file.word(text + ADDRESS);
        assert_eq!(file.0[code..code + 2], [0xff, 0x15], "call [rip + ...]");
        file.0[code + 1] = 0x25;
    });
}

#[test]
fn an_image_without_call_sites_has_nothing_to_patch() {
    // Sites are optional.
    let mut without = image();
    let header = without.named(SITES_SECTION);
    // Its name is empty then.
    without.put(header, 0, 4);
    let edits = |file: Edited| file.parsed().expect("an image").edits(1, false).expect("nothing to refuse");
    assert_eq!(edits(without), []);
    assert_ne!(edits(image()), []);
}

#[test]
fn names_in_files_are_no_commands_to_a_terminal() {
    // A name may be anything.
    let mut file = image();
    let first = file.range(file.named(LOCKS_SECTION)).start;
    file.0[first..first + 5].copy_from_slice(b"\x1b[2J\0");
    assert_eq!(file.parsed().expect("an image").locks[0].name, "\u{fffd}[2J");
    let mut file = image();
    file.put(file.find(b"hk_now\0"), 0x1b, 1);
    assert_refused(file.with_object(), "hk_now");
    let linked = |name: &[u8]| {
        let wanted = Wanted::bytes(Path::new(OsStr::from_bytes(name)), SMALL_OBJECT);
        image().parsed()?.with_linked(&[wanted]).map_err(|error| error.to_string())
    };
    for name in [
        &b"l\xe4ock.o"[..],
        b"two\nlines.o",
        b"\x1b[2J.o",
        "\u{202e}o.kcol".as_bytes(),
        "as-shown-\u{fffd}.o".as_bytes(),
    ] {
        assert_refused(linked(name), "no UTF-8, or has control characters: rename it");
    }
    let name = "l\u{e4}ock, the second.o";
    let image = linked(name.as_bytes()).expect("a name like any other");
    assert_eq!(image.locks.last().expect("it was linked").name, format!("{FILE_PREFIX}{name}"));
}

#[test]
fn a_broken_table_of_objects_and_too_many_segments_are_refused() {
    for place in [u64::MAX - 7, image().0.len() as u64] {
        let mut cut = image();
        cut.put(cut.named(OBJECTS_SECTION) + PLACE, place, 8);
        assert_refused(cut.with_object(), "is cut short");
    }
    // ELF: 0xffff segments means that the first section's header states their number.
    let mut many = image();
    many.put(many.numbered(0) + INFO, word(&many.0, SEGMENT_COUNT, 2), 4);
    many.put(SEGMENT_COUNT, 0xffff, 2);
    assert_refused(many.with_object(), "has too many segments");
}

/// An archive of `bytes` bytes: half of them are one name, which is that of all members.
fn archive_of_one_name(bytes: usize) -> Edited {
    let mut archive = b"!<arch>\n".to_vec();
    archive.extend(archive_header("//", bytes / 2));
    archive.extend(vec![b'x'; bytes / 2 - 2]);
    archive.extend(b"/\n");
    let each = archive_header("/0", 0);
    archive.extend(each.repeat((bytes / 2).div_ceil(each.len())));
    Edited(archive)
}

/// An object of `sections` sections that hold the same code, each of which the next one refers to.
fn object_of_one_code(sections: usize, code_bytes: usize) -> Edited {
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
    object.add_sections(&more);
    object
}

#[test]
fn an_object_that_names_the_same_bytes_again_and_again_is_refused() {
    let mut tables = object();
    let header = tables.header(RELOCATIONS);
    // Kind 0, which does nothing.
    tables.replace(header, &vec![0; 2000 * 24]);
    let copied = tables.0[header..][..SECTION_HEADER_BYTES].repeat(300);
    tables.add_sections(&copied);
    let mut names = object();
    names.add_symbols(2000, 10_000, 1, 0, 0);
    let mut functions = object();
    let text = functions.header(1);
    let mut code = functions.section(text);
    code.resize(1 << 16, 0x90);
    functions.replace(text, &code);
    functions.add_symbols(200, 5, 1, 1 << 15, 1000);
    for (file, words) in [
        (tables, "again and again"),
        (names, "again and again"),
        (functions, "has functions of more than 4096 KiB"),
    ] {
        assert_refused(file.linked(), words);
    }
    for mebibytes in [1, 4, 16] {
        assert_refused(archive_of_one_name(mebibytes << 20).linked(), "again and again");
        // Unread.
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
fn an_object_whose_relocations_overwrite_its_own_header_is_linked_or_refused() {
    Edited(SMALL_ARCHIVE.to_vec()).linked().expect("it is right, too");
    let linked = object().linked().expect("it is right");
    let unlock = linked.objects[0].functions[1].expect("it has one");
    // Its data lie where the header says where the sections' headers are, and the addend is such that the address of
    // hk_unlock becomes the last of all, or one far behind the file's end.
    for addend in [!unlock, (1_u64 << 40).wrapping_sub(unlock)] {
        let mut file = object();
        let (data, relocations) = (file.numbered(3) + PLACE, file.range(file.numbered(4)).start);
        file.put(data, SECTIONS_AT as u64, 8);
        file.put(relocations + 16, addend, 8);
        _ = file.linked();
    }
}
