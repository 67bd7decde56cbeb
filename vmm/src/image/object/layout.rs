//! Layout of an object's sections: code, constants, data and zeros, each from a page on, and memory per vCPU behind them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use haltkick_hypercalls::MAX_VCPUS;
use object::elf;

use crate::image::object::member::{Member, Section};
use crate::image::object::resolve::{Resolved, SectionId, Target};

/// Most bytes of an object in the guest, but for the memory per vCPU and that for its locks.
pub(in crate::image) const MOST_BYTES: u64 = 4 << 20;
const PAGE: u64 = 4096;
/// Code begins cache lines, as that of the image does.
const CODE_ALIGN: u64 = 64;
/// From one vCPU's memory to the next: whole pairs of lines.
const CPU_ALIGN: u64 = 128;

pub(super) struct Layout {
    /// Code, constants (from the table of addresses on), data and zeros.
    pub(super) code: Range<u64>,
    pub(super) constants: Range<u64>,
    pub(super) data: Range<u64>,
    pub(super) zeros: Range<u64>,
    /// Memory for locks, which `hk_init` hands out.
    pub(super) heap: Range<u64>,
    /// End of all parts, memory per vCPU and for locks included.
    pub(super) end: u64,
    sections: BTreeMap<SectionId, u64>,
    common: BTreeMap<String, u64>,
    cpu_area: u64,
    /// Addresses of words that hold what a name stands for, for code that reads it from there.
    table: BTreeMap<Target, u64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Code,
    Constants,
    Data,
    Zeros,
}

fn part(section: &Section) -> Part {
    if section.is_executable() {
        Part::Code
    } else if section.is_zero() {
        Part::Zeros
    } else if section.has(elf::SHF_WRITE) {
        Part::Data
    } else {
        Part::Constants
    }
}

/// Puts one thing behind the other.
struct Cursor(u64);

impl Cursor {
    /// The address of `size` bytes, aligned to a power of two.
    fn take(&mut self, size: u64, align: u64) -> u64 {
        let address = self.0.next_multiple_of(align);
        // Sizes are a file's: sums stay below what overflows, and what is too large is refused at the end.
        self.0 = address.saturating_add(size.min(MOST_BYTES + 1)).min(u64::MAX / 2);
        address
    }
}

impl Layout {
    /// Lays out what was reached, from `base` on; `table` are the names whose values code reads from memory.
    pub(super) fn new(
        members: &[Member],
        resolved: &Resolved,
        table: BTreeSet<Target>,
        cpu_bytes: u32,
        heap_bytes: u64,
        base: u64,
    ) -> Result<Self, String> {
        let mut cursor = Cursor(base.next_multiple_of(PAGE));
        let mut sections = BTreeMap::new();
        let mut place = |cursor: &mut Cursor, wanted: Part| {
            let start = cursor.take(0, PAGE);
            for &id in &resolved.reached {
                let section = &members[id.member].sections[id.section];
                if part(section) == wanted {
                    let align =
                        if wanted == Part::Code { section.align.max(CODE_ALIGN) } else { section.align };
                    sections.insert(id, cursor.take(section.size, align));
                }
            }
            start
        };
        let start = cursor.0;
        let code = place(&mut cursor, Part::Code)..cursor.0;
        let first = cursor.take(0, PAGE);
        let table = table.into_iter().map(|target| (target, cursor.take(8, 8))).collect();
        place(&mut cursor, Part::Constants);
        let constants = first..cursor.0;
        let data = place(&mut cursor, Part::Data)..cursor.0;
        let zeros_start = place(&mut cursor, Part::Zeros);
        let common = resolved.common.iter();
        let common = common.map(|(name, &(size, align))| (name.clone(), cursor.take(size, align))).collect();
        let zeros = zeros_start..cursor.0;
        if cursor.0 - start > MOST_BYTES {
            return Err(format!("takes more than {} KiB of the guest's memory", MOST_BYTES >> 10));
        }
        let cpu_area = cursor.take(0, PAGE);
        let end = cpu_area + u64::from(cpu_bytes).next_multiple_of(CPU_ALIGN) * MAX_VCPUS as u64;
        let heap = end.next_multiple_of(PAGE);
        let heap = heap..heap + heap_bytes;
        let end = if heap.is_empty() { end } else { heap.end };
        Ok(Self { code, constants, data, zeros, heap, end, sections, common, cpu_area, table })
    }

    pub(super) fn section(&self, member: usize, section: usize) -> Option<u64> {
        self.sections.get(&SectionId { member, section }).copied()
    }

    /// All sections that have a place, and their addresses.
    pub(super) fn sections(&self) -> impl Iterator<Item = (SectionId, u64)> + '_ {
        self.sections.iter().map(|(&id, &address)| (id, address))
    }

    pub(super) fn value(&self, target: &Target) -> u64 {
        match target {
            &Target::Place { member, section, offset } => {
                self.sections[&SectionId { member, section }] + offset
            }
            Target::Common(name) => self.common[name],
            Target::CpuArea => self.cpu_area,
            Target::Number(number) => *number,
        }
    }

    /// The words of the table: address and value.
    pub(super) fn table(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.table.iter().map(|(target, &address)| (address, self.value(target)))
    }

    /// Returns the address of the word that holds a name's value.
    pub(super) fn word(&self, target: &Target) -> u64 {
        self.table[target]
    }
}
