//! Source place of an instruction.

use std::collections::{BTreeMap, BTreeSet};

use haltkick_vmm::{Author, Disassembler, Frame, Image, OurGuest};

use crate::analysis::worst::{Heat, SourcePlace};

const LONGEST_INSTRUCTION: u64 = 15;

pub(super) struct Places<'a> {
    image: &'a Image,
    author: Author<'a>,
    disassembler: Disassembler,
    /// Instructions of the image that an object calls, with those of the object that do.
    callers: BTreeMap<u64, u64>,
    known: BTreeMap<u64, SourcePlace>,
}

impl<'a> Places<'a> {
    /// Places of `image`, as far as the lock that is `asked` for comes to them.
    pub(super) fn new(image: &'a Image, asked: OurGuest<'_>) -> Self {
        let lock = image.locks.iter().position(|lock| lock.name == asked.ours.lock).unwrap_or(usize::MAX);
        Self {
            image,
            author: Author::new(image, lock, asked.guest.pv),
            disassembler: Disassembler::new(image),
            callers: BTreeMap::new(),
            known: BTreeMap::new(),
        }
    }

    /// Notes which instructions of an object have called others.
    pub(super) fn note(&mut self, callers: &BTreeMap<u64, u64>) {
        callers.iter().for_each(|(called, caller)| _ = self.callers.entry(*called).or_insert(*caller));
    }

    fn instruction(&mut self, address: u64) -> String {
        let code = (1..=LONGEST_INSTRUCTION).rev().find_map(|bytes| self.image.bytes_at(address, bytes));
        let decoded = self.disassembler.decode(code.unwrap_or_default(), address);
        decoded.into_iter().next().map_or_else(|| "(bad)".into(), |line| line.text)
    }

    pub(super) fn place(&mut self, address: u64) -> SourcePlace {
        if let Some(known) = self.known.get(&address) {
            return known.clone();
        }
        let taken_by = self.author.taken_by(address);
        let place = match taken_by {
            Some(function) => self.behind(function),
            None => {
                let (function, mut lines) = self.lines_of(address);
                let instruction = self.instruction(address);
                let nearest_point = self.nearest_point(&lines);
                let line = (!lines.is_empty()).then(|| lines.remove(0));
                let inlined_into = lines;
                SourcePlace { function, line, inlined_into, is_behind: false, instruction, nearest_point }
            }
        };
        self.known.insert(address, place.clone());
        place
    }

    /// The place behind a call of a function that has taken the lock.
    fn behind(&self, function: u64) -> SourcePlace {
        let line = self.author.first_line(function);
        let symbol = self.image.symbols().at(function).map(|(symbol, _)| symbol.short_name());
        SourcePlace {
            function: line.as_ref().and_then(|frame| frame.function.clone()).or(symbol).unwrap_or_default(),
            line: line.map(|frame| frame.to_string()),
            is_behind: true,
            instruction: "the first one in the section".into(),
            ..SourcePlace::default()
        }
    }

    /// The function of the lock that the code at an address belongs to, and its line with those that it was inlined into. Code of
    /// others that an object calls is shown where the object does.
    fn lines_of(&self, address: u64) -> (String, Vec<String>) {
        let at = *self.callers.get(&address).unwrap_or(&address);
        let symbol = self.image.symbols().describe(at);
        let of_author = self.of_author(address);
        let has_line = |frame: &&Frame| frame.line.is_some_and(|line| line > 0);
        let other = || {
            let frames = self.author.all_frames(at);
            frames.iter().filter(has_line).find(|frame| !frame.is_library()).cloned()
        };
        let chain = if of_author.is_empty() { other().into_iter().collect() } else { of_author };
        let function = chain.first().and_then(|frame| frame.function.clone()).unwrap_or(symbol);
        (function, chain.iter().map(ToString::to_string).collect())
    }

    /// The author's part of what the code at an address belongs to, or what has called it.
    fn of_author(&self, address: u64) -> Vec<Frame> {
        self.author.frames(*self.callers.get(&address).unwrap_or(&address))
    }

    /// The named point nearest to the innermost of `lines` whose file has points.
    fn nearest_point(&self, lines: &[String]) -> Option<String> {
        lines.iter().filter(|_| self.image.is_embedded()).find_map(|line| {
            let (file, number) = line.rsplit_once(':')?;
            nearest_point(Image::embedded_source(file)?, number.parse().ok()?)
        })
    }

    /// All instructions of the functions that those in `reached` belong to, for a map.
    pub(super) fn map(&mut self, reached: &BTreeSet<u64>) -> Vec<Heat> {
        let mut all = BTreeSet::new();
        for address in reached {
            let Some((symbol, _)) = self.image.symbols().at(*address) else { continue };
            if all.contains(address) {
                continue;
            }
            let Some(code) = self.image.bytes_at(symbol.address, symbol.size) else { continue };
            let decoded = self.disassembler.decode(code, symbol.address);
            let is_code = |text: &str| !["int3", "nop", "ud2"].iter().any(|other| text.starts_with(other));
            all.extend(decoded.iter().filter(|line| is_code(&line.text)).map(|line| line.address));
        }
        let heat = |address| {
            let (place, is_reached) = (self.place(address), reached.contains(&address));
            Heat { address, place, is_reached, lost: None }
        };
        all.into_iter().map(heat).collect()
    }

    /// Source lines of the lock on `map` of which nothing was executed.
    pub(super) fn unreached_lines(&self, map: &[Heat]) -> Vec<String> {
        let lines = |is_reached: bool| -> BTreeSet<String> {
            let those = map.iter().filter(|heat| heat.is_reached == is_reached);
            those.filter_map(|heat| Some(self.of_author(heat.address).first()?.to_string())).collect()
        };
        lines(false).difference(&lines(true)).cloned().collect()
    }
}

/// Name of the point in a source's `text` nearest to a line, counted from 1, with its distance.
fn nearest_point(text: &str, line: usize) -> Option<String> {
    let points = text.lines().zip(1_usize..).filter_map(|(source, at)| {
        let (_, rest) = source.split_once(".point(Point::")?;
        Some((at.abs_diff(line), at, rest.split_once(')')?.0))
    });
    let (distance, at, name) = points.min()?;
    let way = match at.cmp(&line) {
        std::cmp::Ordering::Equal => return Some(kebab(name)),
        std::cmp::Ordering::Less => "above",
        std::cmp::Ordering::Greater => "below",
    };
    let lines = if distance == 1 { "line" } else { "lines" };
    Some(format!("{}, {distance} {lines} {way}", kebab(name)))
}

/// A name like `TailPublished` as `tail-published`.
fn kebab(name: &str) -> String {
    let parted = name.chars().flat_map(|letter| {
        let dash = letter.is_ascii_uppercase().then_some('-');
        dash.into_iter().chain([letter.to_ascii_lowercase()])
    });
    parted.skip(1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_point_is_named_with_its_distance() {
        let text =
            "a\n  platform.point(Point::TailPublished);\nb\nc\n  d.platform.point(Point::HandedOver);\n";
        for (line, point) in [
            (1, "tail-published, 1 line below"),
            (2, "tail-published"),
            (3, "tail-published, 1 line above"),
            (4, "handed-over, 1 line below"),
            (9, "handed-over, 4 lines above"),
        ] {
            assert_eq!(nearest_point(text, line).as_deref(), Some(point));
        }
        assert_eq!(nearest_point("no point here", 1), None);
    }
}
