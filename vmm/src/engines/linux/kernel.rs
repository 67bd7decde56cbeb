//! Files of kernels: where each part of one goes in the guest's memory, or what a file is that is no kernel for this machine.
//!
//! Everything is known from headers, so that a wrong file is refused before anything starts. A kernel that was cut short would
//! be entered otherwise, and die like one with a fault of its own.

use std::io::{Read, Seek};

use linux_loader::loader::bootparam::setup_header;
use object::elf::{
    EM_X86_64, ET_CORE, ET_DYN, ET_EXEC, ET_REL, FileHeader64, FileType, PT_INTERP, PT_LOAD, PT_TLS,
};
use object::read::elf::{FileHeader as _, ProgramHeader as _};
use object::{LittleEndian, ReadCache};
use vm_memory::ByteValued as _;

use super::MAX_LINUX_MEMORY;

/// Start of the memory that a kernel may be loaded to.
pub(super) const HIGH_MEMORY: u64 = 0x10_0000;
/// Limits of an ELF kernel, which has no header to state them: length of the command line, and end of the RAM disk.
pub(crate) const ELF_COMMAND_LINE: u32 = 2047;
const ELF_INITRD_END: u32 = 0x7fff_ffff;
/// Between the boot protocol's 32-bit and 64-bit entries of a bzImage.
const ENTRY_64_OFFSET: u64 = 0x200;
/// Place of a bzImage's header in its file.
const SETUP_HEADER: usize = 0x1f1;
const WANTED: &str = "give a bzImage (vmlinuz) or an ELF vmlinux for x86-64";

/// Facts from the headers of a kernel's file.
pub(super) struct Kernel {
    pub(super) header: setup_header,
    pub(super) entry: u64,
    /// End of the memory that the kernel needs before it looks at the memory map.
    pub(super) end: u64,
    pub(super) parts: Vec<Part>,
}

/// `bytes` bytes of a kernel's file, and where they go.
pub(super) struct Part {
    pub(super) address: u64,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

impl Kernel {
    /// The kernel in `file`, which has all bytes that its headers name, each in a place that a guest with this memory has.
    ///
    /// # Errors
    /// What the file is instead, and what is wanted.
    pub(super) fn read<F: Read + Seek>(file: &mut F, memory_bytes: u64) -> Result<Self, String> {
        let length = file.seek(std::io::SeekFrom::End(0)).map_err(|error| error.to_string())?;
        file.rewind().map_err(|error| error.to_string())?;
        let mut start = Vec::new();
        let most = (SETUP_HEADER + size_of::<setup_header>()) as u64;
        file.take(most).read_to_end(&mut start).map_err(|error| error.to_string())?;
        let kernel = match &start[..] {
            [0x7f, b'E', b'L', b'F', ..] => {
                refuse_foreign(&start)?;
                Self::of_elf(file, length)?
            }
            _ if start.get(0x202..0x206) == Some(b"HdrS") => Self::of_bz_image(&start, length)?,
            _ => return Err(kind(&start)),
        };
        if kernel.end > MAX_LINUX_MEMORY {
            return Err(format!(
                "it takes memory up to {:#x}, and a Linux guest has {} MiB at most",
                kernel.end,
                MAX_LINUX_MEMORY >> 20
            ));
        }
        if kernel.end > memory_bytes {
            let (needed, memory) = (kernel.end.div_ceil(1 << 20), memory_bytes >> 20);
            return Err(format!(
                "unpacked it takes {needed} MiB, and the guest has {memory}: give it more with --memory"
            ));
        }
        Ok(kernel)
    }

    fn of_bz_image(start: &[u8], length: u64) -> Result<Self, String> {
        const LOADED_HIGH: u8 = 1;
        const HAS_64_BIT_ENTRY: u16 = 1;
        const FIRST_WITH_XLOADFLAGS: u16 = 0x20c;
        const SECTOR: u64 = 512;
        let cut = |wanted: u64| format!("it is a bzImage cut short: it has {length} bytes of {wanted}");
        let mut header = setup_header::default();
        let all = SETUP_HEADER + size_of::<setup_header>();
        header.as_mut_slice().copy_from_slice(start.get(SETUP_HEADER..all).ok_or_else(|| cut(all as u64))?);
        let (version, flags) = (header.version, header.xloadflags);
        if header.loadflags & LOADED_HIGH == 0
            || version < FIRST_WITH_XLOADFLAGS
            || flags & HAS_64_BIT_ENTRY == 0
        {
            return Err("a bzImage without a 64-bit entry: use a 64-bit kernel of Linux 3.8 or later".into());
        }
        let sectors = if header.setup_sects == 0 { 4 } else { header.setup_sects };
        let offset = (u64::from(sectors) + 1) * SECTOR;
        let bytes = u64::from(header.syssize) * 16;
        if bytes <= ENTRY_64_OFFSET {
            return Err("it is a bzImage without a kernel in it (syssize)".into());
        }
        // A signature may follow, which is no part of it.
        if offset + bytes > length {
            return Err(cut(offset + bytes));
        }
        header.code32_start = HIGH_MEMORY as u32;
        let unpacked = header.pref_address.saturating_add(u64::from(header.init_size));
        Ok(Self {
            header,
            entry: HIGH_MEMORY + ENTRY_64_OFFSET,
            end: unpacked.max(HIGH_MEMORY + bytes),
            parts: vec![Part { address: HIGH_MEMORY, offset, bytes }],
        })
    }

    fn of_elf<F: Read + Seek>(file: &mut F, length: u64) -> Result<Self, String> {
        /// Ten times as many as kernels have.
        const MOST_HEADERS: usize = 64;
        let broken = |error: object::Error| format!("its program headers are broken or cut off ({error})");
        let cache = ReadCache::new(file);
        let elf = FileHeader64::<LittleEndian>::parse(&cache).map_err(broken)?;
        let headers = elf.program_headers(LittleEndian, &cache).map_err(broken)?;
        if headers.len() > MOST_HEADERS {
            let count = headers.len();
            return Err(format!("it has {count} program headers, and {MOST_HEADERS} are the most"));
        }
        if headers.iter().any(|header| [PT_INTERP, PT_TLS].contains(&header.p_type(LittleEndian))) {
            return Err(format!("it is a program of user space: {WANTED}"));
        }
        let mut segments = Vec::new();
        for header in headers {
            let bytes = header.p_memsz(LittleEndian);
            if header.p_type(LittleEndian) != PT_LOAD || bytes == 0 {
                continue;
            }
            let part = Part {
                address: header.p_paddr(LittleEndian),
                offset: header.p_offset(LittleEndian),
                bytes: header.p_filesz(LittleEndian),
            };
            segments.push((part.checked(bytes, length)?, part));
        }
        segments.sort_by_key(|(_, part)| part.address);
        for two in segments.windows(2) {
            if two[1].1.address < two[0].0 {
                let (first, second) = (two[0].1.address, two[1].1.address);
                return Err(format!("its segments at {first:#x} and {second:#x} overlap"));
            }
        }
        let end = segments.last().ok_or_else(|| format!("it has no segment to load: {WANTED}"))?.0;
        let entry = elf.e_entry(LittleEndian);
        if !segments.iter().any(|(_, part)| (part.address..part.address + part.bytes).contains(&entry)) {
            return Err(format!(
                "its entry at {entry:#x} is not among the physical addresses of its code: {WANTED}"
            ));
        }
        let header = setup_header {
            boot_flag: 0xaa55,
            header: u32::from_le_bytes(*b"HdrS"),
            kernel_alignment: 0x100_0000,
            cmdline_size: ELF_COMMAND_LINE,
            initrd_addr_max: ELF_INITRD_END,
            ..Default::default()
        };
        Ok(Self { header, entry, end, parts: segments.into_iter().map(|(_, part)| part).collect() })
    }
}

impl Part {
    /// The end of a segment that has `memory` bytes and begins with this, in a file of `length` bytes.
    fn checked(&self, memory: u64, length: u64) -> Result<u64, String> {
        let Self { address, offset, bytes } = *self;
        if offset.checked_add(bytes).is_none_or(|end| end > length) {
            return Err(format!(
                "it is cut short: its segment at {address:#x} takes {bytes} bytes from {offset} on, and the file has {length}"
            ));
        }
        if bytes > memory {
            return Err(format!(
                "its segment at {address:#x} has {bytes} bytes in the file and {memory} in memory"
            ));
        }
        if address < HIGH_MEMORY {
            return Err(format!(
                "its segment at {address:#x} is in the first MiB, where boot parameters and ACPI tables are"
            ));
        }
        address.checked_add(memory).ok_or_else(|| format!("its segment at {address:#x} has no end"))
    }
}

/// Refuses an ELF file that is no executable for x86-64. Type and machine have the same place in all classes.
fn refuse_foreign(start: &[u8]) -> Result<(), String> {
    const MACHINES: [(u16, &str); 12] = [
        (3, "i386"),
        (8, "MIPS"),
        (20, "PowerPC"),
        (21, "PowerPC64"),
        (22, "S390"),
        (40, "Arm"),
        (43, "SPARC"),
        (50, "IA-64"),
        (EM_X86_64.0, "x86-64"),
        (183, "AArch64"),
        (243, "RISC-V"),
        (258, "LoongArch"),
    ];
    if start.len() < size_of::<FileHeader64<LittleEndian>>() {
        return Err(format!("it is an ELF file cut short, of {} bytes: {WANTED}", start.len()));
    }
    let (is_big, is_wide) = (start[5] == 2, start[4] == 2);
    let half = |at: usize| {
        let half = [start[at], start[at + 1]];
        if is_big { u16::from_be_bytes(half) } else { u16::from_le_bytes(half) }
    };
    let (kind, machine) = (FileType(half(16)), half(18));
    if is_big || !is_wide || machine != EM_X86_64.0 {
        let known = MACHINES.iter().find(|(number, _)| *number == machine);
        let machine = known.map_or_else(|| machine.to_string(), |(_, name)| (*name).to_owned());
        let bits = if is_wide { 64 } else { 32 };
        let order = if is_big { ", big-endian" } else { "" };
        return Err(format!("it is a {bits}-bit ELF file for machine {machine}{order}: {WANTED}"));
    }
    let kind = match kind {
        ET_EXEC => return Ok(()),
        ET_REL => "a relocatable object file, which is not linked",
        ET_DYN => "a shared object or a position-independent executable, which has no address of its own",
        ET_CORE => "a core dump",
        _ => "an ELF file, but no executable",
    };
    Err(format!("it is {kind}: {WANTED}"))
}

/// The kind of a file that is neither ELF nor bzImage, by what stands at its start.
fn kind(start: &[u8]) -> String {
    const COMPRESSED: &str = "compressed: unpack it first, or give a bzImage, which unpacks itself";
    const KINDS: [(usize, &[u8], &str); 20] = [
        (0, b"\x1f\x8b", COMPRESSED),
        (0, b"\xfd7zXZ\0", COMPRESSED),
        (0, b"\x28\xb5\x2f\xfd", COMPRESSED),
        (0, b"\x02\x21\x4c\x18", COMPRESSED),
        (0, b"\x04\x22\x4d\x18", COMPRESSED),
        (0, b"BZh", COMPRESSED),
        (0, b"\x5d\0\0", COMPRESSED),
        (0, b"\x89LZO", COMPRESSED),
        (0, b"PK\x03\x04", COMPRESSED),
        (0, b"07070", "an initial RAM disk (cpio): give it with --initrd, and a kernel with --kernel"),
        (0x38, b"ARM\x64", "a kernel for AArch64"),
        (0x30, b"RISCV", "a kernel for RISC-V"),
        (0x38, b"\xcd\x23\x82\x81", "a kernel for LoongArch"),
        (0x24, b"\x18\x28\x6f\x01", "a kernel for Arm (zImage)"),
        (0, b"\x27\x05\x19\x56", "a kernel for U-Boot (uImage)"),
        (0, b"\xd0\x0d\xfe\xed", "a device tree or an image for U-Boot"),
        (4, b"zimg", "a compressed kernel for EFI (zboot)"),
        (0, b"MZ", "a program for EFI: of a unified kernel image, take the section .linux"),
        (0, b"!<arch>\n", "an archive or a package: unpack the kernel first"),
        (0, b"#!", "a script"),
    ];
    let is_there =
        |(at, magic, _): &&(usize, &[u8], &str)| start.get(*at..).is_some_and(|it| it.starts_with(magic));
    match KINDS.iter().find(is_there) {
        _ if start.is_empty() => format!("it is empty: {WANTED}"),
        Some((.., kind)) if kind.contains(':') => format!("it is {kind}"),
        Some((.., kind)) => format!("it is {kind}: {WANTED}"),
        None => format!("it is no Linux kernel: neither an ELF file (vmlinux) nor a bzImage: {WANTED}"),
    }
}
