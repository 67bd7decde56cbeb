//! Names of guest addresses: functions and variables of the image, and the source lines that its code was made from.
//!
//! Debug information is checked for its limits before addr2line reads it, which calls itself once for each function that is inlined into
//! another, and reads what units and entries share once for each of them.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use addr2line::gimli::{self, DebugAbbrev, Dwarf, Reader, ReaderOffset as _, Section as _};
use object::{CompressionFormat, Object as _, ObjectSection as _, ObjectSymbol as _, SymbolKind};
use serde::Serialize;

use crate::host::text::printable;
use crate::image::IMAGE_BASE;

/// Most bytes that the names of a file take, made readable. Any number of symbols may share a long name in the file, and a short
/// one may stand for a long one; what is beyond has no name.
const MOST_BYTES: usize = 64 << 20;

/// Most bytes of one name: every frame of every sampled instruction may have it.
const MOST_NAME_BYTES: usize = 4096;

/// A function or variable of the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Address of the symbol.
    pub address: u64,
    /// Its length in bytes; 0 for a bare label.
    pub size: u64,
    /// Its name, demangled and without hashes.
    pub name: String,
    /// Whether it is code.
    pub is_function: bool,
}

/// All symbols of an image.
#[derive(Debug, Default)]
pub struct Symbols {
    /// Sorted by address; of several at one address, the longest last.
    sorted: Vec<Symbol>,
}

impl Symbols {
    pub(crate) fn of(file: &object::File<'_>) -> Self {
        let mut left = MOST_BYTES;
        let mut sorted: Vec<_> = file
            .symbols()
            .filter(|symbol| symbol.is_definition() && symbol.address() >= IMAGE_BASE)
            .filter_map(|symbol| {
                let name = demangle(symbol.name().ok()?);
                let is_function = symbol.kind() == SymbolKind::Text;
                Some(Symbol { address: symbol.address(), size: symbol.size(), name, is_function })
            })
            .take_while(|symbol| {
                let room = left.checked_sub(size_of_val(symbol) + symbol.name.len());
                left = room.unwrap_or(0);
                room.is_some()
            })
            .collect();
        sorted.sort_by_key(|symbol| (symbol.address, symbol.size));
        Self { sorted }
    }

    /// Marks these symbols as those of a lock object.
    pub(crate) fn of_object(mut self, object: &str) -> Self {
        self.sorted.retain(|symbol| !symbol.name.is_empty());
        self.sorted.iter_mut().for_each(|symbol| symbol.name = format!("{object}: {}", symbol.name));
        self
    }

    pub(crate) fn with(mut self, others: impl Iterator<Item = Self>) -> Self {
        self.sorted.extend(others.flat_map(|other| other.sorted));
        self.sorted.sort_by_key(|symbol| (symbol.address, symbol.size));
        self
    }

    /// All of them, by address.
    pub fn iter(&self) -> impl Iterator<Item = &Symbol> {
        self.sorted.iter()
    }

    /// The functions in the format in which `perf` reads `/tmp/perf-PID.map`: code of a process that no file holds.
    #[must_use]
    pub fn perf_map(&self) -> String {
        let line = |symbol: &Symbol| format!("{:x} {:x} {}\n", symbol.address, symbol.size, symbol.name);
        self.iter().filter(|symbol| symbol.is_function && symbol.size > 0).map(line).collect()
    }

    /// The one that `address` lies in, and how far inside. A bare label reaches to the next symbol.
    #[must_use]
    pub fn at(&self, address: u64) -> Option<(&Symbol, u64)> {
        let after = self.sorted.partition_point(|symbol| symbol.address <= address);
        let symbol = self.sorted[..after].last()?;
        let end = match symbol.size {
            0 => self.sorted.get(after).map_or(symbol.address.saturating_add(1), |next| next.address),
            size => symbol.address.saturating_add(size),
        };
        (address < end).then_some((symbol, address - symbol.address))
    }

    /// `symbol+offset (address)` for an address in the image, else the bare address.
    #[must_use]
    pub fn describe(&self, address: u64) -> String {
        match self.at(address) {
            Some((symbol, offset)) => format!("{}+{offset:#x} ({address:#x})", symbol.short_name()),
            None => format!("{address:#x}"),
        }
    }
}

impl Symbol {
    /// The name without most of its module paths: `critical_section::run::<Mcs>`.
    #[must_use]
    pub fn short_name(&self) -> String {
        shorten(&self.name)
    }
}

/// A name as people read it, cut off where it is longer than any can be read.
fn demangle(name: &str) -> String {
    let name = &name[..name.floor_char_boundary(MOST_NAME_BYTES)];
    printable(&format!("{:#}", rustc_demangle::demangle(name)))
}

/// Keeps the last two parts of the path that a name begins with and the last part of every path inside it.
fn shorten(name: &str) -> String {
    let mut short = String::with_capacity(name.len());
    let mut rest = name;
    while !rest.is_empty() {
        let end = rest
            .char_indices()
            .find(|&(_, c)| !(c.is_alphanumeric() || "_:{}#".contains(c)))
            .map_or(rest.len(), |(at, _)| at);
        let (path, after) = rest.split_at(end);
        // `run::` before `<`: the separator belongs to what follows.
        let (path, trailer) = path.strip_suffix("::").map_or((path, ""), |path| (path, "::"));
        let keep = if short.is_empty() { 2 } else { 1 };
        let parts: Vec<&str> = path.split("::").collect();
        // After `>::` a path goes on where it was: nothing of it is left out.
        let from = if path.starts_with("::") { 0 } else { parts.len().saturating_sub(keep) };
        short.push_str(&parts[from..].join("::"));
        short.push_str(trailer);
        let separator = after.char_indices().nth(1).map_or(after.len(), |(at, _)| at);
        short.push_str(&after[..separator]);
        rest = &after[separator..];
    }
    short
}

/// One function that code at an address belongs to: the one that it was inlined from, or the one that holds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Frame {
    /// Its name as the debug information has it; images with line tables alone have few names that were not inlined.
    pub function: Option<String>,
    /// Source file, from the root of the workspace where it lies there.
    pub file: Option<String>,
    /// Line in that file.
    pub line: Option<u32>,
}

impl Frame {
    /// Whether it is code of the standard library: seldom where anybody looks for a fault.
    #[must_use]
    pub fn is_library(&self) -> bool {
        self.file.as_ref().is_some_and(|file| file.starts_with("core/") || file.starts_with("alloc/"))
    }
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.file, self.line) {
            (Some(file), Some(line)) => write!(f, "{file}:{line}"),
            (Some(file), None) => f.write_str(file),
            _ => f.write_str("(no line information)"),
        }
    }
}

type Slice<'a> = gimli::EndianSlice<'a, gimli::LittleEndian>;

/// The line table of an image. Making one costs milliseconds: make it when something is to be explained.
pub struct Lines<'a> {
    context: addr2line::Context<Slice<'a>>,
    /// The symbols of lock objects, each for the addresses of its object.
    of_objects: Vec<(Range<u64>, Self)>,
}

impl<'a> Lines<'a> {
    /// The line table of an ELF file and what was compressed in it; `None` when it has none that can be read, or
    /// none within the limits of `is_bounded`.
    pub(crate) fn of(elf: &'a [u8], inflated: &'a Inflated) -> Option<Self> {
        let file = object::File::parse(elf).ok()?;
        let section = |id: gimli::SectionId| -> Result<Slice<'a>, gimli::Error> {
            let stored = || file.section_by_name(id.name()).and_then(|section| section.data().ok());
            let data = inflated.section(id.name()).or_else(stored);
            Ok(gimli::EndianSlice::new(data.unwrap_or_default(), gimli::LittleEndian))
        };
        let mut dwarf = gimli::Dwarf::load(section).ok()?;
        // Units of one module share a table, which is read once then.
        dwarf.populate_abbreviations_cache(gimli::AbbreviationsCacheStrategy::Duplicates);
        if !is_bounded(&dwarf, elf.len() + inflated.bytes()) {
            return None;
        }
        Some(Self { context: addr2line::Context::from_dwarf(dwarf).ok()?, of_objects: vec![] })
    }

    /// These and those of files which lie at other addresses. One that has none is left out.
    pub(crate) fn with(mut self, files: impl Iterator<Item = (Range<u64>, &'a [u8])>) -> Self {
        // Relocations have been applied to them, which none that is compressed can take.
        static STORED: Inflated = Inflated::NOTHING;
        let lines = files.filter_map(|(addresses, file)| Some((addresses, Self::of(file, &STORED)?)));
        self.of_objects.extend(lines);
        self
    }

    /// The functions that the code at `address` belongs to, innermost first; empty when they are unknown.
    #[must_use]
    pub fn frames(&self, address: u64) -> Vec<Frame> {
        let mut theirs = self.of_objects.iter().filter(|(addresses, _)| addresses.contains(&address));
        if let Some(frames) =
            theirs.find_map(|(_, lines)| Some(lines.frames(address)).filter(|frames| !frames.is_empty()))
        {
            return frames;
        }
        let mut frames = Vec::new();
        // addr2line asks for the range up to the next address.
        if address == u64::MAX {
            return frames;
        }
        let Ok(mut found) = self.context.find_frames(address).skip_all_loads() else { return frames };
        while let Ok(Some(frame)) = found.next() {
            let name = frame.function.as_ref().and_then(|name| name.raw_name().ok());
            let location = frame.location.as_ref();
            frames.push(Frame {
                function: name.map(|name: Cow<'_, str>| shorten(&demangle(&name))),
                file: location.and_then(|location| location.file).map(|file| printable(source_file(file))),
                line: location.and_then(|location| location.line),
            });
        }
        frames
    }
}

/// A path, cut off as names are; of the standard library, whose path holds the compiler's commit, from `core/` or its like.
fn source_file(path: &str) -> &str {
    let path = &path[..path.floor_char_boundary(MOST_NAME_BYTES)];
    path.strip_prefix("/rustc/").and_then(|path| path.split_once("/library/")).map_or(path, |(_, file)| file)
}

/// Most entries of debug information inside each other. Compilers nest some dozens.
pub(super) const MOST_NESTED: isize = 400;

/// How often all of a file may be named: units of one module share a line program's names, functions their ranges.
const TIMES: usize = 8;

/// Most bytes that debug information may have for each byte of its file. That of the embedded image shrinks to a sixth.
const MOST_GROWTH: u64 = 32;

/// Sections of debug information that a file holds compressed, each with its name.
#[derive(Clone, Debug)]
pub(crate) struct Inflated(pub(super) Vec<(String, Vec<u8>)>);

impl Inflated {
    /// The sections of a file that compresses none.
    pub(crate) const NOTHING: Self = Self(Vec::new());

    /// Inflates what is compressed in a file. What is broken, or grows beyond bounds, is left out.
    pub(crate) fn of(elf: &[u8]) -> Self {
        let mut left = MOST_GROWTH.saturating_mul(elf.len() as u64);
        let mut inflated = |section: object::Section<'_, '_>| {
            let name = section.name().ok()?.to_owned();
            let data = section.compressed_data().ok()?;
            if data.format != CompressionFormat::Zlib {
                return None;
            }
            left = left.checked_sub(data.uncompressed_size)?;
            let limit = usize::try_from(data.uncompressed_size).ok()?;
            Some((name, miniz_oxide::inflate::decompress_to_vec_zlib_with_limit(data.data, limit).ok()?))
        };
        let file = object::File::parse(elf).ok();
        Self(file.iter().flat_map(|file| file.sections()).filter_map(&mut inflated).collect())
    }

    pub(crate) fn section(&self, name: &str) -> Option<&[u8]> {
        self.0.iter().find(|(found, _)| found == name).map(|(_, bytes)| &**bytes)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.0.iter().map(|(_, bytes)| bytes.len()).sum()
    }
}

/// Whether debug information of a file of `file_bytes` can be read with a bounded stack and in a time that is bounded by the
/// file's length.
pub(super) fn is_bounded<R: Reader>(dwarf: &Dwarf<R>, file_bytes: usize) -> bool {
    if !tables_are_apart(dwarf) {
        return false;
    }
    let mut left = file_bytes.saturating_mul(TIMES);
    let mut units = dwarf.units();
    while let Ok(Some(header)) = units.next() {
        // addr2line leaves out a unit whose head is broken.
        let Ok(unit) = dwarf.unit(header) else { continue };
        let unit = gimli::UnitRef::new(dwarf, &unit);
        // Behind what cannot be read, addr2line reads nothing either.
        if is_bounded_unit(unit, &mut left) == Ok(false) {
            return false;
        }
    }
    true
}

/// Whether each table of abbreviations that a unit names ends before the next such table begins. Each unit's table is read when
/// the unit is, so tables that overlap would take the square of their length.
fn tables_are_apart<R: Reader>(dwarf: &Dwarf<R>) -> bool {
    let mut starts = Vec::new();
    let mut units = dwarf.units();
    while let Ok(Some(header)) = units.next() {
        starts.push(header.debug_abbrev_offset().0);
    }
    starts.sort_unstable();
    starts.dedup();
    starts.windows(2).all(|pair| {
        let mut table = dwarf.debug_abbrev.reader().clone();
        // With a byte of the next table, since a table may end without its mark where all bytes end.
        let bytes = pair[1] - pair[0] + R::Offset::from_u8(1);
        let cut = table.skip(pair[0]).and_then(|()| table.truncate(bytes));
        cut.is_ok()
            && DebugAbbrev::from(table).abbreviations(gimli::DebugAbbrevOffset(R::Offset::from_u8(0))).is_ok()
    })
}

/// Whether a unit can be read so; `left` bytes may still be named.
fn is_bounded_unit<R: Reader>(unit: gimli::UnitRef<'_, R>, left: &mut usize) -> gimli::Result<bool> {
    let mut take = |bytes: u64| {
        let rest = usize::try_from(bytes).ok().and_then(|bytes| left.checked_sub(bytes));
        *left = rest.unwrap_or(0);
        rest.is_some()
    };
    if let Some(program) = &unit.line_program {
        let header = program.header();
        let bytes = header.raw_program_buf().len().into_u64() + header.header_length().into_u64();
        if !take(bytes) || !take_paths(unit, header, &mut take)? {
            return Ok(false);
        }
    }
    let mut entries = unit.entries_raw(None)?;
    while !entries.is_empty() {
        let depth = entries.next_depth();
        let Some(shape) = entries.read_abbreviation()? else { continue };
        if depth > MOST_NESTED {
            return Ok(false);
        }
        for &attribute in shape.attributes() {
            let attribute = entries.read_attribute(attribute)?;
            if attribute.name() != gimli::DW_AT_ranges {
                continue;
            }
            let Ok(Some(mut ranges)) = unit.attr_ranges(attribute.value()) else { continue };
            while let Ok(Some(_)) = ranges.next() {
                if !take(1) {
                    return Ok(false);
                }
            }
        }
    }
    Ok(true)
}

/// Takes the paths of a line program's files, each of which addr2line writes out: the unit's directory, the file's, and its name.
fn take_paths<R: Reader>(
    unit: gimli::UnitRef<'_, R>,
    header: &gimli::LineProgramHeader<R, R::Offset>,
    take: &mut impl FnMut(u64) -> bool,
) -> gimli::Result<bool> {
    let within = unit.comp_dir.as_ref().map_or(0, |directory| directory.len().into_u64());
    for file in header.file_names() {
        let directory = match file.directory(header) {
            Some(directory) => unit.attr_string(directory)?.len().into_u64(),
            None => 0,
        };
        let name = unit.attr_string(file.path_name())?.len().into_u64();
        if !take(within + directory + name) {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::file::Image;
    use crate::image::made::{CODE, ELF, SHAPE_BYTES, files_of_one_directory, nested, units_with_tables};

    #[test]
    fn names_keep_what_tells_functions_apart() {
        for (name, short) in [
            ("haltkick_start", "haltkick_start"),
            ("haltkick_guest::cpu::time::work", "time::work"),
            (
                "haltkick_guest::workloads::critical_section::run::<haltkick_guest::lock::locks::Mcs>",
                "critical_section::run::<Mcs>",
            ),
            (
                "<haltkick_locks::queued::mcs::Mcs as haltkick_locks::contract::lock::Lock<X>>::lock",
                "<Mcs as Lock<X>>::lock",
            ),
            ("<core::fmt::Formatter>::pad", "<Formatter>::pad"),
        ] {
            assert_eq!(shorten(name), short);
        }
    }

    #[test]
    fn every_symbol_is_found_at_its_first_and_last_byte() {
        let image = Image::embedded();
        for symbol in image.symbols().iter().filter(|symbol| symbol.size > 0) {
            let (first, at) = image.symbols().at(symbol.address).expect("its first byte");
            assert!(first.address == symbol.address && at == 0, "{symbol:?} {first:?}");
            assert!(image.symbols().at(symbol.address + symbol.size - 1).is_some(), "{symbol:?}");
        }
        assert_eq!(image.symbols().at(0), None);
        assert_eq!(image.symbols().at(u64::MAX), None);
    }

    #[test]
    fn symbols_that_would_reach_beyond_all_addresses_end_with_them() {
        for size in [0, 1, u64::MAX] {
            let symbol = Symbol { address: u64::MAX, size, name: "last".into(), is_function: true };
            let symbols = Symbols { sorted: vec![symbol] };
            assert_eq!(symbols.describe(u64::MAX - 1), "0xfffffffffffffffe");
            _ = symbols.describe(u64::MAX);
        }
    }

    #[test]
    fn debug_information_is_read_while_it_is_bounded() {
        for (what, debug, is_read) in [
            ("one table for all units", units_with_tables(100, 0), true),
            ("tables inside each other", units_with_tables(100, SHAPE_BYTES), false),
            ("a few short paths", files_of_one_directory(10, 100), true),
            // 4 KiB of names stand for 4 MiB of paths.
            ("many paths in a long one", files_of_one_directory(1000, 4096), false),
        ] {
            assert_eq!(Lines::of(&ELF, &debug).is_some(), is_read, "{what}");
        }
    }

    #[test]
    fn functions_inlined_into_each_other_are_followed_to_a_bound() {
        // Inside the unit, which is inside nothing, and the function.
        let deepest = MOST_NESTED as usize - 1;
        let debug = nested(deepest);
        let frames = Lines::of(&ELF, &debug).expect("it has lines").frames(CODE);
        assert_eq!((frames.len(), frames[0].to_string().as_str()), (deepest + 1, "a.c:7"));
        for depth in [deepest + 1, 300_000] {
            let debug = nested(depth);
            let frames = Lines::of(&ELF, &debug).map(|lines| lines.frames(CODE).len());
            assert_eq!(frames, None, "{depth} are too many");
        }
    }

    #[test]
    fn a_section_that_inflates_to_another_size_is_left_out() {
        const NAME: &str = ".debug_str";
        let elf = Image::embedded_elf();
        let file = object::File::parse(elf).unwrap();
        let section = file.section_by_name(NAME).unwrap();
        let (start, _) = section.file_range().unwrap();
        let size = section.compressed_data().unwrap().uncompressed_size;
        assert!(size > section.file_range().unwrap().1, "the build compresses it");
        let whole = Inflated::of(elf);
        assert_eq!(whole.section(NAME).map(<[u8]>::len), Some(size as usize));
        for (says, wrong) in [("less", size - 1), ("more than a file may grow to", u64::MAX)] {
            let mut edited = elf.to_vec();
            // Behind the kind of compression in the section's header.
            let field = start as usize + 8;
            edited[field..field + 8].copy_from_slice(&wrong.to_le_bytes());
            let inflated = Inflated::of(&edited);
            assert!(inflated.section(NAME).is_none(), "{says}");
            assert_eq!(inflated.0.len(), whole.0.len() - 1, "{says}: the others are read");
        }
    }
}
