//! Limits of debug information, checked before addr2line reads it: it calls itself once for each function that is inlined into
//! another, and reads what units and entries share once for each of them.

use addr2line::gimli::{self, DebugAbbrev, Dwarf, Reader, ReaderOffset as _, Section as _};
use object::{CompressionFormat, Object as _, ObjectSection as _};

/// Most entries of debug information inside each other. Compilers nest some dozens.
pub(super) const MOST_NESTED: isize = 400;

/// How often all of a file may be named: units of one module share a line program's names, functions their ranges.
const TIMES: usize = 8;

/// Most bytes that debug information may have for each byte of its file. Compilers' shrinks to a fourth or a fifth.
const MOST_GROWTH: u64 = 32;

/// Sections of debug information that a file holds compressed, each with its name.
#[derive(Clone, Debug)]
pub(crate) struct Inflated(Vec<(String, Vec<u8>)>);

impl Inflated {
    /// Of a file that holds none.
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

    /// The bytes of a section that was compressed.
    pub(crate) fn section(&self, name: &str) -> Option<&[u8]> {
        self.0.iter().find(|(found, _)| found == name).map(|(_, bytes)| &**bytes)
    }

    /// Number of bytes in all of them.
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
    use crate::image::made::nested::{CODE, SHAPE_BYTES, files_of_one_directory, nested, units_with_tables};
    use crate::image::symbols::Lines;

    #[test]
    fn units_may_share_a_table_but_not_parts_of_one() {
        assert!(Lines::of(&units_with_tables(100, 0), &Inflated::NOTHING).is_some(), "one table for all");
        assert!(
            Lines::of(&units_with_tables(100, SHAPE_BYTES), &Inflated::NOTHING).is_none(),
            "each begins inside another's"
        );
    }

    #[test]
    fn paths_that_fill_memory_are_not_read() {
        assert!(
            Lines::of(&files_of_one_directory(10, 100), &Inflated::NOTHING).is_some(),
            "a few short ones"
        );
        // 4 KiB of names stand for 4 MiB of paths.
        assert!(
            Lines::of(&files_of_one_directory(1000, 4096), &Inflated::NOTHING).is_none(),
            "many in a long one"
        );
    }

    #[test]
    fn functions_inlined_into_each_other_are_followed_to_a_bound() {
        // Inside the unit, which is inside nothing, and the function.
        let deepest = MOST_NESTED as usize - 1;
        let file = nested(deepest);
        let frames = Lines::of(&file, &Inflated::NOTHING).expect("it has lines").frames(CODE);
        assert_eq!((frames.len(), frames[0].to_string().as_str()), (deepest + 1, "a.c:7"));
        for depth in [deepest + 1, 300_000] {
            let file = nested(depth);
            let frames = Lines::of(&file, &Inflated::NOTHING).map(|lines| lines.frames(CODE).len());
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
