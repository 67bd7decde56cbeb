//! Lock objects: other people's locks as relocatable ELF files, linked behind an image before any vCPU runs.
//!
//! `include/haltkick.h` is the contract, docs/lock-objects.md says what is linked and how. What comes out is an image like any
//! other, an ELF file with a few segments more, so that every engine runs it. Nothing in an object is believed unchecked, and
//! what cannot be linked is refused in one line: an error here is the end of a sentence that begins with the object's name.
//!
//! To link one object is to find the addresses of its names (`resolve`), the places of its sections (`layout`) and the bytes of its
//! relocations, which is done here.

mod compile;
mod contract;
mod instructions;
mod layout;
mod member;
mod resolve;
mod source;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

use contract::HEAP_BYTES;
use layout::{Layout, RIGHTS};
use member::{Kind, Member, Relocation, SYMBOL_BYTES, SectionId, SymbolPlace, members_of, name_of};
use resolve::{Resolved, Target};

pub use contract::FILE_PREFIX;
pub(crate) use contract::MOST_POINTS;
#[cfg(any(test, fuzzing))]
pub(super) use layout::MOST_BYTES;
pub(crate) use resolve::Offer;
pub use source::{ARMS, Arm, HEADER};

/// An object that has its place.
#[derive(Clone, Debug)]
pub(crate) struct LinkedObject {
    pub(crate) name: String,
    pub(crate) addresses: Range<u64>,
    /// Its files, as if they were linked: they are asked for symbols and lines.
    pub(crate) files: Vec<Vec<u8>>,
    /// Native form, paravirtual form, each: lock, unlock, read, read-unlock; what tries either; what makes a lock.
    pub(crate) functions: [Option<u64>; 11],
    pub(crate) lock_bytes: u32,
    pub(crate) cpu_bytes: u32,
    pub(crate) may_be_interrupted: bool,
    pub(crate) has_points: bool,
    pub(crate) heap: Range<u64>,
    pub(crate) parts: Vec<Part>,
}

/// A piece of memory of its own rights.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) address: u64,
    pub(crate) bytes: Vec<u8>,
    /// With the zeros behind its bytes.
    pub(crate) memory_bytes: u64,
    pub(crate) rights: object::elf::ProgramFlags,
}

#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    /// Its file, for messages.
    pub(crate) path: PathBuf,
    pub(crate) name: String,
    pub(crate) summary: String,
    /// Bytes of the object; `None`: they are in the file, or a compiler makes them of it.
    pub(crate) bytes: Option<Cow<'static, [u8]>>,
}

impl Wanted {
    pub(crate) fn file(path: &Path) -> Self {
        let name = format!("{FILE_PREFIX}{}", path.display());
        Self { path: path.to_owned(), name, summary: "a lock object".into(), bytes: None }
    }

    pub(crate) fn arm(arm: &Arm) -> Self {
        Self {
            path: arm.name.into(),
            name: arm.name.into(),
            summary: format!("{} (object)", arm.summary),
            bytes: Some(arm.object.into()),
        }
    }

    /// The lock in `bytes`, which stand for the file `path`.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn bytes(path: &Path, bytes: impl Into<Cow<'static, [u8]>>) -> Self {
        Self { bytes: Some(bytes.into()), ..Self::file(path) }
    }

    pub(crate) fn link(&self, base: u64, offer: &mut Offer<'_>) -> Result<LinkedObject, String> {
        let bytes = match &self.bytes {
            Some(bytes) => bytes.to_vec(),
            None => source::read(&self.path)?,
        };
        let mut members = members_of(bytes)?;
        resolve::join_zeros(&mut members);
        let definitions = resolve::definitions(&members);
        let exports = contract::exports(&members, |name| definitions.get(name).copied())?;
        let roots = exports.functions.iter().flatten().map(|(section, _)| *section).collect();
        let resolved = resolve::resolve(&members, &definitions, roots, offer)?;
        resolve::check_constructors(&members, &resolved.reached)?;
        // Before anybody looks at the code: sections may share their bytes, so that there is more of it than the file has.
        let heap_bytes = if offer.takes_memory { HEAP_BYTES } else { 0 };
        let layout = Layout::new(&members, &resolved, exports.cpu_bytes, heap_bytes, base)?;
        instructions::check(&members, &resolved.reached)?;
        if exports.cpu_bytes == 0 && resolved.targets.values().any(|target| *target == Target::CpuArea) {
            return Err(
                "uses memory per vCPU and does not say how much: write HK_PERCPU(struct my_node) once".into(),
            );
        }
        let functions = exports.functions;
        let functions = functions.map(|it| it.map(|(section, offset)| layout.sections[&section] + offset));
        relocate(&mut members, &resolved, &layout)?;
        let parts = parts(&members, &layout);
        let reached: BTreeSet<usize> = resolved.reached.iter().map(|id| id.member).collect();
        let files = members.into_iter().enumerate().filter(|(number, _)| reached.contains(number));
        let settled = |(number, mut member): (usize, Member)| {
            member.settle(number, &layout);
            member.bytes
        };
        Ok(LinkedObject {
            name: name_of(&self.path),
            addresses: layout.parts[0].start..layout.parts[3].end,
            files: files.map(settled).collect(),
            functions,
            lock_bytes: exports.lock_bytes,
            cpu_bytes: exports.cpu_bytes,
            may_be_interrupted: exports.may_be_interrupted,
            has_points: offer.has_points,
            heap: layout.heap.clone(),
            parts,
        })
    }
}

/// A place in a section, a length in bytes, and the value to write there.
type Edit = (u64, usize, u64);

/// Writes the addresses into all sections that have a place, and into what debuggers read.
fn relocate(members: &mut [Member], resolved: &Resolved, layout: &Layout) -> Result<(), String> {
    for (&SectionId { member: number, section }, &address) in &layout.sections {
        let member = &members[number];
        let mut edits = Vec::new();
        for relocation in &member.sections[section].relocations {
            let kind = Kind::of(relocation.kind)?;
            let target = resolved.targets[&(number, relocation.symbol)];
            let symbol = if kind.is_through_table { layout.table[&target] } else { layout.value(target) };
            let place = address.wrapping_add(relocation.at);
            let value = kind.value(place, symbol, relocation.addend).ok_or_else(|| {
                format!(
                    "refers at {} to what is too far for its instruction: compile with -mcmodel=small",
                    member.describe(section, relocation.at)
                )
            })?;
            edits.push((relocation.at, kind.bytes, value));
        }
        members[number].write(section, &edits)?;
    }
    for (number, member) in members.iter_mut().enumerate() {
        let debug: Vec<usize> =
            (0..member.sections.len()).filter(|&section| member.sections[section].is_debug()).collect();
        for section in debug {
            let edits = member.debug_edits((number, section), layout);
            member.write(section, &edits)?;
        }
    }
    Ok(())
}

impl Member {
    /// The addresses in a section that debuggers read. What was left out of the guest is at 0, as linkers have it.
    fn debug_edits(&self, (number, section): (usize, usize), layout: &Layout) -> Vec<Edit> {
        let edit = |relocation: &Relocation| {
            let kind = Kind::of(relocation.kind).ok().filter(|kind| !kind.is_through_table)?;
            let symbol = self.symbols.get(relocation.symbol)?;
            let value = match symbol.place {
                SymbolPlace::Section(target) if self.sections[target].has(object::elf::SHF_ALLOC) => {
                    match layout.sections.get(&SectionId { member: number, section: target }) {
                        Some(address) => address.wrapping_add(symbol.value),
                        None => return Some((relocation.at, kind.bytes, 0)),
                    }
                }
                // Sections of debug information refer to each other by offsets.
                SymbolPlace::Section(_) | SymbolPlace::Number => symbol.value,
                _ => return None,
            };
            Some((relocation.at, kind.bytes, kind.value(0, value, relocation.addend)?))
        };
        self.sections[section].relocations.iter().filter_map(edit).collect()
    }

    /// Writes values into a section.
    fn write(&mut self, section: usize, edits: &[Edit]) -> Result<(), String> {
        let file = self.sections[section].file.clone();
        let bytes = &mut self.bytes[file];
        for (at, length, value) in edits {
            let at = usize::try_from(*at).ok();
            let place = at.and_then(|at| bytes.get_mut(at..at.checked_add(*length)?));
            let Some(place) = place else {
                return Err("is broken: a relocation lies outside its section".into());
            };
            place.copy_from_slice(&value.to_le_bytes()[..*length]);
        }
        Ok(())
    }

    /// Makes the file say of itself that it is linked: addresses for sections and symbols (ELF-64 object file format).
    fn settle(&mut self, number: usize, layout: &Layout) {
        const TYPE: usize = 16;
        const SECTION_HEADERS: usize = 40;
        self.bytes[TYPE..TYPE + 2].copy_from_slice(&object::elf::ET_EXEC.0.to_le_bytes());
        let headers = &self.bytes[SECTION_HEADERS..SECTION_HEADERS + 8];
        let headers = u64::from_le_bytes(headers.try_into().expect("eight bytes")) as usize;
        let address_of = |section| layout.sections.get(&SectionId { member: number, section });
        let mut put = |at: Option<usize>, value: u64| {
            let range = at.and_then(|at| Some(at..at.checked_add(8)?));
            if let Some(place) = range.and_then(|range| self.bytes.get_mut(range)) {
                place.copy_from_slice(&value.to_le_bytes());
            }
        };
        for index in 0..self.sections.len() {
            if let Some(address) = address_of(index) {
                // A relocation may have written anywhere, the file's own header included.
                put(headers.checked_add(index * 64 + 16), *address);
            }
        }
        for (index, symbol) in self.symbols.iter().enumerate() {
            if let SymbolPlace::Section(section) = symbol.place
                && let Some(address) = address_of(section)
                && !symbol.is_section
            {
                put(
                    Some(self.symbol_table.start + index * SYMBOL_BYTES + 8),
                    address.wrapping_add(symbol.value),
                );
            }
        }
    }
}

fn parts(members: &[Member], layout: &Layout) -> Vec<Part> {
    let filled = |range: &Range<u64>| {
        let mut bytes = Vec::<u8>::new();
        let mut put = |address: u64, data: &[u8]| {
            if range.contains(&address) && !data.is_empty() {
                let at = (address - range.start) as usize;
                bytes.resize(bytes.len().max(at + data.len()), 0);
                bytes[at..at + data.len()].copy_from_slice(data);
            }
        };
        for (&SectionId { member, section }, &address) in &layout.sections {
            put(address, members[member].data(section));
        }
        for (&target, &address) in &layout.table {
            put(address, &layout.value(target).to_le_bytes());
        }
        bytes
    };
    let parts = layout.parts.iter().zip(RIGHTS).filter(|(range, _)| !range.is_empty());
    parts
        .map(|(range, rights)| Part {
            address: range.start,
            bytes: filled(range),
            memory_bytes: range.end - range.start,
            rights,
        })
        .collect()
}
