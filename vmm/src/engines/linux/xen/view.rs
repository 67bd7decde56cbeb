//! The one way to what a guest's addresses lead to. Each is translated as the guest's own accesses are, page by page, and must lead to its
//! memory; nothing else of the process is within reach.

use kvm_ioctls::VcpuFd;
use vm_memory::{Bytes as _, GuestAddress, GuestMemoryBackend as _, GuestMemoryMmap};

use super::errno::Errno;
use super::page::PAGE_BYTES;

/// Whose page tables they are.
pub(super) trait Translate {
    /// The physical address that a virtual one leads to.
    fn physical(&self, address: u64) -> Option<u64>;
}

impl Translate for VcpuFd {
    fn physical(&self, address: u64) -> Option<u64> {
        self.translate_gva(address).ok().filter(|found| found.valid != 0).map(|found| found.physical_address)
    }
}

/// A guest's memory, as one of its vCPUs sees it.
pub(super) struct View<'a> {
    pub(super) memory: &'a GuestMemoryMmap,
    pub(super) tables: &'a dyn Translate,
}

impl View<'_> {
    /// `N` bytes from `address` on, which may be anywhere.
    pub(super) fn read<const N: usize>(&self, address: u64) -> Result<[u8; N], Errno> {
        let mut bytes = [0; N];
        self.read_to(address, &mut bytes)?;
        Ok(bytes)
    }

    /// As many bytes as there is room for.
    pub(super) fn read_to(&self, address: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        let mut done = 0;
        while done < bytes.len() {
            let at = address.checked_add(done as u64).ok_or(Errno::Fault)?;
            let piece = &mut bytes[done..];
            let length = piece.len().min(PAGE_BYTES - (at % PAGE_BYTES as u64) as usize);
            let place = self.place(at)?;
            self.memory.read_slice(&mut piece[..length], place).map_err(|_| Errno::Fault)?;
            done += length;
        }
        Ok(())
    }

    /// Writes a word, which lies in one page.
    pub(super) fn write_word(&self, address: u64, value: u32) -> Result<(), Errno> {
        self.memory.write_obj(value, self.word(address)?).map_err(|_| Errno::Fault)
    }

    /// Where the word of four bytes at `address` is, for as long as the guest lives.
    pub(super) fn word(&self, address: u64) -> Result<GuestAddress, Errno> {
        if !address.is_multiple_of(4) {
            return Err(Errno::Invalid);
        }
        let place = self.place(address)?;
        self.memory.get_slice(place, 4).map_err(|_| Errno::Fault)?;
        Ok(place)
    }

    fn place(&self, address: u64) -> Result<GuestAddress, Errno> {
        self.tables.physical(address).map(GuestAddress).ok_or(Errno::Fault)
    }
}

/// Page tables for tests.
#[cfg(test)]
pub(super) mod testing {
    use super::*;

    /// Two pages of physical memory, which are at 0x1000 and 0x2000 in reverse order, and at 0x5000 a page that leads to nowhere.
    pub(in super::super) struct Reversed;

    impl Translate for Reversed {
        fn physical(&self, address: u64) -> Option<u64> {
            let page = match address >> 12 {
                1 => 1,
                2 => 0,
                5 => 1 << 40,
                _ => return None,
            };
            Some(page << 12 | address & 0xfff)
        }
    }

    /// What it leads to.
    pub(in super::super) fn memory() -> GuestMemoryMmap {
        GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 2 * PAGE_BYTES)]).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{Reversed, memory};
    use super::*;

    #[test]
    fn what_crosses_a_page_is_read_from_two_places() {
        let memory = memory();
        memory.write_slice(&[1, 2], GuestAddress(0x1ffe)).unwrap();
        memory.write_slice(&[3, 4], GuestAddress(0)).unwrap();
        let view = View { memory: &memory, tables: &Reversed };
        assert_eq!(view.read(0x1ffe), Ok([1, 2, 3, 4]));
    }

    #[test]
    fn what_leads_to_no_memory_is_a_fault() {
        let memory = memory();
        let view = View { memory: &memory, tables: &Reversed };
        for address in [0, 0x0fff, 0x2ffd, 0x3000, 0x5000, u64::MAX - 1, u64::MAX] {
            assert_eq!(view.read::<4>(address), Err(Errno::Fault), "{address:#x}");
        }
        for address in [0x3000, 0x5000, u64::MAX - 3] {
            assert_eq!(view.write_word(address, 1), Err(Errno::Fault), "{address:#x}");
        }
    }

    #[test]
    fn a_word_is_written_where_it_leads_and_only_in_one_page() {
        let memory = memory();
        let view = View { memory: &memory, tables: &Reversed };
        assert_eq!(view.write_word(0x2004, 7), Ok(()));
        assert_eq!(memory.read_obj::<u32>(GuestAddress(4)).unwrap(), 7);
        assert_eq!(view.write_word(0x1ffe, 7), Err(Errno::Invalid));
    }
}
