//! The files that an object is made of, itself or the members of a static archive: the sections, symbols and relocations of each, with
//! every index and length checked.

use std::ops::Range;
use std::path::Path;

use object::read::RelocationTarget;
use object::read::archive::ArchiveFile;
use object::{
    Architecture, Object as _, ObjectKind, ObjectSection as _, ObjectSymbol as _, RelocationFlags,
    SectionFlags, SymbolFlags, SymbolKind, SymbolSection, elf,
};

use crate::host::text::printable;

/// Bytes of an entry of a symbol table; its value lies behind the first eight (ELF-64 object file format).
pub(super) const SYMBOL_BYTES: usize = 24;

/// How much of what a file names may be copied out of it: nothing keeps its headers from naming the same bytes any number of
/// times, while what a compiler makes holds each of them once.
pub(super) struct Room {
    name_bytes: usize,
    relocations: usize,
}

impl Room {
    /// A relocation of the usual kind takes 24 bytes in the file, of the densest one a few.
    const LEAST_BYTES_OF_RELOCATION: usize = 8;
    /// A function, its section and that of its relocations have names that end alike, and are in the file once.
    const NAMES_OF_EACH: usize = 4;
    const MOST_NAME_BYTES: usize = 256 << 20;
    pub(super) const USED_UP: &str = "its headers name the same bytes again and again";

    pub(super) fn of(file_bytes: usize) -> Self {
        let name_bytes = (file_bytes * Self::NAMES_OF_EACH).min(Self::MOST_NAME_BYTES);
        Self { name_bytes, relocations: file_bytes / Self::LEAST_BYTES_OF_RELOCATION }
    }

    /// A name; `None` once they are longer than all may be.
    fn name(&mut self, name: &str) -> Option<String> {
        self.take_name(name.len())?;
        Some(printable(name))
    }

    /// Takes room for a name of `bytes` bytes; `None` once they are longer than all may be.
    pub(super) fn take_name(&mut self, bytes: usize) -> Option<()> {
        self.name_bytes = self.name_bytes.checked_sub(bytes)?;
        Some(())
    }
}

/// A relocatable file.
#[derive(Debug)]
pub(super) struct Member {
    /// The file. The linker puts addresses into it, so that it can be asked for its symbols and lines.
    pub(super) bytes: Vec<u8>,
    /// By their index.
    pub(super) sections: Vec<Section>,
    pub(super) symbols: Vec<Symbol>,
    /// Place of the symbol table in the file; empty: there is none.
    pub(super) symbol_table: Range<usize>,
}

/// A section of a member, by their numbers. A symbol of a member is a pair of numbers, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct SectionId {
    pub(super) member: usize,
    pub(super) section: usize,
}

#[derive(Debug, Default)]
pub(super) struct Section {
    pub(super) name: String,
    flags: u64,
    /// Its bytes in the file; empty for one that is all zeros.
    pub(super) file: Range<usize>,
    pub(super) size: u64,
    pub(super) align: u64,
    pub(super) relocations: Vec<Relocation>,
    /// Functions that a program calls before `main`: addresses of them, or their code.
    pub(super) is_of_constructors: bool,
}

/// A place in a section that depends on where something else lies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Relocation {
    pub(super) at: u64,
    pub(super) kind: u32,
    pub(super) symbol: usize,
    pub(super) addend: i64,
}

/// How a relocation is computed (System V ABI, AMD64 supplement, 4.4.1): S + A in as many bytes.
#[derive(Clone, Copy, Default)]
pub(super) struct Kind {
    pub(super) bytes: usize,
    /// The value is the distance from the place (`- P` of the ABI). A call of what is near needs no PLT.
    is_relative: bool,
    /// The processor extends its four bytes by zeros, and not by their sign.
    is_unsigned: bool,
    /// The address of a word that holds S stands for S.
    pub(super) is_through_table: bool,
}

impl Kind {
    pub(super) fn of(kind: u32) -> Result<Self, String> {
        let relative = |bytes| Self { bytes, is_relative: true, ..Self::default() };
        Ok(match kind {
            0 => Self::default(),
            1 => Self { bytes: 8, ..Self::default() },
            2 | 4 => relative(4),
            10 => Self { bytes: 4, is_unsigned: true, ..Self::default() },
            11 => Self { bytes: 4, ..Self::default() },
            24 => relative(8),
            9 | 41 | 42 => Self { is_through_table: true, ..relative(4) },
            // TLS in its four models, and descriptors.
            16..=23 | 34..=36 => {
                return Err("has a thread-local variable, and there are no threads: use HK_PERCPU".into());
            }
            _ => {
                return Err(format!(
                    "has a relocation of type {kind}, which is not supported: compile with -fno-pic -mcmodel=small"
                ));
            }
        })
    }

    /// Returns the value to write at `place`, where `symbol` stands for S, or `None` if it does not fit.
    pub(super) fn value(self, place: u64, symbol: u64, addend: i64) -> Option<u64> {
        let from = if self.is_relative { place } else { 0 };
        let value = symbol.wrapping_add_signed(addend).wrapping_sub(from);
        match self.bytes {
            4 if self.is_unsigned => u32::try_from(value).ok().map(u64::from),
            4 => i32::try_from(value.cast_signed()).ok().map(|it| u64::from(it.cast_unsigned())),
            _ => Some(value),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Symbol {
    pub(super) name: String,
    pub(super) place: SymbolPlace,
    /// Offset in its section, or the number that it stands for; for a common one its alignment.
    pub(super) value: u64,
    pub(super) size: u64,
    pub(super) is_global: bool,
    pub(super) is_weak: bool,
    pub(super) is_section: bool,
    pub(super) is_function: bool,
    /// Its code returns the address of the function, which a linker or loader would call (STT_GNU_IFUNC).
    pub(super) is_indirect: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SymbolPlace {
    Elsewhere,
    Number,
    /// In zeros that the linker creates.
    Common,
    Section(usize),
    #[default]
    Nowhere,
}

impl Section {
    pub(super) fn has(&self, flag: elf::SectionFlags) -> bool {
        self.flags & flag.0 != 0
    }

    pub(super) fn is_executable(&self) -> bool {
        self.has(elf::SHF_ALLOC) && self.has(elf::SHF_EXECINSTR)
    }

    pub(super) fn is_zero(&self) -> bool {
        self.file.is_empty()
    }

    /// Whether a debugger reads the section: not loaded, but with addresses in it.
    pub(super) fn is_debug(&self) -> bool {
        !self.has(elf::SHF_ALLOC) && !self.has(elf::SHF_COMPRESSED) && self.name.starts_with(".debug_")
    }
}

impl Member {
    pub(super) fn read(bytes: Vec<u8>) -> Result<Self, String> {
        const BITCODE: [&[u8]; 2] = [b"BC\xc0\xde", b"\xde\xc0\x17\x0b"];
        if BITCODE.iter().any(|magic| bytes.starts_with(magic)) {
            return Err("is LLVM bitcode, which is no machine code yet: compile without -flto".into());
        }
        let Ok(file) = object::File::parse(&*bytes) else {
            return Err(
                "is no object file: give what `cc -c` makes of a lock, or a static archive of that".into()
            );
        };
        check_kind(&file)?;
        let mut room = Room::of(bytes.len());
        let (sections, symbol_table) = sections(&file, &mut room)?;
        if sections.iter().any(|section| section.name.starts_with(".gnu.lto_"))
            && !sections.iter().any(|section| section.is_executable() && section.size > 0)
        {
            return Err(
                "is GCC's intermediate code, which is no machine code yet: compile without -flto".into()
            );
        }
        let mut symbols = symbols(&file, sections.len(), &mut room).map_err(broken)?;
        // The parser has no address for these: it is an alignment.
        for (symbol, entry) in symbols.iter_mut().zip(bytes[symbol_table.clone()].chunks_exact(SYMBOL_BYTES))
        {
            if symbol.place == SymbolPlace::Common {
                symbol.value = u64::from_le_bytes(entry[8..16].try_into().expect("eight bytes"));
            }
        }
        Ok(Self { symbols, sections, symbol_table, bytes })
    }

    /// The bytes of a section; none of one that is all zeros.
    pub(super) fn data(&self, section: usize) -> &[u8] {
        &self.bytes[self.sections[section].file.clone()]
    }

    /// `hk_unlock+0x31`, for a place in a section.
    pub(super) fn describe(&self, section: usize, offset: u64) -> String {
        let begins_before = |symbol: &&Symbol| {
            symbol.place == SymbolPlace::Section(section)
                && symbol.value <= offset
                && !symbol.name.is_empty()
                && !symbol.is_section
        };
        match self
            .symbols
            .iter()
            .filter(begins_before)
            .max_by_key(|symbol| (symbol.value, symbol.is_function))
        {
            Some(symbol) => {
                let name = format!("{:#}", rustc_demangle::demangle(&symbol.name));
                format!("{}+{:#x}", printable(&name), offset - symbol.value)
            }
            None => format!("{}+{offset:#x}", self.sections[section].name),
        }
    }
}

fn check_kind(file: &object::File<'_>) -> Result<(), String> {
    let architecture = file.architecture();
    if architecture != Architecture::X86_64 || !file.is_little_endian() {
        let order = if file.is_little_endian() { "" } else { ", big-endian" };
        return Err(format!("is compiled for {architecture:?}{order}, and the guest is x86-64"));
    }
    match file.kind() {
        ObjectKind::Relocatable => Ok(()),
        ObjectKind::Executable | ObjectKind::Dynamic => {
            Err("is linked already: give what the compiler makes with -c".into())
        }
        _ => Err("is no relocatable object: give what the compiler makes with -c".into()),
    }
}

fn broken(what: &str) -> String {
    format!("is broken: {what}")
}

/// By their index; and where in the file the symbol table lies.
fn sections(file: &object::File<'_>, room: &mut Room) -> Result<(Vec<Section>, Range<usize>), String> {
    let mut sections: Vec<Section> = Vec::new();
    let mut symbol_table = 0..0;
    for section in file.sections() {
        let name = section.name().map_err(|_| broken("a section has no name"))?;
        let name = room.name(name).ok_or_else(|| broken(Room::USED_UP))?;
        let SectionFlags::Elf { sh_type, sh_flags } = section.flags() else {
            return Err(broken("it is no ELF file"));
        };
        let file_range = if sh_type == elf::SHT_NOBITS {
            0..0
        } else {
            let data = section.data().map_err(|_| broken("a section is cut short"))?;
            // An empty section may state any place.
            let start = section.file_range().filter(|_| !data.is_empty());
            let start = start.map_or(0, |(start, _)| start as usize);
            start..start + data.len()
        };
        if sh_type == elf::SHT_SYMTAB {
            symbol_table = file_range.clone();
        }
        let index = section.index().0;
        sections.resize_with(sections.len().max(index + 1), Section::default);
        let relocations = relocations(&section, sh_type, room).ok_or_else(|| broken(Room::USED_UP))?;
        let is_of_constructors = section.size() > 0 && holds_constructors(&name, sh_type);
        sections[index] = Section {
            name,
            flags: sh_flags.0,
            file: file_range,
            size: section.size(),
            align: section.align().max(1),
            relocations,
            is_of_constructors,
        };
    }
    Ok((sections, symbol_table))
}

/// Whether linkers and C libraries have the functions of a section called before `main`.
fn holds_constructors(name: &str, kind: elf::SectionType) -> bool {
    const NAMES: [&str; 4] = [".preinit_array", ".init_array", ".ctors", ".init"];
    // A priority may follow the name.
    let is_named =
        |known: &str| name.strip_prefix(known).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    matches!(kind, elf::SHT_INIT_ARRAY | elf::SHT_PREINIT_ARRAY) || NAMES.into_iter().any(is_named)
}

/// The places of a section that depend on others; `None`: all sections have more than the file has room for. Those that hold
/// them have none.
fn relocations<'a>(
    section: &impl object::ObjectSection<'a>,
    kind: elf::SectionType,
    room: &mut Room,
) -> Option<Vec<Relocation>> {
    if matches!(kind, elf::SHT_REL | elf::SHT_RELA | elf::SHT_CREL) {
        return Some(vec![]);
    }
    let relocation = |(at, relocation): (u64, object::Relocation)| {
        let RelocationFlags::Elf { r_type } = relocation.flags() else { return None };
        let symbol = match relocation.target() {
            RelocationTarget::Symbol(symbol) => symbol.0,
            // Symbol 0, which stands for nothing.
            _ => 0,
        };
        Some(Relocation { at, kind: r_type.0, symbol, addend: relocation.addend() })
    };
    let most = room.relocations;
    let relocations: Vec<_> = section.relocations().filter_map(relocation).take(most + 1).collect();
    room.relocations = most.checked_sub(relocations.len())?;
    Some(relocations)
}

/// By their index.
fn symbols(file: &object::File<'_>, sections: usize, room: &mut Room) -> Result<Vec<Symbol>, &'static str> {
    let mut symbols = vec![Symbol::default()];
    for symbol in file.symbols() {
        let place = match symbol.section() {
            SymbolSection::Undefined => SymbolPlace::Elsewhere,
            SymbolSection::Absolute => SymbolPlace::Number,
            SymbolSection::Common => SymbolPlace::Common,
            SymbolSection::Section(index) if index.0 < sections => SymbolPlace::Section(index.0),
            SymbolSection::Section(_) => return Err("a symbol is in no section"),
            _ => SymbolPlace::Nowhere,
        };
        let index = symbol.index().0;
        symbols.resize_with(symbols.len().max(index + 1), Symbol::default);
        symbols[index] = Symbol {
            name: room.name(symbol.name().unwrap_or_default()).ok_or(Room::USED_UP)?,
            place,
            value: symbol.address(),
            size: symbol.size(),
            is_global: symbol.is_global(),
            is_weak: symbol.is_weak(),
            is_section: symbol.kind() == SymbolKind::Section,
            is_function: symbol.kind() == SymbolKind::Text,
            is_indirect: matches!(symbol.flags(), SymbolFlags::Elf { st_info, .. } if st_info.st_type() == elf::STT_GNU_IFUNC),
        };
    }
    Ok(symbols)
}

/// The name of an object in messages: that of its file.
pub(super) fn name_of(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |name| printable(&name.to_string_lossy()))
}

/// The members of a file that holds `bytes`.
pub(super) fn members_of(bytes: Vec<u8>) -> Result<Vec<Member>, String> {
    if bytes.starts_with(b"!<thin>\n") {
        return Err(
            "is a thin archive, which holds names of files and not the files: make it without T".into()
        );
    }
    if !bytes.starts_with(b"!<arch>\n") {
        return Ok(vec![Member::read(bytes)?]);
    }
    let broken = |_| "is a broken archive".to_owned();
    let archive = ArchiveFile::parse(&*bytes).map_err(broken)?;
    let mut members = Vec::new();
    let mut room = Room::of(bytes.len());
    for member in archive.members() {
        let member = member.map_err(broken)?;
        // The parser reads each name to its end, and members may share a long one.
        room.take_name(member.name().len()).ok_or_else(|| format!("is broken: {}", Room::USED_UP))?;
        let data = member.data(&*bytes).map_err(broken)?;
        let inside = printable(&String::from_utf8_lossy(member.name()));
        // Members that compilers add to their archives hold no code: Rust's metadata.
        if !inside.ends_with(".o") {
            continue;
        }
        let read = Member::read(data.to_vec());
        members.push(read.map_err(|reason| format!("has a member {inside} that {reason}"))?);
    }
    match members.is_empty() {
        true => Err("is an archive without object files".into()),
        false => Ok(members),
    }
}
