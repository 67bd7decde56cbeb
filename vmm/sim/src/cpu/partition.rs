//! Which part of the machine's memory a guest has.
//!
//! Each of several guests has physical addresses of its own, which begin at 0. Where they lie in the machine, the host's tables say:
//! here a start and a length. Translations that a CPU has cached lead to the machine's memory at once, so that only a walk of the
//! page tables needs to know the guest of an address.

/// An address at which no machine has memory.
const NOWHERE: u64 = 1 << 52;

/// A part of the machine's memory, in whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its first byte: what is address 0 to the guest.
    pub start: u64,
    /// Its length.
    pub bytes: u64,
}

impl Partition {
    /// All that there is.
    pub const WHOLE: Self = Self { start: 0, bytes: NOWHERE };

    /// The machine's address for an address of the guest: outside of all memory, if the guest has none there.
    #[inline(always)]
    pub(crate) fn place(self, physical: u64) -> u64 {
        if physical < self.bytes { self.start + physical } else { NOWHERE | physical }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_behind_a_guest_s_memory_is_in_nobody_s() {
        let second = Partition { start: 0x20_0000, bytes: 0x1000 };
        assert_eq!(second.place(0), 0x20_0000);
        assert_eq!(second.place(0xfff), 0x20_0fff);
        for outside in [0x1000, 0x20_0000, NOWHERE - 0x1000] {
            assert!(second.place(outside) >= NOWHERE, "{outside:#x}");
        }
        assert_eq!(Partition::WHOLE.place(0x1234_5000), 0x1234_5000);
    }
}
