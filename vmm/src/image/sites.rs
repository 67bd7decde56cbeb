//! The places of an image that call a lock, and what its locks are called by.
//!
//! Every statement is checked: every site must decode to exactly one call through the slot that it says it calls
//! through, and all sites of an operation call through the same. An error is the end of a sentence that begins with the image's name.

use std::collections::BTreeMap;
use std::fmt;

use haltkick_hypercalls::{
    CALLS_SECTION, CallSite, LockCalls, OPERATION_LOCK, OPERATION_READ, OPERATION_READ_UNLOCK,
    OPERATION_UNLOCK, SITES_SECTION,
};
use iced_x86::{Code, Decoder, DecoderOptions, OpKind, Register};
use object::{Object as _, ObjectSection as _};

use crate::image::{IMAGE_BASE, Segment};

/// Most records of a table: the guest that we build has some hundred call sites, and less of all else.
const MOST_RECORDS: usize = 4096;

/// The lock operation of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Operation {
    /// Takes a lock.
    Lock = OPERATION_LOCK,
    /// Releases it.
    Unlock = OPERATION_UNLOCK,
    /// Takes a lock for reading.
    Read = OPERATION_READ,
    /// Releases it.
    ReadUnlock = OPERATION_READ_UNLOCK,
}

impl Operation {
    pub(crate) const ALL: [Self; 4] = [Self::Lock, Self::Unlock, Self::Read, Self::ReadUnlock];
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(["lock", "unlock", "read", "read-unlock"][*self as usize])
    }
}

/// One place that calls through the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Site {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    slot: u64,
    pub(crate) operation: Operation,
}

/// How one form of a lock is called, and what memory it takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Addresses of the functions that sites call, by their [`Operation`]; `None` when no such site can call this form.
    pub functions: [Option<u64>; 4],
    /// Bytes of one lock.
    pub lock_bytes: u32,
    /// Bytes that each vCPU needs for all locks of this kind.
    pub cpu_bytes: u32,
}

impl Calls {
    pub(crate) fn function(&self, operation: Operation) -> Option<u64> {
        self.functions[operation as usize]
    }
}

/// Reads and checks the sites of an image. An image without the section has none.
pub(crate) fn sites(file: &object::File<'_>, segments: &[Segment], end: u64) -> Result<Vec<Site>, String> {
    let mut sites: Vec<Site> = Vec::new();
    let mut slots: BTreeMap<Operation, u64> = BTreeMap::new();
    for (index, record) in records(file, SITES_SECTION, size_of::<CallSite>())?.iter().enumerate() {
        let wrong = |what: &str| format!("has a call site (number {index} of {SITES_SECTION}) {what}");
        let (long, short) = (|at| word(record, at, 8), |at| word(record, at, 4));
        let is_it = |operation: &Operation| u64::from(*operation as u32) == short(20);
        let operation = Operation::ALL.into_iter().find(is_it);
        let operation = operation.ok_or_else(|| wrong(&format!("of unknown operation {}", short(20))))?;
        let site = Site { address: long(0), slot: long(8), bytes: short(16), operation };
        let place = format!("at {:#x}, {} bytes long,", site.address, site.bytes);
        let code = code(segments, site.address, site.bytes)
            .filter(|code| !code.is_empty())
            .ok_or_else(|| wrong(&format!("{place} that is not within its code")))?;
        if site.slot < IMAGE_BASE || site.slot.checked_add(8).is_none_or(|last| last > end) {
            return Err(wrong(&format!("whose slot at {:#x} is outside its memory", site.slot)));
        }
        let same = *slots.entry(operation).or_insert(site.slot);
        if same != site.slot {
            return Err(wrong(&format!(
                "that calls through {:#x}, where another {operation} site calls through {same:#x}",
                site.slot
            )));
        }
        calls_through(code, &site).map_err(|found| {
            wrong(&format!("{place} that is no call through {:#x}, but {found}", site.slot))
        })?;
        sites.push(site);
    }
    sites.sort_by_key(|site| site.address);
    for pair in sites.windows(2) {
        if pair[0].address + pair[0].bytes > pair[1].address {
            let [first, second] = [pair[0].address, pair[1].address];
            return Err(format!("has call sites that overlap: at {first:#x} and at {second:#x}"));
        }
    }
    Ok(sites)
}

/// `length` bytes of code as they are in the file.
fn code(segments: &[Segment], address: u64, length: u64) -> Option<&[u8]> {
    segments.iter().filter(|segment| segment.executable).find_map(|segment| segment.bytes_at(address, length))
}

/// Reads and checks how the locks are called: native and paravirtual form of each. Empty for an image without the
/// section.
pub(crate) fn calls(
    file: &object::File<'_>,
    segments: &[Segment],
    locks: usize,
) -> Result<Vec<[Calls; 2]>, String> {
    let records = records(file, CALLS_SECTION, size_of::<LockCalls>())?;
    if !records.is_empty() && records.len() != 2 * locks {
        return Err(format!(
            "has {} records in {CALLS_SECTION} for {locks} locks: two for each",
            records.len()
        ));
    }
    let function = |address: u64| match address {
        0 => Ok(None),
        _ if code(segments, address, 1).is_some() => Ok(Some(address)),
        _ => Err(format!("has a lock function at {address:#x} in {CALLS_SECTION}, outside its code")),
    };
    let parsed: Result<Vec<Calls>, String> = records
        .iter()
        .map(|record| {
            let mut functions = [None; 4];
            for (slot, address) in functions.iter_mut().enumerate() {
                *address = function(word(record, 8 * slot, 8))?;
            }
            let [lock, unlock, read, read_unlock] = functions.map(|address| address.is_some());
            if lock != unlock || read != read_unlock {
                return Err(format!(
                    "has a lock in {CALLS_SECTION} that can be taken and not released, or the reverse"
                ));
            }
            let (lock_bytes, cpu_bytes) = (word(record, 32, 4) as u32, word(record, 36, 4) as u32);
            Ok(Calls { functions, lock_bytes, cpu_bytes })
        })
        .collect();
    Ok(parsed?.chunks_exact(2).map(|forms| [forms[0], forms[1]]).collect())
}

/// The records of a section; none where the image lacks it.
pub(super) fn records<'a>(file: &object::File<'a>, name: &str, size: usize) -> Result<Vec<&'a [u8]>, String> {
    let Some(section) = file.section_by_name(name) else { return Ok(vec![]) };
    let data = section.data().map_err(|_| format!("is cut short: section {name} is missing"))?;
    if data.len() % size != 0 {
        return Err(format!("has a section {name} of {} bytes, not of {size}-byte records", data.len()));
    }
    if data.len() / size > MOST_RECORDS {
        return Err(format!("has more than {MOST_RECORDS} records in {name}"));
    }
    Ok(data.chunks_exact(size).collect())
}

/// A little-endian number of `bytes` bytes at `at` of a record that is long enough.
pub(super) fn word(record: &[u8], at: usize, bytes: usize) -> u64 {
    record[at..at + bytes].iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

/// Checks that `code` is one call through the slot of `site` and nothing else; the error says what it is.
fn calls_through(code: &[u8], site: &Site) -> Result<(), String> {
    let mut decoder = Decoder::with_ip(64, code, site.address, DecoderOptions::NONE);
    let call = decoder.decode();
    let through_memory = call.code() == Code::Call_rm64 && call.op0_kind() == OpKind::Memory;
    let direct = call.is_ip_rel_memory_operand()
        || (call.memory_base() == Register::None && call.memory_index() == Register::None);
    if call.is_invalid() || call.len() as u64 != site.bytes {
        return Err("something of another length".into());
    }
    if !through_memory || !direct || call.memory_segment() != Register::DS {
        return Err("another instruction".into());
    }
    match call.memory_displacement64() {
        slot if slot == site.slot => Ok(()),
        other => Err(format!("a call through {other:#x}")),
    }
}
