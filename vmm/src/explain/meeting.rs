//! Two vCPUs inside one section: how each came there, and the last release before.

use std::fmt::{self, Display, Formatter};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use haltkick_hypercalls::{TOOK_BY_READ, TOOK_BY_TRY};
use serde::Serialize;

use super::text::duration;
use super::{Location, Scene};
use crate::image::author::Author;
use crate::image::disassemble::Disassembler;
use crate::image::file::Image;

/// The first time that two vCPUs were found inside one section.
#[derive(Clone, Debug, Serialize)]
pub struct Meeting {
    /// The lock.
    pub lock: u32,
    /// The guest's TSC then.
    #[serde(skip)]
    pub(crate) tsc: u64,
    /// A simulated machine would show more.
    #[serde(skip)]
    pub(crate) is_on_hardware: bool,
    /// The vCPU that has found another one inside.
    pub came: Passage,
    /// That one; null where there is no telling.
    pub inside: Option<Passage>,
    /// The last one that had left, and released the lock; null: none had.
    pub released: Option<Passage>,
}

/// A vCPU's way into a section, or out of it.
#[derive(Clone, Debug, Serialize)]
pub struct Passage {
    /// The vCPU.
    pub vcpu: u32,
    /// How long before the meeting it executed the instruction. Of an instruction that is not known: how long before it asked for the lock,
    /// or began to release it.
    pub before_ns: Option<u64>,
    /// The instruction by which it took the lock, or released it, is known: the last one before the section, or before its end, that
    /// accessed memory of several vCPUs. Else the place is the function's first line.
    pub is_exact: bool,
    /// The place in the lock; null where the image does not tell.
    pub at: Option<Location>,
}

/// An instruction that a simulated machine has seen: the vCPU, when, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) vcpu: u32,
    pub(crate) at_ns: u64,
    pub(crate) address: u64,
}

impl Meeting {
    /// The one that the guest has noted, if it has; of several locks the first one's.
    pub(super) fn of(scene: &Scene<'_>) -> Option<Self> {
        let memory = &scene.machine.memory;
        let met = |lock: &u32| memory.oracle(*lock).met.came.load(Ordering::Relaxed) != 0;
        let lock = (0..scene.locks).find(met)?;
        let met = &memory.oracle(lock).met;
        let long = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let tsc = long(&met.tsc);
        let [lock_function, unlock, read, _] =
            scene.image.calls(scene.lock, scene.pv).unwrap_or_default().functions;
        let author = Author::new(scene.image, scene.lock, scene.pv);
        let passage = |vcpu: &AtomicU32, since: u64, function: Option<u64>| {
            let vcpu = vcpu.load(Ordering::Relaxed).checked_sub(1)?;
            let before_ns = scene.before_ns(tsc, since);
            // A vCPU of a workload without locks has asked for none.
            let function = function.filter(|_| since != 0);
            let at = function.map(|function| Location::of_function(scene.image, &author, function));
            let is_there = (vcpu as usize) < scene.finished.len();
            is_there.then_some(Passage { vcpu, before_ns, is_exact: false, at })
        };
        let by = |how: &AtomicU32| match how.load(Ordering::Relaxed) {
            TOOK_BY_READ => read,
            TOOK_BY_TRY => scene.image.try_lock(scene.lock, scene.pv),
            _ => lock_function,
        };
        let [came_asked, inside_asked] = met.asked_tsc.each_ref().map(long);
        let [came_by, inside_by] = met.how.each_ref().map(by);
        let came = passage(&met.came, came_asked, came_by)?;
        let inside = passage(&met.inside, inside_asked, inside_by).filter(|it| it.vcpu != came.vcpu);
        let released = passage(&met.left, long(&met.left_tsc), unlock);
        Some(Self { lock, tsc, is_on_hardware: false, came, inside, released })
    }

    /// Puts in what a simulated machine has seen: instructions by which vCPUs took the lock last before the meeting, and the last one by
    /// which it was released.
    pub(crate) fn see(
        &mut self,
        (image, author): (&Image, &Author<'_>),
        at_ns: u64,
        took: &[Seen],
        released: Option<Seen>,
    ) {
        let put = |passage: &mut Passage, seen: Seen| {
            passage.before_ns = at_ns.checked_sub(seen.at_ns);
            passage.is_exact = true;
            passage.at = Some(Location::of_instruction(image, author, seen.address));
        };
        for passage in [Some(&mut self.came), self.inside.as_mut()].into_iter().flatten() {
            if let Some(seen) = took.iter().find(|seen| seen.vcpu == passage.vcpu) {
                put(passage, *seen);
            }
        }
        if let Some(seen) = released {
            let mut passage = Passage { vcpu: seen.vcpu, before_ns: None, is_exact: true, at: None };
            put(&mut passage, seen);
            self.released = Some(passage);
        }
    }

    pub(super) fn text(&self) -> String {
        let (lock, came) = (self.lock, self.came.vcpu);
        match &self.inside {
            Some(inside) => {
                format!(
                    "vCPU {came} came into the section of lock {lock} while vCPU {} was inside",
                    inside.vcpu
                )
            }
            None => format!("vCPU {came} was in the section of lock {lock} together with another one"),
        }
    }
}

impl Location {
    /// The first line of a lock's function.
    fn of_function(image: &Image, author: &Author<'_>, address: u64) -> Self {
        let symbol = image.symbols().at(address);
        Self {
            address,
            symbol: symbol.map(|(symbol, _)| symbol.short_name()),
            frames: author.first_line(address).into_iter().collect(),
            code: vec![],
        }
    }

    /// An instruction of a lock, with its author's lines where there are some.
    fn of_instruction(image: &Image, author: &Author<'_>, address: u64) -> Self {
        let symbol = image.symbols().at(address);
        let mut frames = author.frames(address);
        if frames.is_empty() {
            frames = author.all_frames(address);
        }
        let code = image.code_at(address).unwrap_or_default();
        let mut code = Disassembler::new(image).decode(code, address);
        code.truncate(1);
        let symbol = symbol.map(|(symbol, offset)| format!("{}+{offset:#x}", symbol.short_name()));
        Self { address, symbol, frames, code }
    }
}

impl Display for Meeting {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (took, released) = ("took the lock", "released the lock last");
        for (passage, did) in [(Some(&self.came), took), (self.inside.as_ref(), took)] {
            passage.map_or(Ok(()), |passage| passage.fmt_as(did, "asked for it", f))?;
        }
        self.released
            .as_ref()
            .map_or(Ok(()), |passage| passage.fmt_as(released, "began to release it last", f))?;
        if self.is_on_hardware {
            writeln!(f, "  (A simulated machine tells the instructions: --engine sim --machine NAME.)")?;
        }
        Ok(())
    }
}

impl Passage {
    /// Writes what the vCPU did, by an instruction that is known or in a function.
    fn fmt_as(&self, did: &str, began: &str, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "vCPU {} {}", self.vcpu, if self.is_exact { did } else { began })?;
        match self.before_ns {
            Some(ns) => writeln!(f, " {} before that", duration(ns))?,
            None => writeln!(f)?,
        }
        let how = if self.is_exact { "at" } else { "in" };
        self.at.as_ref().map_or(Ok(()), |at| at.fmt_as(how, f))
    }
}
