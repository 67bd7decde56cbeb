//! The kernel's command line: `key=value`, separated by spaces. What it does not know it leaves to others: monitors add
//! words of their own.
#![expect(unsafe_code, reason = "reads what the monitor left in memory, by address")]

use haltkick_hypercalls::{MAX_LOCKS, MAX_VCPUS};

use super::failure::{Failure, Word};
use crate::lock::registry;
use crate::monitor::record;

/// How vCPUs are woken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Backend {
    Auto,
    Kvm,
    Ipi,
}

/// Settings of the run, from the command line.
pub(super) struct Settings {
    pub(super) vcpus: u32,
    pub(super) lock: u32,
    pub(super) pv: bool,
    pub(super) preempted_hint: bool,
    pub(super) workload: u32,
    pub(super) backend: Backend,
    pub(super) locks: u32,
    pub(super) hold_ns: u64,
    pub(super) think_ns: u64,
    pub(super) oracle: bool,
    pub(super) ordered_stamps: bool,
    pub(super) exponential_think: bool,
    pub(super) embed: bool,
    pub(super) hold_jitter_percent: u32,
    pub(super) zipf_hundredths: u32,
    /// Mean time between two sections of a vCPU that begin by the clock; 0: they do not.
    pub(super) arrival_ns: u64,
    pub(super) footprint_lines: u32,
    pub(super) dirty_lines: u32,
    pub(super) read_percent: u32,
    pub(super) read_hold_ns: u64,
    pub(super) spin_threshold_ns: u64,
    pub(super) spin_rounds: u32,
    pub(super) warmup_ns: u64,
    pub(super) window_ns: u64,
    pub(super) seed: u64,
    pub(super) work_rate: u64,
    /// 0: to be measured.
    pub(super) tsc_khz: u64,
    /// End of the memory that begins at the image.
    pub(super) memory_end: u64,
}

/// PVH's start info, as far as it is used (xen/include/public/arch-x86/hvm/start_info.h documents the format).
#[repr(C)]
struct StartInfo {
    magic: u32,
    version: u32,
    _flags: u32,
    _modules: u32,
    _module_list: u64,
    command_line: u64,
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
/// A command line that does not end here is none.
const LONGEST: usize = 4096;

impl Settings {
    /// Reads them, and first of all where output goes.
    pub(super) fn from_start_info(address: u32) -> Result<Self, Failure> {
        // SAFETY: PVH says that EBX holds the address of the start info; it is mapped, and never written.
        let info = unsafe { &*(u64::from(address) as *const StartInfo) };
        if info.magic != START_INFO_MAGIC || info.command_line == 0 {
            return Err(Failure::NotPvh);
        }
        let mut settings = Self::defaults(memory_end(info));
        let line = command_line(info.command_line)?;
        let pairs = || line.split(' ').filter_map(|word| word.split_once('='));
        for (key, value) in pairs().filter(|(key, _)| ["console_port", "exit_port"].contains(key)) {
            let port = value.strip_prefix("0x").and_then(|hex| u16::from_str_radix(hex, 16).ok());
            let port = port.ok_or(Failure::Value(Word::of(key)))?;
            record::set_port(key == "console_port", port);
        }
        for (key, value) in pairs() {
            settings.set(key, value).ok_or(Failure::Value(Word::of(key)))?;
        }
        if settings.vcpus == 0 { Err(Failure::Value(Word::of("vcpus"))) } else { Ok(settings) }
    }

    fn defaults(memory_end: u64) -> Self {
        Self {
            vcpus: 0,
            lock: 0,
            pv: false,
            preempted_hint: true,
            workload: 0,
            backend: Backend::Auto,
            locks: 1,
            hold_ns: 1_000,
            think_ns: 2_000,
            oracle: true,
            ordered_stamps: true,
            exponential_think: false,
            embed: false,
            hold_jitter_percent: 0,
            zipf_hundredths: 0,
            arrival_ns: 0,
            footprint_lines: 0,
            dirty_lines: 0,
            read_percent: 0,
            read_hold_ns: 1_000,
            spin_threshold_ns: 20_000,
            spin_rounds: 0,
            warmup_ns: 20_000_000,
            window_ns: 1_000_000_000,
            seed: 1,
            work_rate: 0,
            tsc_khz: 0,
            memory_end,
        }
    }

    /// `None`: no value for that key.
    fn set(&mut self, key: &str, value: &str) -> Option<()> {
        let number = || value.parse::<u64>().ok();
        let small = || value.parse::<u32>().ok();
        let within = |most: u32| value.parse().ok().filter(|number| (1..=most).contains(number));
        let switch = || match value {
            "on" => Some(true),
            "off" => Some(false),
            _ => None,
        };
        match key {
            "vcpus" => self.vcpus = within(MAX_VCPUS as u32)?,
            "lock" => self.lock = registry::lock_named(value)?,
            "workload" => self.workload = registry::workload_named(value)?,
            "pv" => self.pv = switch()?,
            "preempted_hint" => self.preempted_hint = switch()?,
            "pv_backend" => {
                self.backend = match value {
                    "auto" => Backend::Auto,
                    "kvm" => Backend::Kvm,
                    "ipi" => Backend::Ipi,
                    _ => return None,
                }
            }
            "locks" => self.locks = within(MAX_LOCKS)?,
            "hold_ns" => self.hold_ns = number()?,
            "think_ns" => self.think_ns = number()?,
            "oracle" => self.oracle = switch()?,
            "ordered_stamps" => self.ordered_stamps = switch()?,
            "embed" => self.embed = switch()?,
            "exponential_think" => self.exponential_think = switch()?,
            "hold_jitter" => self.hold_jitter_percent = small()?,
            "zipf" => self.zipf_hundredths = small()?,
            "arrival_ns" => self.arrival_ns = number()?,
            "footprint" => self.footprint_lines = small()?,
            "dirty" => self.dirty_lines = small()?,
            "read_percent" => self.read_percent = small()?,
            "read_hold_ns" => self.read_hold_ns = number()?,
            "spin_threshold_ns" => self.spin_threshold_ns = number()?,
            "spin_rounds" => self.spin_rounds = small()?,
            "warmup_ns" => self.warmup_ns = number()?,
            "window_ns" => self.window_ns = number()?,
            "seed" => self.seed = number()?,
            "work_rate" => self.work_rate = number()?,
            "tsc_khz" => self.tsc_khz = number()?,
            _ => {}
        }
        Some(())
    }
}

/// The command line up to its terminating zero.
fn command_line(address: u64) -> Result<&'static str, Failure> {
    // SAFETY: as the start info; a line without an end is read no further than a page.
    let bytes = unsafe { core::slice::from_raw_parts(address as *const u8, LONGEST) };
    let end = bytes.iter().position(|&byte| byte == 0).ok_or(Failure::NotPvh)?;
    core::str::from_utf8(&bytes[..end]).map_err(|_| Failure::NotPvh)
}

/// The end of the piece of memory that holds the image, as far as it is mapped.
fn memory_end(info: &StartInfo) -> u64 {
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
