//! Names of guest addresses: functions and variables of the image, and the source lines that its code was made from.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use addr2line::gimli;
use object::{Object as _, ObjectSection as _, ObjectSymbol as _, SymbolKind};
use serde::Serialize;

use crate::host::text::printable;
use crate::image::debug_info::{self, Inflated};
use crate::image::segment::IMAGE_BASE;

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
    /// The symbols of an ELF file.
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

    /// These and others.
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
    /// The line table of an ELF file and what was compressed in it; `None` when it has none that can be read, or none within the
    /// limits of `debug_info`.
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
        if !debug_info::is_bounded(&dwarf, elf.len() + inflated.bytes()) {
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

impl fmt::Debug for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lines").finish_non_exhaustive()
    }
}

/// A path, cut off as names are; of the standard library, whose path holds the compiler's commit, from `core/` or its like.
fn source_file(path: &str) -> &str {
    let path = &path[..path.floor_char_boundary(MOST_NAME_BYTES)];
    path.strip_prefix("/rustc/").and_then(|path| path.split_once("/library/")).map_or(path, |(_, file)| file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::file::Image;

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
    fn code_is_traced_to_its_source_file_and_through_what_was_inlined() {
        let image = Image::embedded();
        let lines = image.lines().expect("the embedded image has line information");
        let work =
            image.symbols().iter().find(|symbol| symbol.name == "haltkick_guest::cpu::time::work_loop");
        let frames = lines.frames(work.expect("the work loop").address);
        assert_eq!(frames[0].file.as_deref(), Some("guest/src/cpu/time.rs"));

        let run = image
            .symbols()
            .iter()
            .find(|symbol| symbol.name.ends_with("calls::lock::<haltkick_guest::lock::locks::Tas>"));
        let run = run.expect("what a site calls to take the test-and-set lock");
        let frames: Vec<_> =
            (run.address..run.address + run.size).map(|address| lines.frames(address)).collect();
        let inlined = frames.iter().find(|frames| {
            let file = frames.first().and_then(|frame| frame.file.as_deref());
            frames.len() > 1 && file == Some("guest/locks/src/centralized/tas.rs")
        });
        let inlined = inlined.expect("the lock's own code is inlined there");
        assert!(inlined[0].function.as_deref().is_some_and(|name| name.starts_with("lock<")), "{inlined:?}");
        let outermost = inlined.last().expect("more than one");
        assert_eq!(outermost.file.as_deref(), Some("guest/src/lock/calls.rs"));
    }
}
