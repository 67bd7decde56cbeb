//! Source place of an instruction.

use std::collections::{BTreeMap, BTreeSet};

use haltkick_vmm::{Disassembler, Frame, Image, Lines, OurGuest, RunError};

use crate::analysis::worst::{Heat, SOURCES, SourcePlace};

/// The longest instruction.
const LONGEST_INSTRUCTION: u64 = 15;

pub(super) struct Places<'a> {
    image: &'a Image,
    lines: Option<Lines<'a>>,
    disassembler: Disassembler,
    /// Code that is rewritten before the run, where it begins.
    rewritten: Vec<(u64, Vec<u8>)>,
    known: BTreeMap<u64, SourcePlace>,
}

impl<'a> Places<'a> {
    /// Places of `image` with the call sites of a lock's form rewritten, if `patch`.
    pub(super) fn new(image: &'a Image, asked: OurGuest<'_>) -> Result<Self, RunError> {
        let lock = image.locks.iter().position(|lock| lock.name == asked.ours.lock);
        let lock = lock.filter(|_| asked.ours.patch);
        let edits = lock.map_or(Ok(vec![]), |lock| image.edits(lock, asked.guest.pv))?;
        let rewritten = edits.into_iter().map(|edit| (edit.address, edit.after)).collect();
        let (lines, disassembler) = (image.lines(), Disassembler::new(image));
        Ok(Self { image, lines, disassembler, rewritten, known: BTreeMap::new() })
    }

    /// The instruction at an address.
    fn instruction(&mut self, address: u64) -> String {
        let at = |(start, code): &&(u64, Vec<u8>)| (*start..*start + code.len() as u64).contains(&address);
        let rewritten =
            self.rewritten.iter().find(at).map(|(start, code)| &code[(address - start) as usize..]);
        let built = || (1..=LONGEST_INSTRUCTION).rev().find_map(|bytes| self.image.bytes_at(address, bytes));
        let code = rewritten.or_else(built).unwrap_or_default();
        let decoded = self.disassembler.decode(code, address);
        decoded.into_iter().next().map_or_else(|| "(bad)".into(), |line| line.text)
    }

    /// Source place of the instruction at an address.
    pub(super) fn place(&mut self, address: u64) -> SourcePlace {
        if let Some(known) = self.known.get(&address) {
            return known.clone();
        }
        let (function, mut lines) = self.lines_of(address);
        let instruction = self.instruction(address);
        let nearest_point = self.nearest_point(&lines);
        let line = (!lines.is_empty()).then(|| lines.remove(0));
        let place = SourcePlace { function, line, inlined_into: lines, instruction, nearest_point };
        self.known.insert(address, place.clone());
        place
    }

    /// The function that the code at an address comes from, and its line with those that it was inlined into: of code of others that
    /// was inlined into a lock, the lock's.
    fn lines_of(&self, address: u64) -> (String, Vec<String>) {
        let symbol = self.image.symbols().describe(address);
        let frames = self.lines.as_ref().map(|lines| lines.frames(address)).unwrap_or_default();
        let has_line = |frame: &&Frame| frame.line.is_some_and(|line| line > 0);
        let is_lock = |frame: &&Frame| {
            frame.file.as_ref().is_some_and(|file| SOURCES.iter().any(|folder| file.starts_with(folder)))
        };
        let of_lock: Vec<&Frame> = frames.iter().filter(is_lock).filter(has_line).collect();
        let other = || frames.iter().filter(has_line).find(|frame| !frame.is_library());
        let chain = if of_lock.is_empty() { other().into_iter().collect() } else { of_lock };
        let function = chain.first().and_then(|frame| frame.function.clone()).unwrap_or(symbol);
        (function, chain.into_iter().map(ToString::to_string).collect())
    }

    /// The named point nearest to the innermost of `lines` whose file has points.
    fn nearest_point(&self, lines: &[String]) -> Option<String> {
        lines.iter().filter(|_| self.image.is_embedded()).find_map(|line| {
            let (file, number) = line.rsplit_once(':')?;
            nearest_point(Image::embedded_source(file)?, number.parse().ok()?)
        })
    }

    /// All instructions of the functions that those in `reached` belong to, for a map.
    pub(super) fn heat(&mut self, reached: &BTreeSet<u64>) -> Vec<Heat> {
        let all = self.all_near(reached);
        let each = all.into_iter().map(|address| Heat {
            address,
            place: self.place(address),
            is_reached: reached.contains(&address),
            lost: None,
        });
        each.collect()
    }

    /// All instructions of the functions that those in `reached` belong to.
    pub(super) fn all_near(&mut self, reached: &BTreeSet<u64>) -> Vec<u64> {
        let mut all = BTreeSet::new();
        for address in reached {
            let Some((symbol, _)) = self.image.symbols().at(*address) else { continue };
            if all.contains(address) {
                continue;
            }
            let Some(code) = self.image.bytes_at(symbol.address, symbol.size) else { continue };
            let decoded = self.disassembler.decode(code, symbol.address);
            let is_code = |text: &str| {
                !text.starts_with("int3") && !text.starts_with("nop") && !text.starts_with("ud2")
            };
            all.extend(decoded.iter().filter(|line| is_code(&line.text)).map(|line| line.address));
        }
        all.into_iter().collect()
    }

    /// Source lines of `all` of which nothing is in `reached`.
    pub(super) fn unreached_lines(&self, all: &[u64], reached: &BTreeSet<u64>) -> Vec<String> {
        let (mut seen, mut unseen) = (BTreeSet::new(), BTreeSet::new());
        for address in all {
            if let Some(line) = self.lines_of(*address).1.into_iter().next() {
                if reached.contains(address) {
                    seen.insert(line)
                } else {
                    unseen.insert(line)
                };
            }
        }
        unseen.into_iter().filter(|line| !seen.contains(line)).collect()
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
    let mut text = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !text.is_empty() {
            text.push('-');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_point_is_named_with_its_distance() {
        let text =
            "a\n  platform.point(Point::TailPublished);\nb\nc\n  d.platform.point(Point::HandedOver);\n";
        let found = [1, 2, 3, 4, 9].map(|line| nearest_point(text, line).unwrap());
        let expected = [
            "tail-published, 1 line below",
            "tail-published",
            "tail-published, 1 line above",
            "handed-over, 1 line below",
        ];
        assert_eq!(found[..4], expected);
        assert_eq!(found[4], "handed-over, 4 lines above");
        assert_eq!(nearest_point("no point here", 1), None);
    }
}
