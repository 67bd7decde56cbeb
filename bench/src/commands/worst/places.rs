//! Where an instruction stands, in the words of people who wrote it.

use std::collections::{BTreeMap, BTreeSet};

use haltkick_vmm::{Disassembler, Frame, Guest, Image, Lines, RunError};

use crate::analysis::worst::Place;

/// Where the sources of the built-in locks lie.
const LOCKS: &str = "guest/locks/";
/// The longest instruction.
const LONGEST_INSTRUCTION: u64 = 15;

pub(super) struct Places<'a> {
    image: &'a Image,
    lines: Option<Lines<'a>>,
    disassembler: Disassembler,
    /// Code that is rewritten before the run, where it begins.
    rewritten: Vec<(u64, Vec<u8>)>,
    known: BTreeMap<u64, Place>,
}

impl<'a> Places<'a> {
    /// Places of `image` with the call sites of a lock's form rewritten, if `patch`.
    pub(super) fn new(image: &'a Image, guest: &Guest) -> Result<Self, RunError> {
        let ours = guest.ours().filter(|ours| ours.patch);
        let lock = ours.and_then(|ours| image.locks.iter().position(|lock| lock.name == ours.lock));
        let edits = lock.map_or(Ok(vec![]), |lock| image.edits(lock, guest.pv))?;
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

    /// Where the instruction at an address stands.
    pub(super) fn place(&mut self, address: u64) -> Place {
        if let Some(known) = self.known.get(&address) {
            return known.clone();
        }
        let (function, line) = self.line(address);
        let instruction = self.instruction(address);
        let place = Place { function, line, instruction };
        self.known.insert(address, place.clone());
        place
    }

    /// The function and the source line of the lock that the code at an address comes from: of code that was inlined into a lock,
    /// the lock's line.
    fn line(&self, address: u64) -> (String, Option<String>) {
        let symbol = self.image.symbols().describe(address);
        let frames = self.lines.as_ref().map(|lines| lines.frames(address)).unwrap_or_default();
        let is_lock = |frame: &&Frame| frame.file.as_ref().is_some_and(|file| file.starts_with(LOCKS));
        let own = frames.iter().find(is_lock).or_else(|| frames.iter().find(|frame| !frame.is_library()));
        match own {
            Some(frame) if frame.line.is_some_and(|line| line > 0) => {
                (frame.function.clone().unwrap_or(symbol), Some(frame.to_string()))
            }
            _ => (symbol, None),
        }
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
            if let (_, Some(line)) = self.line(*address) {
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
