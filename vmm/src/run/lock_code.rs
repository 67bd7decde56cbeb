//! The instructions that belong to a lock: all between a call of one of its functions and the return from that, and those that stand
//! in a call's place.

use std::ops::Range;

use crate::host::error::RunError;
use crate::image::file::Image;
use crate::image::patch::Form;
use crate::run::asked::OurGuest;

/// A vCPU's state as far as it concerns the lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LockPlace {
    #[default]
    Outside,
    /// In a function that was called with this stack pointer.
    Inside { rsp: u64, takes: bool },
}

/// How an instruction belongs to the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// It is a part of the lock's code.
    Code,
    /// The lock has been taken: it is the first one behind the call.
    Taken,
}

/// Tells instructions of the lock from others.
pub(crate) struct LockCode {
    /// Addresses where its functions begin, and whether they take the lock.
    entries: Vec<(u64, bool)>,
    /// Code of it that stands at call sites.
    inline: Vec<Range<u64>>,
    places: Vec<LockPlace>,
    /// vCPUs that are on their way to the lock.
    taking: u32,
}

impl LockCode {
    /// The code of the lock that `asked` takes.
    pub(crate) fn new(asked: OurGuest<'_>, image: &Image) -> Result<Self, RunError> {
        let name = &asked.ours.lock;
        let missing = || RunError::usage(format!("lock '{name}' has no functions that could be watched"));
        let lock = image.locks.iter().position(|lock| lock.name == *name).ok_or_else(missing)?;
        let calls = image.calls(lock, asked.guest.pv).ok_or_else(missing)?;
        let takes = [calls.lock, calls.read, calls.section].into_iter().flatten().map(|entry| (entry, true));
        let tries = image.try_lock(lock, asked.guest.pv).map(|entry| (entry, true));
        let gives = [calls.unlock, calls.read_unlock].into_iter().flatten().map(|entry| (entry, false));
        let entries: Vec<_> = takes.chain(gives).chain(tries).collect();
        if entries.is_empty() {
            return Err(missing());
        }
        let edits = if asked.ours.patch { image.edits(lock, asked.guest.pv)? } else { vec![] };
        let is_inline = |form: &Form| matches!(form, Form::Inline(_));
        let inline = edits.iter().filter(|edit| is_inline(&edit.form));
        let inline = inline.map(|edit| edit.address..edit.address + edit.after.len() as u64).collect();
        let places = vec![LockPlace::default(); asked.guest.vcpus as usize];
        Ok(Self { entries, inline, places, taking: 0 })
    }

    /// How the instruction at `rip` of vCPU `number`, whose stack pointer is `rsp`, belongs to the lock, if it does.
    pub(crate) fn part(&mut self, number: u32, rip: u64, rsp: u64) -> Option<Part> {
        let place = self.places.get_mut(number as usize)?;
        let mut part = None;
        if let LockPlace::Inside { rsp: called, takes } = *place {
            if rsp <= called {
                return Some(Part::Code);
            }
            *place = LockPlace::Outside;
            self.taking -= u32::from(takes);
            part = takes.then_some(Part::Taken);
        }
        if let Some((_, takes)) = self.entries.iter().find(|entry| entry.0 == rip).copied() {
            *place = LockPlace::Inside { rsp, takes };
            self.taking += u32::from(takes);
            return Some(Part::Code);
        }
        if self.inline.iter().any(|code| code.contains(&rip)) {
            return Some(Part::Code);
        }
        part
    }

    /// Whether the function that begins at `rip` takes the lock, if it is one of the lock's.
    pub(crate) fn entry(&self, rip: u64) -> Option<bool> {
        self.entries.iter().find(|entry| entry.0 == rip).map(|(_, takes)| *takes)
    }

    /// How many vCPUs besides `number` are on their way to the lock.
    pub(crate) fn others(&self, number: u32) -> u32 {
        let own = self.places.get(number as usize);
        self.taking - u32::from(matches!(own, Some(LockPlace::Inside { takes: true, .. })))
    }
}
