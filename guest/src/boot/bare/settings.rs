//! The request to a guest that runs by itself, and the start info that the monitor left in memory.
#![expect(unsafe_code, reason = "reads what others left in memory, by address")]

use haltkick_hypercalls::Request;

use super::ground::Zeroed;
use crate::monitor::record::fail;

/// Written into the image's file by who starts the monitor, before there is a guest.
#[used]
#[unsafe(link_section = ".haltkick.request")]
static REQUEST: Zeroed<Request> = Zeroed::new();

/// PVH's start info, as far as it is used (xen/include/public/arch-x86/hvm/start_info.h documents the format).
#[repr(C)]
struct StartInfo {
    magic: u32,
    version: u32,
    _flags: u32,
    _modules: u32,
    _module_list: u64,
    _command_line: u64,
    _rsdp: u64,
    // From version 1 on:
    memory_map: u64,
    memory_map_entries: u32,
}

/// One piece of physical memory.
#[repr(C)]
struct MemoryMapEntry {
    address: u64,
    size: u64,
    kind: u32,
    _reserved: u32,
}

const START_INFO_MAGIC: u32 = 0x336e_c578;
/// Ordinary memory.
const RAM: u32 = 1;
/// Address of the image.
const IMAGE: u64 = 4 << 20;
/// Bytes that the page tables of `start` map.
const MAPPED: u64 = 1 << 30;

pub(super) fn request() -> &'static Request {
    // SAFETY: written before there was a guest, never after.
    let request = unsafe { &*REQUEST.pointer() };
    if request.boot.vcpus == 0 {
        fail(format_args!("its request is empty: start it by haltkick run --engine qemu"));
    }
    request
}

/// The end of the piece of memory that holds the image, as far as it is mapped.
pub(super) fn memory_end(start_info: u32) -> u64 {
    // SAFETY: PVH says that EBX holds the address of the start info; it is mapped, and never written.
    let info = unsafe { &*(u64::from(start_info) as *const StartInfo) };
    if info.magic != START_INFO_MAGIC {
        fail(format_args!("the monitor left no PVH start info"));
    }
    if info.version == 0 || info.memory_map == 0 {
        return MAPPED;
    }
    // SAFETY: as the start info, of which it is a part.
    let map = unsafe {
        core::slice::from_raw_parts(
            info.memory_map as *const MemoryMapEntry,
            info.memory_map_entries as usize,
        )
    };
    let holds = |entry: &&MemoryMapEntry| {
        entry.kind == RAM && entry.address <= IMAGE && IMAGE - entry.address < entry.size
    };
    map.iter().find(holds).map_or(0, |entry| (entry.address + entry.size).min(MAPPED))
}
