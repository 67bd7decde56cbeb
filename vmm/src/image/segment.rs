//! The parts of an image that go to guest memory.

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
    /// Whether its access rights can be its own.
    pub(crate) fn begins_a_page(&self) -> bool {
        self.address.is_multiple_of(4096)
    }

    pub(crate) fn bytes_at(&self, address: u64, len: u64) -> Option<&[u8]> {
        let start = usize::try_from(address.checked_sub(self.address)?).ok()?;
        self.bytes.get(start..start.checked_add(usize::try_from(len).ok()?)?)
    }
}
