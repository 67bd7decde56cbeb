//! The store buffer of a CPU: stores that have been executed and whose lines have not come yet. They become visible in order,
//! and the CPU itself sees them at once.

use std::collections::VecDeque;

use crate::lines::LINE_BYTES;

/// A store that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Store {
    pub(super) physical: u64,
    pub(super) bytes: usize,
    pub(super) value: u64,
    /// When it was executed.
    pub(super) at_ps: u64,
}

impl Store {
    /// The line of its first byte.
    pub(super) fn line(&self) -> u64 {
        self.physical / LINE_BYTES
    }
}

/// Stores in the order in which they were executed.
#[derive(Clone, Debug, Default)]
pub(super) struct Buffer(VecDeque<Store>);

impl Buffer {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn push(&mut self, store: Store) {
        self.0.push_back(store);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Store> {
        self.0.iter()
    }

    pub(super) fn first(&self) -> Option<&Store> {
        self.0.front()
    }

    pub(super) fn pop(&mut self) -> Option<Store> {
        self.0.pop_front()
    }

    /// Value that a load sees, if memory has `value`.
    pub(super) fn over(&self, physical: u64, bytes: usize, value: u64) -> u64 {
        let mut seen = value.to_le_bytes();
        for store in &self.0 {
            for (offset, byte) in store.value.to_le_bytes().into_iter().enumerate().take(store.bytes) {
                let at = (store.physical + offset as u64).wrapping_sub(physical);
                if at < bytes as u64 {
                    seen[at as usize] = byte;
                }
            }
        }
        u64::from_le_bytes(seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_sees_the_youngest_store_to_each_of_its_bytes() {
        let mut buffer = Buffer::default();
        assert_eq!(buffer.over(0x100, 4, 0x1111_1111), 0x1111_1111);
        buffer.push(Store { physical: 0x102, bytes: 4, value: 0x2222_2222, at_ps: 0 });
        buffer.push(Store { physical: 0x103, bytes: 1, value: 0x33, at_ps: 0 });
        assert_eq!(buffer.over(0x100, 4, 0x1111_1111), 0x3322_1111);
        assert_eq!(buffer.over(0x104, 2, 0), 0x2222);
        assert_eq!(buffer.over(0x106, 8, 5), 5);
    }
}
