//! The memory of a Linux guest, and what is in it when it starts: kernel, initial RAM disk, command line, boot parameters.
//!
//! By the 64-bit boot protocol of Linux on x86, which enters the kernel in 64-bit mode with the low memory mapped to itself:
//! ```text
//! 0x000500  GDT
//! 0x007000  boot parameters ("zero page")
//! 0x009000  page tables: PML4, page directory pointers, four page directories
//! 0x020000  command line
//! 0x0e0000  ACPI tables
//! 0x100000  the kernel, where its file says
//! the end   the initial RAM disk, below the kernel's limit for it
//! ```

use std::fmt::Display;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::path::Path;

use linux_loader::loader::bootparam::{boot_e820_entry, boot_params};
use vm_memory::mmap::{FromRangesError, MmapRegionError};
use vm_memory::{Bytes as _, GuestAddress, GuestMemoryBackend as _, GuestMemoryMmap, ReadVolatile};

use super::kernel::{HIGH_MEMORY, Kernel};
use super::{MAX_LINUX_MEMORY, acpi, archive};
use crate::host::error::{RunError, system};
use crate::host::input;
use crate::machine::boot;
use crate::run::asked::{Linux, RamDisk};

pub(crate) const GDT: u64 = 0x500;
pub(crate) const BOOT_PARAMETERS: u64 = 0x7000;
pub(crate) const PML4: u64 = 0x9000;
const PAGE_DIRECTORY_POINTERS: u64 = 0xa000;
const PAGE_DIRECTORIES: u64 = 0xb000;
const COMMAND_LINE: u64 = 0x2_0000;
const LOW_MEMORY_END: u64 = 0x9_fc00;
/// Less would not hold any kernel.
const LEAST_BYTES: u64 = 16 << 20;
/// Own part of the command line: the serial console; and a panic ends the guest, because its screen has no reader.
const OWN_WORDS: &str = "console=ttyS0 panic=-1";

/// Memory of the guest from 0 on.
pub(crate) struct LinuxMemory(pub(super) GuestMemoryMmap);

/// A kernel in its place.
pub(crate) struct Loaded {
    pub(crate) entry: u64,
    pub(crate) command_line: String,
}

/// Refuses what cannot be loaded, as far as files and settings tell before anything starts.
pub(crate) fn check(linux: &Linux) -> Result<(), RunError> {
    let (_, kernel) = open_kernel(linux, memory_size(linux.memory_bytes)?)?;
    command_line(&linux.append, kernel.header.cmdline_size)?;
    if let Some(RamDisk::File(path)) = &linux.initrd {
        let (_, bytes) = open_initrd(path)?;
        initrd_address(path, bytes, &kernel, memory_size(linux.memory_bytes)?)?;
    }
    Ok(())
}

/// Bytes of a guest's memory, in whole pages.
fn memory_size(bytes: u64) -> Result<u64, RunError> {
    if bytes < LEAST_BYTES {
        let least = LEAST_BYTES >> 20;
        return Err(RunError::usage(format!("no Linux kernel runs in less than {least} MiB: use --memory")));
    }
    Ok(bytes & !0xfff)
}

/// The kernel of `linux`, which fits into `size` bytes.
fn open_kernel(linux: &Linux, size: u64) -> Result<(File, Kernel), RunError> {
    let mut file = open("kernel", &linux.kernel)?;
    let kernel = Kernel::read(&mut file, size).map_err(|reason| wrong("kernel", &linux.kernel, reason))?;
    Ok((file, kernel))
}

fn open_initrd(path: &Path) -> Result<(File, u64), RunError> {
    let file = open("initrd", path)?;
    match file.metadata().map_err(|error| wrong("initrd", path, error))?.len() {
        0 => Err(wrong("initrd", path, "it is empty: give a cpio archive, or leave --initrd out")),
        bytes => Ok((file, bytes)),
    }
}

fn open(what: &str, path: &Path) -> Result<File, RunError> {
    input::open(path, MAX_LINUX_MEMORY).map_err(|error| wrong(what, path, error))
}

fn wrong(what: &str, path: &Path, reason: impl Display) -> RunError {
    RunError::usage(format!("{what} {}: {reason}", path.display()))
}

/// The address of an initial RAM disk of `bytes` bytes at the end of what the kernel can reach in memory of `size` bytes.
fn initrd_address(path: &Path, bytes: u64, kernel: &Kernel, size: u64) -> Result<u64, RunError> {
    let end = size.min(u64::from(kernel.header.initrd_addr_max) + 1);
    let address = end.checked_sub(bytes).map(|address| address & !0xfff);
    address.filter(|&address| address >= kernel.end).ok_or_else(|| {
        let (needed, kernel_end) = (bytes.div_ceil(1 << 20), kernel.end.div_ceil(1 << 20));
        let reason = format!(
            "its {needed} MiB do not fit behind the kernel, which ends at {kernel_end} MiB of {}: give the guest more with --memory",
            end >> 20
        );
        wrong("initrd", path, reason)
    })
}

impl LinuxMemory {
    /// `bytes` of it, in whole pages.
    pub(crate) fn new(bytes: u64) -> Result<Self, RunError> {
        let bytes = memory_size(bytes)?;
        let map = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), bytes as usize)]).map_err(|error| {
            let source = match error {
                FromRangesError::MmapRegion(MmapRegionError::Mmap(source)) => source,
                error => std::io::Error::other(error.to_string()),
            };
            system(&format!("map {} MiB of guest memory", bytes >> 20))(source)
        })?;
        Ok(Self(map))
    }

    fn size(&self) -> u64 {
        self.0.iter().map(|region| region.size() as u64).sum()
    }

    pub(crate) fn load(&self, linux: &Linux, acpi_tables: &[u8]) -> Result<Loaded, RunError> {
        let (mut file, kernel) = open_kernel(linux, self.size())?;
        self.load_kernel(&kernel, &mut file).map_err(|error| wrong("kernel", &linux.kernel, error))?;
        let mut header = kernel.header;
        let initrd = linux.initrd.as_ref().map(|disk| self.load_initrd(disk, &kernel)).transpose()?;
        (header.ramdisk_image, header.ramdisk_size) = initrd.unwrap_or_default();
        let command_line = command_line(&linux.append, header.cmdline_size)?;
        header.cmd_line_ptr = COMMAND_LINE as u32;
        // A loader without a number of its own.
        header.type_of_loader = 0xff;
        self.write(COMMAND_LINE, command_line.as_bytes());
        self.write(acpi::TABLES, acpi_tables);
        self.write_page_tables();

        let mut parameters = boot_params { hdr: header, acpi_rsdp_addr: acpi::TABLES, ..Default::default() };
        let usable = [0..LOW_MEMORY_END, HIGH_MEMORY..self.size()];
        for (entry, range) in parameters.e820_table.iter_mut().zip(&usable) {
            const USABLE: u32 = 1;
            *entry = boot_e820_entry { addr: range.start, size: range.end - range.start, r#type: USABLE };
        }
        parameters.e820_entries = usable.len() as u8;
        self.0.write_obj(parameters, GuestAddress(BOOT_PARAMETERS)).expect("low memory is always there");
        Ok(Loaded { entry: kernel.entry, command_line })
    }

    /// Puts descriptors for the start state where it expects them.
    fn write_page_tables(&self) {
        const PRESENT_WRITABLE: u64 = 0b11;
        let tables = [PML4, PAGE_DIRECTORY_POINTERS, PAGE_DIRECTORIES];
        let paging = boot::identity_map(tables, 0..4 * 512, PRESENT_WRITABLE);
        // Flat 64-bit code at selector 0x10 and data at 0x18, as the protocol asks for.
        let segments = [(GDT + 0x10, true), (GDT + 0x18, false)];
        let segments = segments.map(|(address, code)| (address, boot::flat_segment(code, 0)));
        paging.chain(segments).for_each(|(address, entry)| self.write(address, &entry.to_le_bytes()));
    }

    fn write(&self, address: u64, bytes: &[u8]) {
        self.0.write_slice(bytes, GuestAddress(address)).expect("low memory is always there");
    }

    fn load_kernel<F: ReadVolatile + Seek>(&self, kernel: &Kernel, file: &mut F) -> std::io::Result<()> {
        for part in &kernel.parts {
            file.seek(SeekFrom::Start(part.offset))?;
            self.read(part.address, file, part.bytes)?;
        }
        Ok(())
    }

    fn read(&self, address: u64, source: &mut impl ReadVolatile, bytes: u64) -> std::io::Result<()> {
        let read = self.0.read_exact_volatile_from(GuestAddress(address), source, bytes as usize);
        read.map_err(|error| std::io::Error::other(error.to_string()))
    }

    /// Loads the initial RAM disk; returns its address and its length.
    fn load_initrd(&self, disk: &RamDisk, kernel: &Kernel) -> Result<(u32, u32), RunError> {
        match disk {
            RamDisk::File(path) => {
                let (mut file, bytes) = open_initrd(path)?;
                self.put_initrd(path, &mut file, bytes, kernel)
            }
            RamDisk::Program(program) => {
                let archive = archive::of_program(program)?;
                self.put_initrd(disk.path(), &mut &archive[..], archive.len() as u64, kernel)
            }
        }
    }

    /// Puts `bytes` from `source` behind the kernel; `path` is for messages.
    fn put_initrd(
        &self,
        path: &Path,
        source: &mut impl ReadVolatile,
        bytes: u64,
        kernel: &Kernel,
    ) -> Result<(u32, u32), RunError> {
        let address = initrd_address(path, bytes, kernel, self.size())?;
        self.read(address, source, bytes).map_err(|error| wrong("initrd", path, error))?;
        Ok((address as u32, bytes as u32))
    }
}

/// Our own words and `append`, of at most `longest` bytes.
pub(crate) fn command_line(append: &str, longest: u32) -> Result<String, RunError> {
    let line = format!("{OWN_WORDS} {append}").trim_end().to_owned();
    if line.contains('\0') {
        return Err(RunError::usage("--append: a command line cannot have a zero byte in it"));
    }
    if line.len() > longest as usize {
        return Err(RunError::usage(format!(
            "--append: the command line has {} bytes, and this kernel takes {longest}",
            line.len()
        )));
    }
    Ok(line)
}

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzed {
    use std::io::Cursor;

    use haltkick_fuzzing::{Script, Target, edited};

    use super::{HIGH_MEMORY, Kernel, LinuxMemory};

    pub(crate) const TARGET: Target = Target { name: "kernel", most_bytes: 256, seeds: Vec::new, execute };

    const MEMORY: u64 = 32 << 20;

    thread_local! {
        /// Kept for the next one: a loader does not ask what was there before.
        static KEPT: LinuxMemory = LinuxMemory::new(MEMORY).expect("a small guest's memory");
    }

    /// Edits of a bzImage and of an ELF kernel, one of these cut short, or a whole file: refused, or loaded.
    fn execute(bytes: &[u8]) {
        let mut script = Script::new(bytes);
        let (bz_image, elf) = (bz_image(HIGH_MEMORY, 1 << 20), elf(5, 1, 64));
        let cut = |whole: &[u8], length: u64| loaded(&whole[..length as usize % whole.len().min(1024)]);
        _ = match script.byte() % 5 {
            0 => loaded(&edited(&bz_image, script.rest(), 0x1f1)),
            1 => loaded(&edited(&elf, script.rest(), 0)),
            2 => cut(&bz_image, script.number()),
            3 => cut(&elf, script.number()),
            _ => loaded(script.rest()),
        };
    }

    pub(super) fn loaded(bytes: &[u8]) -> Result<Kernel, String> {
        KEPT.with(|memory| {
            let mut file = Cursor::new(bytes);
            let kernel = Kernel::read(&mut file, MEMORY)?;
            memory.load_kernel(&kernel, &mut file).map_err(|error| error.to_string())?;
            Ok(kernel)
        })
    }

    pub(super) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
        bytes[at..at + value.len()].copy_from_slice(value);
    }

    /// A bzImage with nothing in it, which says that it wants `init_size` bytes at `pref_address`.
    pub(super) fn bz_image(pref_address: u64, init_size: u32) -> Vec<u8> {
        let mut bytes = vec![0; 8192];
        put(&mut bytes, 0x1f1, &[1]);
        put(&mut bytes, 0x1f4, &((8192 - 2 * 512) / 16_u32).to_le_bytes());
        put(&mut bytes, 0x202, b"HdrS");
        put(&mut bytes, 0x206, &0x20f_u16.to_le_bytes());
        put(&mut bytes, 0x211, &[1]);
        put(&mut bytes, 0x214, &(HIGH_MEMORY as u32).to_le_bytes());
        put(&mut bytes, 0x236, &1_u16.to_le_bytes());
        put(&mut bytes, 0x258, &pref_address.to_le_bytes());
        put(&mut bytes, 0x260, &init_size.to_le_bytes());
        bytes
    }

    /// An ELF kernel with `headers` program headers of type `kind`, each of which names `bytes` bytes from the file's beginning, for a
    /// page of its own.
    pub(super) fn elf(headers: u16, kind: u32, bytes: u64) -> Vec<u8> {
        let mut file = vec![0; 64 + 56 * usize::from(headers)];
        put(&mut file, 0, b"\x7fELF\x02\x01\x01");
        put(&mut file, 16, &[2, 0, 62, 0, 1]);
        put(&mut file, 24, &(16_u64 << 20).to_le_bytes());
        put(&mut file, 32, &64_u64.to_le_bytes());
        put(&mut file, 52, &[64, 0, 56, 0]);
        put(&mut file, 56, &headers.to_le_bytes());
        for number in 0..usize::from(headers) {
            let at = 64 + 56 * number;
            put(&mut file, at, &kind.to_le_bytes());
            put(&mut file, at + 24, &((16_u64 << 20) + ((number as u64) << 12)).to_le_bytes());
            put(&mut file, at + 32, &bytes.to_le_bytes());
            put(&mut file, at + 40, &bytes.to_le_bytes());
        }
        file
    }
}

#[cfg(test)]
mod tests {
    use super::fuzzed::{bz_image, elf, loaded, put};
    use super::*;

    /// `file` with other bytes at some places.
    fn with(mut file: Vec<u8>, edits: &[(usize, &[u8])]) -> Vec<u8> {
        edits.iter().for_each(|(at, value)| put(&mut file, *at, value));
        file
    }

    #[test]
    fn a_kernel_has_its_entry_and_what_is_none_a_reason() {
        let elf_with = |edits: &[(usize, &[u8])]| with(elf(2, 1, 100), edits);
        assert_eq!(loaded(&elf_with(&[(24, &[99])])).map(|kernel| kernel.entry), Ok((16 << 20) + 99));
        let bz = |edits: &[(usize, &[u8])]| with(bz_image(HIGH_MEMORY, 1 << 20), edits);
        let (first, second) = (64, 64 + 56);
        for (file, expected) in [
            (vec![], "it is empty"),
            (b"#include <stdio.h>".to_vec(), "neither an ELF file"),
            (b"\x1f\x8b\x08".to_vec(), "compressed: unpack it"),
            (b"\x28\xb5\x2f\xfd".to_vec(), "compressed: unpack it"),
            (b"070701".to_vec(), "an initial RAM disk (cpio): give it with --initrd"),
            (with(vec![0; 100], &[(0x38, b"ARM\x64")]), "a kernel for AArch64"),
            (b"MZ".to_vec(), "a program for EFI"),
            (elf(0, 1, 0)[..63].to_vec(), "an ELF file cut short, of 63 bytes"),
            (elf_with(&[(4, &[1])]), "a 32-bit ELF file for machine x86-64"),
            (elf_with(&[(4, &[1]), (18, &[3, 0])]), "a 32-bit ELF file for machine i386"),
            (elf_with(&[(18, &[243, 0])]), "a 64-bit ELF file for machine RISC-V"),
            (elf_with(&[(18, &[0x34, 0x12])]), "for machine 4660"),
            (elf_with(&[(5, &[2]), (16, &[0, 2, 0, 22])]), "for machine S390, big-endian"),
            (elf_with(&[(16, &[1])]), "a relocatable object file, which is not linked"),
            (elf_with(&[(16, &[3])]), "a shared object or a position-independent executable"),
            (elf_with(&[(16, &[4])]), "a core dump"),
            (elf_with(&[(16, &[0, 0xfe])]), "an ELF file, but no executable"),
            (elf_with(&[(56, &[0])]), "no segment to load"),
            (elf_with(&[(56, &[65])]), "broken or cut off"),
            (elf_with(&[(54, &[55])]), "broken or cut off"),
            (elf(65, 1, 0), "65 program headers, and 64 are the most"),
            (elf_with(&[(first, &[3])]), "a program of user space"),
            (elf_with(&[(first, &[7])]), "a program of user space"),
            (elf_with(&[(second + 32, &[177])]), "cut short: its segment at 0x1001000 takes 177 bytes"),
            (elf_with(&[(second + 8, &[0xff; 8])]), "cut short"),
            (elf_with(&[(second + 40, &[99])]), "has 100 bytes in the file and 99 in memory"),
            (elf_with(&[(second + 24, &[0, 0xf0, 0x0f, 0])]), "0xff000 is in the first MiB"),
            (elf_with(&[(second + 24, &[99, 0])]), "segments at 0x1000000 and 0x1000063 overlap"),
            (elf_with(&[(second + 24, &[0xff; 8])]), "0xffffffffffffffff has no end"),
            (elf_with(&[(second + 28, &[1])]), "a Linux guest has 3072 MiB at most"),
            (elf_with(&[(24, &[100])]), "its entry at 0x1000064 is not"),
            (bz(&[])[..8191].to_vec(), "cut short: it has 8191 bytes of 8192"),
            (bz(&[(0x1f4, &[0, 0, 16])]), "cut short: it has 8192 bytes of 16778240"),
            (bz(&[])[..0x210].to_vec(), "a bzImage cut short"),
            (bz(&[(0x1f4, &[0; 4])]), "a bzImage without a kernel in it"),
            (bz(&[(0x211, &[0])]), "without a 64-bit entry"),
            (bz(&[(0x236, &[0])]), "without a 64-bit entry"),
            (bz(&[(0x206, &[0x0b])]), "without a 64-bit entry"),
            (bz_image(u64::MAX, 1), "a Linux guest has 3072 MiB at most"),
        ] {
            let refused = loaded(&file).map(|kernel| kernel.end).unwrap_err();
            assert!(refused.contains(expected) && !refused.contains("--memory"), "'{expected}': {refused}");
        }
        let large = loaded(&bz_image(HIGH_MEMORY, 40 << 20)).map(|kernel| kernel.end).unwrap_err();
        assert!(large.contains("takes 41 MiB, and the guest has 32: give it more with --memory"), "{large}");
    }
}
