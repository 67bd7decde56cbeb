//! Faults in the use of locks, found while a kernel runs: the feature `checked`.
//!
//! A kernel gives its platform one [`Checks`] ([`TrustedCpu::checks`](crate::TrustedCpu::checks)), and the [guards](crate::guarded), those of
//! `lock_api` included, tell it of each lock that a CPU asks for, has, and releases. It then finds:
//!
//! | fault | found when |
//! |---|---|
//! | a CPU asks for a lock that it has | it asks, before it hangs |
//! | lock B is asked for under A, and elsewhere A under B, or in a longer circle | the circle closes, whether or not the CPUs meet |
//! | a handler waits for a lock that is elsewhere taken with interrupts on | the second of the two asks ([`TrustedCpu::context`](crate::TrustedCpu::context)) |
//! | a CPU releases a lock that it does not have | it releases: the pin did not hold, or the lock was forced open |
//!
//! Each is told to [`TrustedCpu::found`](crate::TrustedCpu::found), which panics with one line by default; an order or a context is told once.
//! Locks are known by their addresses. When the memory of one is used anew, the kernel [forgets](Checks::forget) it.
//!
//! It waits for nothing and allocates nothing. What finds no room is [counted](Checks::missed), and not checked. Not found are: a `try_lock`
//! that stands before a fault (it does not wait, so that it closes no circle); a reader in a circle, of a lock whose
//! [readers nest](crate::ExclusiveWriter::READERS_NEST); interrupts that come on while a lock is held; a lock that is taken with interrupts
//! on, and under a handler's lock, before an interrupt comes while it is held; a circle by a fact that another CPU looks at just then, to
//! forget it.

mod asked;
mod facts;
mod fault;
mod held;

use core::{
    ops::Range,
    panic::Location,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use self::{
    asked::notes,
    facts::{Facts, Pair, Room, Route},
    held::Held,
};

use crate::faults::mutant::mutant;

pub(crate) use self::asked::{Use, Way};
pub use self::{
    asked::Context,
    fault::{Fault, Kind},
};

/// The memory of the checks, for `CPUS` CPUs and `FACTS` pairs of locks or uses of a lock: 24 bytes each on 64-bit targets.
#[derive(Debug)]
pub struct Checks<const CPUS: usize, const FACTS: usize = 1024> {
    held: [Held; CPUS],
    facts: [Pair; FACTS],
    room: Room,
    missed: AtomicUsize,
}

impl<const CPUS: usize, const FACTS: usize> Checks<CPUS, FACTS> {
    /// CPUs that hold nothing, and no facts.
    #[expect(clippy::new_without_default, reason = "it is made in a static, where Default cannot be used")]
    pub const fn new() -> Self {
        const { assert!(FACTS > 0) };
        Self {
            held: [const { Held::new() }; CPUS],
            facts: [const { Pair::new() }; FACTS],
            room: Room::new(),
            missed: AtomicUsize::new(0),
        }
    }

    /// Borrows the memory without its sizes.
    pub fn checker(&self) -> Checker<'_> {
        Checker { held: &self.held, facts: self.facts(), missed: &self.missed }
    }

    /// Number of times at which something was not checked, because a table was full: of the locks that a CPU holds, or of those that a
    /// search passes. The table of facts counts once when it becomes [full](Self::is_full), and locks cost no search from then on.
    pub fn missed(&self) -> usize {
        self.missed.load(Relaxed)
    }

    /// Forgets the locks in these addresses, which no CPU holds or asks for: their memory is about to be used anew.
    pub fn forget(&self, memory: Range<usize>) {
        self.facts().forget(&memory);
    }

    /// Whether the table of facts is full: new orders and contexts are not checked until facts are [forgotten](Self::forget).
    pub fn is_full(&self) -> bool {
        self.room.is_none()
    }

    fn facts(&self) -> Facts<'_> {
        Facts { pairs: &self.facts, room: &self.room }
    }
}

/// A view of a [`Checks`] of any size.
#[derive(Clone, Copy, Debug)]
pub struct Checker<'a> {
    held: &'a [Held],
    facts: Facts<'a>,
    missed: &'a AtomicUsize,
}

impl Checker<'_> {
    /// The CPU is about to wait for a lock. Reports what is wrong with that.
    pub(crate) fn asks(self, of: Use, way: Way, context: Option<Context>, report: impl Fn(Fault)) {
        let Some(held) = self.held(of.cpu) else { return };
        let nests = mutant!("checked-readers-nest": way == Way::Shared { nests: true } => way != Way::Alone);
        if let Some(since) = held.since(of.lock, |shared| !(nests && shared)) {
            report(Fault::of(of, Kind::Own { since }));
        }
        // A reader that waits for writers alone closes no circle of readers; of others it is not known.
        if !nests {
            held.each(|lock, since| self.comes_after(of, lock, since, &report));
        }
        self.notes_context(of, way, context, &report);
        self.holds(held, of, way);
    }

    /// The CPU is about to take a lock if that is free. Reports what is wrong with that.
    pub(crate) fn tries(self, of: Use, way: Way, context: Option<Context>, report: impl Fn(Fault)) {
        if mutant!("checked-try-waits": context == Some(Context::InterruptsOn) => true) {
            self.notes_context(of, way, context, &report);
        }
    }

    /// The CPU has a lock for which it did not wait.
    pub(crate) fn got(self, of: Use, way: Way) {
        if let Some(held) = self.held(of.cpu) {
            self.holds(held, of, way);
        }
    }

    /// The CPU is about to release a lock.
    pub(crate) fn releases(self, of: Use, report: impl Fn(Fault)) {
        let Some(held) = self.held(of.cpu) else { return };
        if !mutant!("checked-any-cpu-releases": held.remove(of.lock) => true) {
            let holder = self.held.iter().enumerate().find_map(|(cpu, other)| {
                let since = other.since(of.lock, |_| true)?;
                other.remove_known(of.lock).then_some((cpu, since))
            });
            report(Fault::of(of, Kind::NotHeld { holder }));
        }
    }

    fn held(&self, cpu: usize) -> Option<&Held> {
        let held = self.held.get(cpu);
        if held.is_none() {
            self.misses();
        }
        held
    }

    /// A full table gets no new fact, and of those that it has each was reported when it was made.
    fn is_full(&self) -> bool {
        mutant!("checked-search-when-full": self.facts.room.is_none() => false)
    }

    fn misses(&self) {
        self.missed.fetch_add(1, Relaxed);
    }

    fn holds(self, held: &Held, of: Use, way: Way) {
        if !held.push(of.lock, of.place, way != Way::Alone) {
            self.misses();
        }
    }

    /// `of` is asked for under `lock`, which was asked for at `since`.
    fn comes_after(self, of: Use, lock: usize, since: &'static Location<'static>, report: &impl Fn(Fault)) {
        if lock == of.lock || self.is_full() || self.facts.place(lock, of.lock).is_some() {
            return;
        }
        let early = mutant!("checked-look-first": None => Some(self.facts.route(of.lock, lock)));
        if !self.facts.insert(lock, of.lock, of.place) {
            return self.misses();
        }
        // After the insertion: of two CPUs that ask in opposite orders at once, one finds the other's fact.
        match early.unwrap_or_else(|| self.facts.route(of.lock, lock)) {
            Route::None => {}
            Route::Last { place, is_direct } => {
                report(Fault::of(of, Kind::Order { held: lock, since, elsewhere: place, is_direct }));
            }
            Route::TooLong => self.misses(),
        }
    }

    /// Notes in which context the lock is taken, if that is new.
    fn notes_context(self, of: Use, way: Way, context: Option<Context>, report: &impl Fn(Fault)) {
        let Some((note, contrary)) = context.and_then(|context| notes(way, context)) else { return };
        if self.is_full() || self.facts.place(of.lock, note).is_some() {
            return;
        }
        if !self.facts.insert(of.lock, note, of.place) {
            return self.misses();
        }
        // As in `comes_after`.
        let mut contrary = contrary.iter().filter_map(|note| self.facts.place(of.lock, *note));
        if let Some(elsewhere) = contrary.next() {
            let in_handler = context == Some(Context::Handler);
            report(Fault::of(of, Kind::Context { in_handler, elsewhere }));
        }
    }
}
