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

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use linux_loader::loader::bootparam::{boot_e820_entry, boot_params, setup_header};
use linux_loader::loader::{BzImage, Elf, KernelLoader as _};
use vm_memory::mmap::{FromRangesError, MmapRegionError};
use vm_memory::{Bytes as _, GuestAddress, GuestMemoryBackend as _, GuestMemoryMmap, ReadVolatile};

use super::{MAX_LINUX_MEMORY, acpi, archive};
use crate::host::error::{RunError, system};
use crate::host::input;
use crate::run::asked::{Linux, RamDisk};

pub(crate) const GDT: u64 = 0x500;
pub(crate) const BOOT_PARAMETERS: u64 = 0x7000;
pub(crate) const PML4: u64 = 0x9000;
const PAGE_DIRECTORY_POINTERS: u64 = 0xa000;
const PAGE_DIRECTORIES: u64 = 0xb000;
const COMMAND_LINE: u64 = 0x2_0000;
const LOW_MEMORY_END: u64 = 0x9_fc00;
const HIGH_MEMORY: u64 = 0x10_0000;
/// Between the boot protocol's 32-bit and 64-bit entries of a bzImage.
const ENTRY_64_OFFSET: u64 = 0x200;
/// Limits of an ELF kernel, which has no header to state them: length of the command line, and end of the RAM disk.
pub(crate) const ELF_COMMAND_LINE: u32 = 2047;
const ELF_INITRD_END: u32 = 0x7fff_ffff;
/// Less would not hold any kernel.
const LEAST_BYTES: u64 = 16 << 20;
/// Own part of the command line: the serial console; and a panic ends the guest, because its screen has no reader.
const OWN_WORDS: &str = "console=ttyS0 panic=-1";

/// Memory of the guest from 0 on.
pub(crate) struct LinuxMemory(pub(super) GuestMemoryMmap);

/// A kernel in its place.
pub(crate) struct Loaded {
    /// Its first instruction.
    pub(crate) entry: u64,
    pub(crate) command_line: String,
}

/// Formats of kernels.
enum Format {
    Elf,
    BzImage,
}

/// Refuses a file that is no kernel. Whether a guest's memory suffices for it is seen when it is loaded.
///
/// # Errors
/// [`RunError::Image`] says what is wrong with the file.
pub fn check_kernel(path: &Path) -> Result<(), RunError> {
    let wrong = |error: std::io::Error| RunError::Image { path: path.into(), reason: error.to_string() };
    let mut file = input::open(path, MAX_LINUX_MEMORY).map_err(wrong)?;
    format(path, &mut file).map(|_| ())
}

/// The format of the kernel that `file` holds; `path` is for messages.
fn format<F: Read + Seek>(path: &Path, file: &mut F) -> Result<Format, RunError> {
    let wrong = |reason: String| RunError::Image { path: path.into(), reason };
    let mut magic = [0; 0x206];
    match read_up_to(file, &mut magic).map_err(|error| wrong(error.to_string()))? {
        4.. if magic[..4] == *b"\x7fELF" => Ok(Format::Elf),
        0x206 if magic[0x202..] == *b"HdrS" => Ok(Format::BzImage),
        _ => Err(wrong("it is no Linux kernel: neither an ELF file (vmlinux) nor a bzImage".into())),
    }
}

/// Facts from the header of a kernel's file.
struct Kernel {
    header: setup_header,
    entry: u64,
    /// End of the memory that the kernel needs before it looks at the memory map.
    end: u64,
}

impl LinuxMemory {
    /// `bytes` of it, in whole pages.
    pub(crate) fn new(bytes: u64) -> Result<Self, RunError> {
        if bytes < LEAST_BYTES {
            let least = LEAST_BYTES >> 20;
            return Err(RunError::usage(format!(
                "no Linux kernel runs in less than {least} MiB: use --memory"
            )));
        }
        let bytes = bytes & !0xfff;
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

    /// Loads everything that `linux` names.
    pub(crate) fn load(&self, linux: &Linux, acpi_tables: &[u8]) -> Result<Loaded, RunError> {
        let kernel = self.load_kernel(&linux.kernel, &mut open(&linux.kernel)?)?;
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
        const LARGE: u64 = 1 << 7;
        let entry = |address: u64, value: u64| self.write(address, &value.to_le_bytes());
        entry(PML4, PAGE_DIRECTORY_POINTERS | PRESENT_WRITABLE);
        for directory in 0..4 {
            let address = PAGE_DIRECTORIES + directory * 0x1000;
            entry(PAGE_DIRECTORY_POINTERS + directory * 8, address | PRESENT_WRITABLE);
        }
        for page in 0..4 * 512 {
            entry(PAGE_DIRECTORIES + page * 8, page << 21 | LARGE | PRESENT_WRITABLE);
        }
        // Flat 64-bit code at selector 0x10 and data at 0x18, as the protocol asks for.
        entry(GDT + 0x10, 0x00af_9b00_0000_ffff);
        entry(GDT + 0x18, 0x00cf_9300_0000_ffff);
    }

    fn write(&self, address: u64, bytes: &[u8]) {
        self.0.write_slice(bytes, GuestAddress(address)).expect("low memory is always there");
    }

    /// Loads the kernel that `file` holds; `path` is for messages.
    fn load_kernel<F: Read + ReadVolatile + Seek>(
        &self,
        path: &Path,
        file: &mut F,
    ) -> Result<Kernel, RunError> {
        let wrong = |reason: String| RunError::Image { path: path.into(), reason };
        let start = Some(GuestAddress(HIGH_MEMORY));
        let too_large = |error: linux_loader::loader::Error| {
            let memory = self.size() >> 20;
            wrong(format!(
                "it cannot be loaded into {memory} MiB of memory ({error}): give the guest more with --memory"
            ))
        };
        if let Format::Elf = format(path, file)? {
            check_elf(file).map_err(|error| wrong(error.to_string()))?;
            let loaded = Elf::load(&self.0, None, file, start).map_err(too_large)?;
            let header = setup_header {
                boot_flag: 0xaa55,
                header: u32::from_le_bytes(*b"HdrS"),
                kernel_alignment: 0x100_0000,
                cmdline_size: ELF_COMMAND_LINE,
                initrd_addr_max: ELF_INITRD_END,
                ..Default::default()
            };
            let kernel = Kernel { header, entry: loaded.kernel_load.0, end: loaded.kernel_end };
            return self.has_room(path, kernel);
        }
        const HAS_64_BIT_ENTRY: u16 = 1;
        const FIRST_WITH_XLOADFLAGS: u16 = 0x20c;
        file.rewind().map_err(|error| wrong(error.to_string()))?;
        let loaded = BzImage::load(&self.0, None, file, start).map_err(too_large)?;
        let header = loaded.setup_header.expect("a bzImage has a header");
        let (version, flags) = (header.version, header.xloadflags);
        if version < FIRST_WITH_XLOADFLAGS || flags & HAS_64_BIT_ENTRY == 0 {
            return Err(wrong(
                "a bzImage without a 64-bit entry: use a 64-bit kernel of Linux 3.8 or later".into(),
            ));
        }
        let end = loaded.kernel_end.max(header.pref_address.saturating_add(u64::from(header.init_size)));
        self.has_room(path, Kernel { header, entry: loaded.kernel_load.0 + ENTRY_64_OFFSET, end })
    }

    fn has_room(&self, path: &Path, kernel: Kernel) -> Result<Kernel, RunError> {
        if kernel.end <= self.size() {
            return Ok(kernel);
        }
        let reason = format!(
            "unpacked it takes {} MiB, and the guest has {}: give it more with --memory",
            kernel.end.div_ceil(1 << 20),
            self.size() >> 20
        );
        Err(RunError::Image { path: path.into(), reason })
    }

    /// Loads the initial RAM disk; returns its address and its length.
    fn load_initrd(&self, disk: &RamDisk, kernel: &Kernel) -> Result<(u32, u32), RunError> {
        let wrong = |error: std::io::Error| initrd_error(disk.path(), error);
        match disk {
            RamDisk::File(path) => {
                let mut file = open(path)?;
                let bytes = file.metadata().map_err(wrong)?.len();
                self.put_initrd(path, &mut file, bytes, kernel)
            }
            RamDisk::Program(program) => {
                let archive = archive::of_program(program)?;
                self.put_initrd(disk.path(), &mut &archive[..], archive.len() as u64, kernel)
            }
        }
    }

    /// Puts `bytes` from `source` at the end of what the kernel can reach; `path` is for messages.
    fn put_initrd(
        &self,
        path: &Path,
        source: &mut impl ReadVolatile,
        bytes: u64,
        kernel: &Kernel,
    ) -> Result<(u32, u32), RunError> {
        let end = self.size().min(u64::from(kernel.header.initrd_addr_max) + 1);
        let address = end.checked_sub(bytes).map(|address| address & !0xfff);
        let Some(address) = address.filter(|&address| address >= kernel.end) else {
            return Err(RunError::usage(format!(
                "initrd {}: its {} MiB do not fit behind the kernel, which ends at {} MiB of {}: give the guest more with --memory",
                path.display(),
                bytes.div_ceil(1 << 20),
                kernel.end.div_ceil(1 << 20),
                end >> 20
            )));
        };
        self.0
            .read_exact_volatile_from(GuestAddress(address), source, bytes as usize)
            .map_err(|error| initrd_error(path, std::io::Error::other(error.to_string())))?;
        Ok((address as u32, bytes as u32))
    }
}

fn initrd_error(path: &Path, error: std::io::Error) -> RunError {
    RunError::usage(format!("initrd {}: {error}", path.display()))
}

fn open(path: &Path) -> Result<File, RunError> {
    input::open(path, MAX_LINUX_MEMORY)
        .map_err(|error| RunError::usage(format!("{}: {error}", path.display())))
}

/// Whether an ELF kernel takes no longer to load than its file is long: the loader copies what each of its program headers
/// names, of which 65,535 can name the same bytes, and reads notes one by one.
fn check_elf<F: Read + Seek>(file: &mut F) -> std::io::Result<()> {
    /// Ten times as many as kernels have.
    const MOST_HEADERS: usize = 64;
    const MOST_NOTES: u64 = 1 << 20;
    const LOADABLE: u32 = 1;
    const NOTE: u32 = 4;
    let bytes = file.seek(SeekFrom::End(0))?;
    file.rewind()?;
    let mut header = [0; 64];
    file.read_exact(&mut header)?;
    let word =
        |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let count = usize::from(u16::from_le_bytes([header[56], header[57]]));
    if count > MOST_HEADERS {
        return Err(std::io::Error::other(format!(
            "it has {count} program headers, and {MOST_HEADERS} are the most"
        )));
    }
    file.seek(SeekFrom::Start(word(&header, 32)))?;
    let (mut loaded, mut notes) = (0_u64, 0_u64);
    for _ in 0..count {
        let mut header = [0; 56];
        file.read_exact(&mut header)?;
        let sum = match u32::from_le_bytes([header[0], header[1], header[2], header[3]]) {
            LOADABLE => &mut loaded,
            NOTE => &mut notes,
            _ => continue,
        };
        *sum = sum.saturating_add(word(&header, 32));
    }
    if loaded > bytes || notes > MOST_NOTES {
        return Err(std::io::Error::other(
            "its program headers name more bytes than there are, or too many notes",
        ));
    }
    Ok(())
}

fn read_up_to<F: Read + Seek>(file: &mut F, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut read = 0;
    while read < buffer.len() {
        match file.read(&mut buffer[read..])? {
            0 => break,
            more => read += more,
        }
    }
    file.rewind()?;
    Ok(read)
}

/// Our own words and the user's, which have the last say.
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
pub(crate) mod fuzzed;

#[cfg(test)]
mod tests {
    use super::fuzzed::{bz_image, elf, loaded};
    use super::*;

    #[test]
    fn a_kernel_that_wants_more_than_all_addresses_has_no_room() {
        assert_eq!(
            loaded(&bz_image(HIGH_MEMORY, 1 << 20)).map(|kernel| kernel.end),
            Ok(HIGH_MEMORY + (1 << 20))
        );
        for (pref_address, init_size) in [(u64::MAX, 1), (u64::MAX - 0xfff, u32::MAX)] {
            let refused = loaded(&bz_image(pref_address, init_size)).map(|kernel| kernel.end).unwrap_err();
            assert!(refused.contains("unpacked it takes"), "{refused}");
        }
    }

    #[test]
    fn an_elf_kernel_is_not_loaded_more_often_than_it_is_long() {
        const LOADABLE: u32 = 1;
        const NOTE: u32 = 4;
        assert!(loaded(&elf(1, LOADABLE, 100)).is_ok());
        for (headers, kind, bytes) in
            [(u16::MAX, LOADABLE, 1), (60, LOADABLE, 3000), (2, LOADABLE, u64::MAX), (1, NOTE, 2 << 20)]
        {
            let refused = loaded(&elf(headers, kind, bytes)).map(|kernel| kernel.end).unwrap_err();
            assert!(refused.contains("program headers"), "{headers} of {bytes} bytes: {refused}");
        }
    }

    #[test]
    fn a_kernel_cut_short_or_flipped_anywhere_is_refused_or_loaded() {
        for whole in [bz_image(HIGH_MEMORY, 1 << 20), elf(3, 1, 64)] {
            let length = whole.len().min(1024);
            for at in 0..length {
                _ = loaded(&whole[..at]);
                let mut flipped = whole.clone();
                flipped[at] ^= 0xff;
                _ = loaded(&flipped);
            }
        }
    }
}
