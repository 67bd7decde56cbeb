//! Files that call themselves lock objects.

use std::borrow::Cow;
use std::path::Path;
use std::sync::OnceLock;

use haltkick_fuzzing::{Script, Target, edited, no_seeds};
use haltkick_hypercalls::MAX_VCPUS;

use super::file::{Image, parse};
use super::fuzzed::assert_printable;
use super::made::guest::small_image;
use super::made::lock::{small_archive, small_object};
use super::object::{LinkedObject, MOST_BYTES, Wanted};
use crate::host::error::RunError;

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
    let object = small_object();
    let headers = u64::from_le_bytes(object[40..48].try_into().expect("eight bytes")) as usize;
    let file = match kind {
        0 => edited(object, script.rest(), headers),
        1 => edited(object, script.rest(), 0),
        2 => edited(small_archive(), script.rest(), 0),
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
        assert!(part.address >= start && part.bytes.len() as u64 <= part.memory_bytes, "{:#x}", part.address);
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
    fn fuzz_object_any_file_is_refused_or_linked_within_its_bounds() {
        TARGET.run();
    }

    #[test]
    fn the_small_object_and_its_archive_are_linked() {
        for file in [small_object(), small_archive()] {
            let base = image().end;
            let linked =
                image().with_linked(&[Wanted::bytes(Path::new("small.o"), file)]).expect("it is right");
            check(&linked, base);
            assert_eq!(linked.objects[0].parts.len(), 4, "code, constants, data, zeros");
            assert_eq!(linked.events.last().map(String::as_str), Some("mine"));
        }
    }
}
