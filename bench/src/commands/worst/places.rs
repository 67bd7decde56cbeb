//! Source place of an instruction.

use std::collections::{BTreeMap, BTreeSet};

use haltkick_vmm::{Disassembler, Frame, Image, Lines, OurGuest, RunError};

use crate::analysis::worst::SourcePlace;

/// Folder with the sources of the built-in locks.
const LOCKS: &str = "guest/locks/";
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
        let line = (!lines.is_empty()).then(|| lines.remove(0));
        let place = SourcePlace { function, line, inlined_into: lines, instruction };
        self.known.insert(address, place.clone());
        place
    }

    /// The function that the code at an address comes from, and its line with those that it was inlined into: of code of others that
    /// was inlined into a lock, the lock's.
    fn lines_of(&self, address: u64) -> (String, Vec<String>) {
        let symbol = self.image.symbols().describe(address);
        let frames = self.lines.as_ref().map(|lines| lines.frames(address)).unwrap_or_default();
        let has_line = |frame: &&Frame| frame.line.is_some_and(|line| line > 0);
        let is_lock = |frame: &&Frame| frame.file.as_ref().is_some_and(|file| file.starts_with(LOCKS));
        let of_lock: Vec<&Frame> = frames.iter().filter(is_lock).filter(has_line).collect();
        let other = || frames.iter().filter(has_line).find(|frame| !frame.is_library());
        let chain = if of_lock.is_empty() { other().into_iter().collect() } else { of_lock };
        let function = chain.first().and_then(|frame| frame.function.clone()).unwrap_or(symbol);
        (function, chain.into_iter().map(ToString::to_string).collect())
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
