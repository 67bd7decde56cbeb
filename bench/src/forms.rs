//! What an image says of its locks and workloads, as questions.

use haltkick_vmm::Entry;

/// Bits of `Entry::flags`, as the guest's descriptor defines them.
const HAS_NATIVE: u32 = 1 << 0;
const HAS_PARAVIRT: u32 = 1 << 1;
const IS_LOCK_FREE: u32 = 1 << 2;
const IS_SELFTEST: u32 = 1 << 3;

/// Questions to an [`Entry`].
pub(crate) trait Forms {
    fn flags(&self) -> u32;

    /// Works with `--pv off`.
    fn has_native(&self) -> bool {
        self.flags() & HAS_NATIVE != 0
    }
    /// Works with `--pv on`.
    fn has_paravirt(&self) -> bool {
        self.flags() & HAS_PARAVIRT != 0
    }
    /// Excludes nobody: the measure of the ideal.
    fn is_lock_free(&self) -> bool {
        self.flags() & IS_LOCK_FREE != 0
    }
    /// Fails on purpose.
    fn is_selftest(&self) -> bool {
        self.flags() & IS_SELFTEST != 0
    }
}

impl Forms for Entry {
    fn flags(&self) -> u32 {
        self.flags
    }
}
