//! Files that call themselves images, or lock objects, or debug information that may say anything.

use std::borrow::Cow;
use std::path::Path;

use haltkick_fuzzing::{Script, Target, edited, no_seeds};

use super::file::parse;
use super::made::SMALL_OBJECT;
use super::made::guest::small_image;
use super::object::Wanted;
use crate::host::text::printable;

pub(crate) const TARGET: Target = Target { name: "image", most_bytes: 64, seeds: no_seeds, execute };

/// Bytes of the file's header that state the place of the table of sections.
const SECTIONS_AT: std::ops::Range<usize> = 40..48;
/// Bytes of the file's header and of its segments' headers.
const HEADERS_BYTES: usize = 64 + 3 * 56;

/// A small image with edits in the headers of file and segments, in those of sections, or anywhere.
fn execute(bytes: &[u8]) {
    ask(edits(small_image(), bytes));
}

fn edits(whole: &[u8], bytes: &[u8]) -> Vec<u8> {
    let sections = u64::from_le_bytes(whole[SECTIONS_AT].try_into().expect("eight bytes")) as usize;
    let mut script = Script::new(bytes);
    match script.byte() % 3 {
        0 => {
            let head = edited(&whole[..HEADERS_BYTES], script.rest(), 0);
            [&head, &whole[head.len()..]].concat()
        }
        1 => edited(whole, script.rest(), sections),
        _ => edited(whole, script.rest(), 0),
    }
}

/// A message that does nothing to a terminal.
pub(super) fn assert_printable(message: &str) {
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

/// Files with debug information that may say anything.
pub(crate) mod lines {
    use haltkick_fuzzing::{Script, Target, edited, no_seeds};

    use crate::image::made::{CODE, SHAPE_BYTES, nested, units_with_tables};
    use crate::image::symbols::{Inflated, Lines};

    use super::assert_printable;

    pub(crate) const TARGET: Target = Target { name: "lines", most_bytes: 128, seeds: no_seeds, execute };

    /// A small file with edits in its debug information: it has no lines, or any address has frames that can be printed.
    fn execute(bytes: &[u8]) {
        let mut script = Script::new(bytes);
        let file = match script.byte() % 4 {
            0 => units_with_tables(script.byte().into(), u64::from(script.byte()) % (2 * SHAPE_BYTES)),
            _ => nested(usize::from(script.byte() % 8)),
        };
        // Behind the header of the file, which has no segments.
        ask(&edited(&file, script.rest(), 64));
    }

    fn ask(file: &[u8]) {
        let inflated = Inflated::of(file);
        let Some(lines) = Lines::of(file, &inflated) else { return };
        for address in [CODE, CODE + 8, 0, u64::MAX] {
            for frame in lines.frames(address) {
                assert_printable(&frame.to_string());
                assert_printable(frame.function.as_deref().unwrap_or_default());
            }
        }
    }
}

/// Files that call themselves lock objects.
pub(crate) mod object {
    use std::borrow::Cow;
    use std::path::Path;
    use std::sync::OnceLock;

    use haltkick_fuzzing::{Script, Target, edited, no_seeds};
    use haltkick_hypercalls::MAX_VCPUS;

    use crate::host::error::RunError;
    use crate::image::file::{Image, parse};
    use crate::image::made::guest::small_image;
    use crate::image::made::{SMALL_ARCHIVE, SMALL_OBJECT};
    use crate::image::object::{LinkedObject, MOST_BYTES, Wanted};

    use super::assert_printable;

    pub(crate) const TARGET: Target = Target { name: "object", most_bytes: 128, seeds: no_seeds, execute };

    /// A vCPU has at most a page in an object's memory.
    const MOST_CPU_BYTES: u64 = MAX_VCPUS as u64 * 4096;

    fn image() -> Image {
        static IMAGE: OnceLock<Image> = OnceLock::new();
        let parsed = || parse(Path::new("small"), Cow::Borrowed(small_image())).expect("it is right");
        IMAGE.get_or_init(parsed).clone()
    }

    /// An object with edits from its section headers on or anywhere, an archive of two with edits, or a whole file: refused in one
    /// line without control characters, or linked within its bounds.
    fn execute(bytes: &[u8]) {
        let mut script = Script::new(bytes);
        let kind = script.byte() % 4;
        let object = SMALL_OBJECT;
        let headers = u64::from_le_bytes(object[40..48].try_into().expect("eight bytes")) as usize;
        let file = match kind {
            0 => edited(object, script.rest(), headers),
            1 => edited(object, script.rest(), 0),
            2 => edited(&SMALL_ARCHIVE, script.rest(), 0),
            _ => script.rest().to_vec(),
        };
        let image = image();
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
            assert!(
                part.address >= start && part.bytes.len() as u64 <= part.memory_bytes,
                "{:#x}",
                part.address
            );
            assert!(part.memory_bytes <= end - part.address, "{:#x} is longer than all", part.address);
        }
        let inits = object.init.iter().chain(object.try_lock.iter().flatten());
        for function in object.functions.iter().flatten().flatten().chain(inits) {
            assert!(image.bytes_at(*function, 1).is_some(), "{function:#x} is no code");
        }
        let lock = image.locks.len() - 1;
        for pv in [false, true] {
            _ = image.edits(lock, pv);
        }
        _ = image.symbols().describe(start);
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn the_small_object_and_its_archive_are_linked() {
            for file in [SMALL_OBJECT, &SMALL_ARCHIVE[..]] {
                let base = image().end;
                let linked =
                    image().with_linked(&[Wanted::bytes(Path::new("small.o"), file)]).expect("it is right");
                check(&linked, base);
                assert_eq!(linked.objects[0].parts.len(), 4, "code, constants, data, zeros");
                assert_eq!(linked.events.last().map(String::as_str), Some("mine"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::file::Image;

    #[test]
    fn edits_of_the_embedded_image_are_refused_or_can_be_asked_anything() {
        let execute = |bytes: &[u8]| ask(edits(Image::embedded_elf(), bytes));
        Target { name: "embedded-image", execute, ..TARGET }.run();
    }

    #[test]
    fn the_small_image_has_all_that_can_be_asked_for() {
        let image = parse(Path::new("small"), Cow::Borrowed(small_image())).expect("it is right");
        assert_eq!((image.locks.len(), image.workloads.len(), image.sites.len()), (3, 2, 8));
        let forms = |lock| [false, true].map(|pv| image.edits(lock, pv).expect("it can be patched").len());
        assert_eq!([forms(0), forms(1), forms(2)], [[4, 4], [8, 0], [0, 4]]);
        assert!(image.symbols().iter().count() > 2);
    }
}
