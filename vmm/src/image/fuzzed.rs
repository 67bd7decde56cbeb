//! Files that call themselves images.

use std::borrow::Cow;
use std::path::Path;

use haltkick_fuzzing::{Script, Target, edited, no_seeds};

use super::file::{Image, parse};

pub(crate) const TARGET: Target = Target { name: "image", most_bytes: 64, seeds: no_seeds, execute };

/// Where the table of sections begins, by the header of the file.
const SECTIONS_AT: std::ops::Range<usize> = 40..48;
/// Of the header of the file, and of those of its segments.
const HEADERS_BYTES: usize = 64 + 4 * 56;

/// The embedded image with edits in the headers of file and segments, in those of sections, or anywhere: refused in one line
/// without control characters, or all questions are answered.
fn execute(bytes: &[u8]) {
    let whole = Image::embedded_elf();
    let sections = u64::from_le_bytes(whole[SECTIONS_AT].try_into().expect("eight bytes")) as usize;
    let mut script = Script::new(bytes);
    match script.byte() % 3 {
        0 => {
            let head = edited(&whole[..HEADERS_BYTES], script.rest(), 0);
            ask([&head, &whole[head.len()..]].concat());
        }
        1 => ask(edited(whole, script.rest(), sections)),
        _ => ask(edited(whole, script.rest(), 0)),
    }
}

fn ask(bytes: Vec<u8>) {
    let image = match parse(Path::new("fuzzed"), Cow::Owned(bytes)) {
        Err(error) => return assert!(!error.to_string().chars().any(char::is_control), "{error}"),
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
}

#[cfg(test)]
mod tests {
    #[test]
    fn fuzz_image_any_file_is_refused_or_can_be_asked_anything() {
        super::TARGET.run();
    }
}
