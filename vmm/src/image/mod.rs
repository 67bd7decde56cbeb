//! Guest image file: its entry points and tables, its parts, its call sites and how they are rewritten, and the code at
//! an address.

mod attach;
pub(crate) mod author;
pub(crate) mod disassemble;
pub(crate) mod file;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzed;
#[cfg(any(test, fuzzing))]
pub(crate) mod made;
pub(crate) mod object;
pub(crate) mod patch;
#[cfg(test)]
mod refused;
pub(crate) mod sites;
pub(crate) mod symbols;

/// Address at which images are linked to begin.
pub(crate) const IMAGE_BASE: u64 = 0x40_0000;

/// A part of the image that goes to guest memory.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) address: u64,
    pub(crate) executable: bool,
    pub(crate) bytes: Vec<u8>,
}

impl Segment {
    pub(crate) fn bytes_at(&self, address: u64, len: u64) -> Option<&[u8]> {
        let start = usize::try_from(address.checked_sub(self.address)?).ok()?;
        self.bytes.get(start..start.checked_add(usize::try_from(len).ok()?)?)
    }
}
