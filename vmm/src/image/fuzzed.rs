//! Files that call themselves images.

use std::borrow::Cow;
use std::path::Path;

use haltkick_fuzzing::{Script, Target, edited, no_seeds};

use super::file::parse;
use super::made::guest::small_image;
use super::made::lock::small_object;
use super::object;
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
    let wanted = object::Wanted::bytes(Path::new("fuzzed.o"), small_object());
    if let Err(error) = image.with_linked(&[wanted]) {
        assert_printable(&error.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::file::Image;

    #[test]
    fn fuzz_image_any_file_is_refused_or_can_be_asked_anything() {
        TARGET.run();
    }

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
