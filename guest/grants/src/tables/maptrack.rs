//! Maptrack: what the mapping domain has mapped, by handle; and the free handles.

use haltkick_locks::{CachePadded, mutant::mutant};

use crate::interface::{MapRequest, READONLY_MAP, Status};
use crate::locking::{AtomicU32, Guarded, Kernel, MaptrackLocking, Ordering::*, Scheme, Taken};
use crate::machine::{Counter, Memory, Vcpu};

/// The end of a list.
const NONE: u32 = u32::MAX;

/// A mapping: 16 bytes. Free while `word` is 0.
#[derive(Debug)]
#[repr(C)]
struct Track {
    /// While mapped: reference in the granter's table. While free: the next one in the list, protected by the list's
    /// lock.
    reference: Guarded,
    /// Flags of the mapping in the low half, granting domain in the high half. Cleared under the active entry's lock.
    word: AtomicU32,
    /// The list that it returns to. Protected by the lock of the list that it is taken from.
    home: Guarded,
    _pad: u32,
}

const _: () = assert!(cfg!(shuttle) || size_of::<Track>() == 16);

/// Free handles, with the lock that protects them.
pub(crate) struct List<K: Kernel> {
    lock: K::Lock,
    head: Guarded,
    tail: Guarded,
}

impl<K: Kernel> List<K> {
    /// Handles from `first` to before `end`.
    pub(crate) fn new(first: u32, end: u32) -> Self {
        Self { lock: K::new_lock(), head: Guarded::new(first), tail: Guarded::new(end - 1) }
    }
}

/// The word of a track that stands for a mapping.
fn word(mapping: MapRequest) -> u32 {
    mapping.flags | u32::from(mapping.granter) << 16
}

pub(crate) struct Maptrack<S: Scheme> {
    tracks: &'static [Track],
    /// Each in a line of its own.
    lists: &'static [CachePadded<List<S::Kernel>>],
    /// The only list, where it lies next to the table's lock.
    beside: Option<&'static List<S::Kernel>>,
}

impl<S: Scheme> Maptrack<S> {
    /// Makes `handles` handles, all free, evenly spread over the lists of `vcpus` vCPUs if the scheme has such;
    /// in the list next to the table's lock if there is one.
    pub(crate) fn new(
        memory: &impl Memory,
        handles: usize,
        vcpus: usize,
        beside: Option<&'static List<S::Kernel>>,
    ) -> Self {
        let lists = if S::MAPTRACK == MaptrackLocking::PerVcpu { vcpus } else { 1 };
        assert!(handles >= lists, "a list without an entry");
        let first_of = |list: usize| (list * handles / lists) as u32;
        let home =
            |handle: u32| (0..lists).rfind(|list| first_of(*list) <= handle).expect("list 0 begins at 0");
        let track = |handle: usize| {
            let handle = handle as u32;
            let home = home(handle);
            let last = handle + 1 == first_of(home + 1);
            Track {
                reference: Guarded::new(if last { NONE } else { handle + 1 }),
                word: AtomicU32::new(0),
                home: Guarded::new(home as u32),
                _pad: 0,
            }
        };
        let list = |list| CachePadded::new(List::new(first_of(list), first_of(list + 1)));
        let padded = if beside.is_some() { 0 } else { lists };
        Self { tracks: memory.slice(handles, track), lists: memory.slice(padded, list), beside }
    }

    #[inline(always)]
    fn list(&self, index: usize) -> &List<S::Kernel> {
        match S::MAPTRACK {
            MaptrackLocking::Beside => self.beside.expect("made so"),
            _ => &self.lists[index],
        }
    }

    /// A free handle, or none. With [`MaptrackLocking::Table`] under the table's lock.
    pub(crate) fn get(&self, vcpu: &Vcpu) -> Result<u32, Status> {
        if S::MAPTRACK != MaptrackLocking::PerVcpu {
            return self.locked(0, vcpu, |list| self.take(list, 0)).ok_or(Status::NoHandle);
        }
        // One entry stays in each list, so that putting back never has to write to the head.
        let own = vcpu.index;
        let take = |list: &List<S::Kernel>| {
            self.take(list, 1).or_else(|| mutant!("grants-steal-under-own": None => self.steal(vcpu).ok()))
        };
        match self.locked(own, vcpu, take) {
            Some(handle) => Ok(handle),
            None => self.steal(vcpu),
        }
    }

    /// A free handle of another vCPU, from a random one on. It returns to the thief.
    #[cold]
    fn steal(&self, vcpu: &Vcpu) -> Result<u32, Status> {
        let first = vcpu.random(self.lists.len());
        let victims = (0..self.lists.len()).map(|i| (first + i) % self.lists.len());
        for victim in victims.filter(|victim| *victim != vcpu.index) {
            let stolen = self.locked(victim, vcpu, |list| {
                let handle = self.take(list, 1)?;
                self.tracks[handle as usize].home.set(vcpu.index as u32);
                Some(handle)
            });
            if let Some(handle) = stolen {
                vcpu.count(Counter::Steal);
                return Ok(handle);
            }
        }
        Err(Status::NoHandle)
    }

    /// Puts a handle back at the tail of its list.
    pub(crate) fn put(&self, vcpu: &Vcpu, handle: u32) {
        let track = &self.tracks[handle as usize];
        self.locked(track.home.get() as usize, vcpu, |list| {
            track.reference.set(NONE);
            match list.tail.get() {
                NONE => list.head.set(handle),
                tail => self.tracks[tail as usize].reference.set(handle),
            }
            list.tail.set(handle);
        });
    }

    /// Takes the head off a list that keeps `least` entries.
    fn take(&self, list: &List<S::Kernel>, least: usize) -> Option<u32> {
        let head = list.head.get();
        if head == NONE {
            return None;
        }
        let next = self.tracks[head as usize].reference.get();
        if next == NONE {
            if least > 0 {
                return None;
            }
            list.tail.set(NONE);
        }
        list.head.set(next);
        Some(head)
    }

    #[inline(always)]
    fn locked<R>(&self, index: usize, vcpu: &Vcpu, section: impl FnOnce(&List<S::Kernel>) -> R) -> R {
        let list = self.list(index);
        if S::MAPTRACK == MaptrackLocking::Table {
            return section(list);
        }
        let taken = (Taken::Maptrack(index), core::ptr::from_ref(list).addr());
        vcpu.locked::<S::Kernel, _>(taken, &list.lock, || section(list))
    }

    /// Gives the handle its meaning.
    pub(crate) fn fill(&self, handle: u32, mapping: MapRequest) {
        let track = &self.tracks[handle as usize];
        track.reference.set(mapping.reference);
        // Release: a vCPU that finds the flags finds the reference. Pairs with `find`.
        track.word.store(word(mapping), Release);
    }

    /// Returns the mapping that the handle names, if any. To be confirmed under the lock of the entry that it
    /// leads to.
    pub(crate) fn find(&self, handle: u32) -> Result<MapRequest, Status> {
        let track = self.tracks.get(handle as usize).ok_or(Status::BadHandle)?;
        // Acquire: pairs with `fill`.
        let word = track.word.load(Acquire);
        if word == 0 {
            return Err(Status::BadHandle);
        }
        Ok(MapRequest {
            granter: (word >> 16) as u16,
            reference: track.reference.get(),
            flags: word & 0xffff,
        })
    }

    /// Takes the handle its meaning; `false` if it has another one by now. Under the lock of the entry.
    pub(crate) fn clear(&self, handle: u32, mapping: MapRequest) -> bool {
        let track = &self.tracks[handle as usize];
        // Relaxed: the entry's lock orders those that clear; who maps anew gets the handle by its list's lock.
        let same = track.word.load(Relaxed) == word(mapping) && track.reference.get() == mapping.reference;
        if same {
            track.word.store(0, Relaxed);
        }
        mutant!("grants-no-second-look": same => true)
    }

    /// Counts the mappings for reading and for writing of `granter`'s entries that `concern` the caller. Called
    /// while the granter's table is locked for writing: such mappings neither come nor go.
    pub(crate) fn count(&self, vcpu: &Vcpu, granter: u16, concern: impl Fn(u32) -> bool) -> (u32, u32) {
        let count = || {
            let (mut reads, mut writes) = (0, 0);
            for track in self.tracks {
                // Acquire: pairs with `fill`.
                let word = track.word.load(Acquire);
                if word == 0 || (word >> 16) as u16 != granter || !concern(track.reference.get()) {
                    continue;
                }
                if word & READONLY_MAP != 0 { reads += 1 } else { writes += 1 }
            }
            (reads, writes)
        };
        mutant!("grants-count-unlocked": self.locked(0, vcpu, |_| count()) => count())
    }

    /// How many handles there are, and how many are free and in their own list. Exact at rest.
    pub(crate) fn census(&self) -> (usize, usize) {
        let mut home = 0;
        for index in 0..self.lists.len().max(1) {
            let list = self.list(index);
            let (mut handle, mut last) = (list.head.get(), NONE);
            // A list that has become a ring would go on forever.
            for _ in 0..=self.tracks.len() {
                let Some(track) = self.tracks.get(handle as usize) else { break };
                home += usize::from(track.home.get() as usize == index && track.word.load(Relaxed) == 0);
                (last, handle) = (handle, track.reference.get());
            }
            if last != list.tail.get() {
                return (self.tracks.len(), 0);
            }
        }
        (self.tracks.len(), home)
    }
}
