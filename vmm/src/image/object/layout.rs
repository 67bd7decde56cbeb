//! Layout of an object's sections: code, constants, data and zeros, each from a page on, and memory per vCPU behind them.

use std::collections::BTreeMap;
use std::ops::Range;

use haltkick_hypercalls::MAX_VCPUS;
use object::elf::{self, PF_R, PF_W, PF_X, ProgramFlags};

use crate::image::object::member::{Member, Section, SectionId};
use crate::image::object::resolve::{Resolved, Target};

/// Most bytes of an object in the guest, but for the memory per vCPU and that for its locks.
pub(in crate::image) const MOST_BYTES: u64 = 4 << 20;
const PAGE: u64 = 4096;
/// Code begins cache lines, as that of the image does.
const CODE_ALIGN: u64 = 64;
/// From one vCPU's memory to the next: whole pairs of lines.
const CPU_ALIGN: u64 = 128;

pub(super) struct Layout {
    /// Code, constants (from the table of addresses on), data, and zeros with the memory per vCPU and for locks.
    pub(super) parts: [Range<u64>; 4],
    /// Memory for locks, which `hk_init` hands out.
    pub(super) heap: Range<u64>,
    /// Addresses of all sections that have a place.
    pub(super) sections: BTreeMap<SectionId, u64>,
    common: BTreeMap<(usize, usize), u64>,
    cpu_area: u64,
    /// Addresses of words that hold what a name stands for, for code that reads it from there.
    pub(super) table: BTreeMap<Target, u64>,
}

const CODE: usize = 0;
const CONSTANTS: usize = 1;
const DATA: usize = 2;
const ZEROS: usize = 3;
const WRITABLE: ProgramFlags = ProgramFlags(PF_R.0 | PF_W.0);
/// Rights of the parts.
pub(super) const RIGHTS: [ProgramFlags; 4] = [ProgramFlags(PF_R.0 | PF_X.0), PF_R, WRITABLE, WRITABLE];

/// The part that a section belongs to.
fn part(section: &Section) -> usize {
    if section.is_executable() {
        CODE
    } else if section.is_zero() {
        ZEROS
    } else if section.has(elf::SHF_WRITE) {
        DATA
    } else {
        CONSTANTS
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
    /// Lays out what was reached, from `base` on.
    pub(super) fn new(
        members: &[Member],
        resolved: &Resolved,
        cpu_bytes: u32,
        heap_bytes: u64,
        base: u64,
    ) -> Result<Self, String> {
        let mut cursor = Cursor(base.next_multiple_of(PAGE));
        let mut sections = BTreeMap::new();
        let start = cursor.0;
        let mut words = BTreeMap::new();
        let mut parts = [CODE, CONSTANTS, DATA, ZEROS].map(|wanted| {
            let start = cursor.take(0, PAGE);
            if wanted == CONSTANTS {
                words.extend(resolved.table.iter().map(|target| (*target, cursor.take(8, 8))));
            }
            for &id in &resolved.reached {
                let section = &members[id.member].sections[id.section];
                if part(section) == wanted {
                    let align = if wanted == CODE { section.align.max(CODE_ALIGN) } else { section.align };
                    sections.insert(id, cursor.take(section.size, align));
                }
            }
            start..cursor.0
        });
        let common = resolved.common.iter();
        let common = common.map(|(symbol, &(size, align))| (*symbol, cursor.take(size, align))).collect();
        if cursor.0 - start > MOST_BYTES {
            return Err(format!("takes more than {} KiB of the guest's memory", MOST_BYTES >> 10));
        }
        let cpu_area = cursor.take(0, PAGE);
        let end = cpu_area + u64::from(cpu_bytes).next_multiple_of(CPU_ALIGN) * MAX_VCPUS as u64;
        let heap = end.next_multiple_of(PAGE);
        let heap = heap..heap + heap_bytes;
        parts[ZEROS].end = if heap.is_empty() { end } else { heap.end };
        Ok(Self { parts, heap, sections, common, cpu_area, table: words })
    }

    pub(super) fn value(&self, target: Target) -> u64 {
        match target {
            Target::Place(section, offset) => self.sections[&section] + offset,
            Target::Common(member, symbol) => self.common[&(member, symbol)],
            Target::CpuArea => self.cpu_area,
            Target::Number(number) => number,
        }
    }
}
