//! The instructions that belong to a lock: all between a call of one of its functions and the return from that, and those that stand
//! in a call's place.

use std::ops::Range;

use haltkick_sim::board::Step;

use crate::host::error::RunError;
use crate::image::file::Image;
use crate::image::patch::Form;
use crate::run::asked::OurGuest;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Code,
    /// The lock has been taken: it is the first one behind the call.
    Taken,
}

/// Tells instructions of the lock from others.
pub(crate) struct LockCode {
    /// Addresses where its functions begin, and whether they take the lock.
    entries: Vec<(u64, bool)>,
    /// Code of it that stands at call sites, and where its function begins.
    inline: Vec<(Range<u64>, u64)>,
    objects: Vec<Range<u64>>,
    /// For each vCPU: the last instruction of an object that it executed.
    in_object: Vec<Option<u64>>,
    /// For each vCPU that is in a function of the lock: the stack pointer that it was called with, and whether it takes the lock.
    places: Vec<Option<(u64, bool)>>,
    /// vCPUs that are on their way to the lock.
    taking: u32,
}

impl LockCode {
    /// The code of the lock that `asked` takes, and if it `tries`, of the function that takes the lock if it is free, which is said to have
    /// taken it whatever it answers.
    pub(crate) fn new(asked: OurGuest<'_>, image: &Image, tries: bool) -> Result<Self, RunError> {
        let name = &asked.ours.lock;
        let missing = || RunError::usage(format!("lock '{name}' has no functions that could be watched"));
        let lock = image.locks.iter().position(|lock| lock.name == *name).ok_or_else(missing)?;
        let calls = image.calls(lock, asked.guest.pv).ok_or_else(missing)?;
        let [lock_entry, unlock, read, read_unlock] = calls.functions;
        let takes = [lock_entry, read].into_iter().flatten().map(|entry| (entry, true));
        let gives = [unlock, read_unlock].into_iter().flatten().map(|entry| (entry, false));
        let mut entries: Vec<_> = takes.chain(gives).collect();
        if entries.is_empty() {
            return Err(missing());
        }
        let try_lock = image.try_lock(lock, asked.guest.pv).filter(|_| tries);
        entries.extend(try_lock.map(|entry| (entry, true)));
        let edits = if asked.ours.patch { image.edits(lock, asked.guest.pv)? } else { vec![] };
        let inline = edits.iter().filter_map(|edit| match edit.form {
            Form::Inline(target) => Some((edit.address..edit.address + edit.after.len() as u64, target)),
            Form::Call(_) => None,
        });
        let vcpus = asked.guest.vcpus as usize;
        Ok(Self {
            entries,
            inline: inline.collect(),
            objects: image.objects.iter().map(|object| object.addresses.clone()).collect(),
            in_object: vec![None; vcpus],
            places: vec![None; vcpus],
            taking: 0,
        })
    }

    /// Whether the vCPU of `step` is about to take the lock, or to release it, by the instruction.
    pub(crate) fn takes(&self, step: &Step) -> Option<bool> {
        if let Some((_, takes)) = *self.places.get(step.number as usize)? {
            return Some(takes);
        }
        let (_, target) = self.inline.iter().find(|(code, _)| code.contains(&step.rip))?;
        self.entries.iter().find(|(entry, _)| entry == target).map(|(_, takes)| *takes)
    }

    /// Address in the lock's function of an instruction that stands at a call site; others' own.
    pub(crate) fn home(&self, rip: u64) -> u64 {
        let inline = self.inline.iter().find(|(code, _)| code.contains(&rip));
        inline.map_or(rip, |(code, target)| target + (rip - code.start))
    }

    /// The instruction of an object that has called code of the image, which a vCPU executes with `step`.
    pub(crate) fn caller(&mut self, step: &Step) -> Option<u64> {
        let last = self.in_object.get_mut(step.number as usize)?;
        if self.objects.iter().any(|code| code.contains(&step.rip)) {
            *last = Some(step.rip);
            return None;
        }
        *last
    }

    /// How the instruction at `rip` of vCPU `number`, whose stack pointer is `rsp`, belongs to the lock, if it does.
    pub(crate) fn part(&mut self, number: u32, rip: u64, rsp: u64) -> Option<Part> {
        let place = self.places.get_mut(number as usize)?;
        let mut part = None;
        if let Some((called, takes)) = *place {
            if rsp <= called {
                return Some(Part::Code);
            }
            *place = None;
            self.taking -= u32::from(takes);
            part = takes.then_some(Part::Taken);
        }
        if let Some((_, takes)) = self.entries.iter().find(|entry| entry.0 == rip).copied() {
            *place = Some((rsp, takes));
            self.taking += u32::from(takes);
            return Some(Part::Code);
        }
        if self.inline.iter().any(|(code, _)| code.contains(&rip)) {
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
        self.taking - u32::from(matches!(own, Some(Some((_, true)))))
    }
}
