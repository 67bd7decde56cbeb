//! The place in a lock object from which a vCPU has come to the code of the image that it executes.
//!
//! The image has no frame pointers. Its functions for objects need few words of the stack, a panic some more, and above these
//! lies the address to which they return.

use crate::guest::memory::Memory;
use crate::image::file::Image;

/// Words of a stack that are looked at.
const MOST_WORDS: u64 = 256;
/// The byte that begins a call of a function by its distance, and the length of such a call.
const CALL: (u8, u64) = (0xe8, 5);
/// The byte that begins a call through a register or memory, and the longest of such calls.
const CALL_THROUGH: (u8, u64) = (0xff, 7);

/// Returns the address in a lock object to which the code at `rip` returns; none where no object has called it.
pub(super) fn caller(image: &Image, memory: &Memory, rip: u64, rsp: u64) -> Option<u64> {
    let is_in_object = |address| image.objects.iter().any(|object| object.addresses.contains(&address));
    if is_in_object(rip) || image.objects.is_empty() {
        return None;
    }
    (0..MOST_WORDS).find_map(|word| {
        let bytes = memory.read(rsp.checked_add(word * 8)?, 8)?;
        let address = u64::from_le_bytes(bytes.try_into().ok()?);
        (is_in_object(address) && follows_call(memory, address)).then_some(address)
    })
}

/// Whether a call ends before this address.
fn follows_call(memory: &Memory, address: u64) -> bool {
    let bytes = |before: u64| memory.read(address.checked_sub(before)?, before);
    let is_through = |code: Vec<u8>| code[0] == CALL_THROUGH.0 && (code[1] >> 3) & 7 == 2;
    bytes(CALL.1).is_some_and(|code| code[0] == CALL.0)
        || (2..=CALL_THROUGH.1).any(|length| bytes(length).is_some_and(is_through))
}
