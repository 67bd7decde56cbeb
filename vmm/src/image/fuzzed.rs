//! Files that call themselves images, or lock objects, or debug information that may say anything.

use std::borrow::Cow;
use std::path::Path;
use std::sync::LazyLock;

use haltkick_fuzzing::{Script, Target, edited};
use haltkick_hypercalls::{IMPORTS_SECTION, LOCKS_SECTION, MAX_VCPUS};
use object::{Object as _, ObjectSection as _};

use super::file::{Image, parse};
use super::made::{CODE, ELF, SHAPE_BYTES, SMALL_ARCHIVE, SMALL_OBJECT, nested, units_with_tables};
use super::object::{LinkedObject, MOST_BYTES, Wanted};
use super::symbols::Lines;
use crate::host::error::RunError;
use crate::host::text::printable;

const fn target(name: &'static str, most_bytes: u64, execute: fn(&[u8])) -> Target {
    Target { name, most_bytes, seeds: Vec::new, execute }
}

/// The embedded image with edits in the headers of file and segments, in its tables, in the headers of sections, or anywhere.
pub(crate) const IMAGE: Target = target("image", 64, |bytes| ask(edits(bytes)));
pub(crate) const LINES: Target = target("lines", 128, lines);
pub(crate) const OBJECT: Target = target("object", 128, object);

/// Bytes of the file's header and of its segments' headers.
const HEADERS_BYTES: usize = 64 + 4 * 56;
/// A vCPU has at most a page in an object's memory.
const MOST_CPU_BYTES: u64 = MAX_VCPUS as u64 * 4096;

/// The place of the table of sections, as an ELF file's header states it.
fn sections_at(file: &[u8]) -> usize {
    u64::from_le_bytes(file[40..48].try_into().expect("eight bytes")) as usize
}

fn edits(bytes: &[u8]) -> Vec<u8> {
    /// From the first table that an image has for the VMM to the last one.
    static TABLES: LazyLock<[usize; 2]> = LazyLock::new(|| {
        let file = object::File::parse(Image::embedded_elf()).expect("it is an ELF file");
        let place = |name: &str| Some(file.section_by_name(name)?.file_range()?.0 as usize);
        [LOCKS_SECTION, IMPORTS_SECTION].map(|name| place(name).expect("the image has all tables"))
    });
    let (whole, mut script) = (Image::embedded_elf(), Script::new(bytes));
    let [from, end] = match script.byte() % 4 {
        0 => [0, HEADERS_BYTES],
        1 => *TABLES,
        2 => [sections_at(whole), whole.len()],
        _ => [0, whole.len()],
    };
    [&edited(&whole[..end], script.rest(), from), &whole[end..]].concat()
}

/// A message that does nothing to a terminal.
fn assert_printable(message: &str) {
    assert_eq!(message, printable(message));
}

/// Refused in one line without control characters, or all questions are answered, and a lock object can be linked behind it or
/// is refused like that.
fn ask(bytes: Vec<u8>) {
    let image = match parse(Path::new("fuzzed"), Cow::Owned(bytes)) {
        Err(error) => return assert_printable(&error.to_string()),
        Ok(image) => image,
    };
    for address in [image.entry, image.vector_stubs, 0, u64::MAX] {
        _ = image.symbols().describe(address);
        _ = image.bytes_at(address, 16);
    }
    for lock in 0..image.locks.len().min(3) {
        _ = image.edits(lock, false);
        _ = image.edits(lock, true);
    }
    let wanted = Wanted::bytes(Path::new("fuzzed.o"), SMALL_OBJECT);
    if let Err(error) = image.with_linked(&[wanted]) {
        assert_printable(&error.to_string());
    }
}

/// Debug information with edits in one of its sections: it has no lines, or any address has frames that can be printed.
fn lines(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let mut debug = match script.byte() % 4 {
        0 => units_with_tables(script.byte().into(), u64::from(script.byte()) % (2 * SHAPE_BYTES)),
        _ => nested(usize::from(script.byte() % 8)),
    };
    let (_, section) = &mut debug.0[usize::from(script.byte() % 3)];
    *section = edited(section, script.rest(), 0);
    let Some(lines) = Lines::of(&ELF, &debug) else { return };
    for address in [CODE, CODE + 8, 0, u64::MAX] {
        for frame in lines.frames(address) {
            assert_printable(&frame.to_string());
            assert_printable(frame.function.as_deref().unwrap_or_default());
        }
    }
}

/// An object with edits from its section headers on or anywhere, an archive of two with edits, or a whole file: refused in one
/// line without control characters, or linked within its bounds.
fn object(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let kind = script.byte() % 4;
    let object = SMALL_OBJECT;
    let file = match kind {
        0 => edited(object, script.rest(), sections_at(object)),
        1 => edited(object, script.rest(), 0),
        2 => edited(&SMALL_ARCHIVE, script.rest(), 0),
        _ => script.rest().to_vec(),
    };
    let image = Image::embedded();
    let base = image.end;
    match image.with_linked(&[Wanted::bytes(Path::new("fuzzed.o"), file)]) {
        Err(error) => {
            assert_printable(&error.to_string());
            assert!(matches!(error, RunError::LockObject { .. }), "the image is right: {error}");
        }
        Ok(image) => check(&image, base),
    }
}

fn check(image: &Image, base: u64) {
    let object: &LinkedObject = image.objects.first().expect("it was linked");
    let (start, end) = (object.addresses.start, object.addresses.end);
    assert!(start >= base && end - start <= MOST_BYTES + MOST_CPU_BYTES + 4096, "{start:#x}..{end:#x}");
    for part in &object.parts {
        assert!(part.address >= start && part.bytes.len() as u64 <= part.memory_bytes, "{:#x}", part.address);
        assert!(part.memory_bytes <= end - part.address, "{:#x} is longer than all", part.address);
    }
    for function in object.functions.iter().flatten() {
        assert!(image.bytes_at(*function, 1).is_some(), "{function:#x} is no code");
    }
    let lock = image.locks.len() - 1;
    for pv in [false, true] {
        _ = image.edits(lock, pv);
    }
    _ = image.symbols().describe(start);
}
