//! Waiting that several kinds of locks share: nodes that nest or are kept until unlock, how long to spin, how to sleep and be kicked.
//!
//! # Which of a CPU's nodes are in use
//!
//! A lock that needs its node only while it waits nests like calls do: task, soft interrupt, interrupt, NMI.
//! A counter ([`Nesting`]) says which level this is.
//!
//! Claiming and giving back need no read-modify-write. Only the CPU itself changes them, and an interrupt leaves them
//! as it found them.
//!
//! Nodes of a CPU that a lock keeps until unlock may be released in any order: a mask ([`Slots`]) says which are free. It changes in
//! the same way as the counter.

use crate::{
    contract::{Event, Platform, Point},
    faults::mutant::mutant,
    memory::{AtomicU32, MODELLED, Ordering::*, Statistic, compiler_fence, fresh},
};

/// How deeply one CPU can be nested in slow paths and still queue.
pub const LEVELS: usize = 4;

/// Nodes of a CPU that are not tied to a level: four interrupt levels, two locks each.
pub(crate) const SLOTS: usize = 8;

/// Names one of a CPU's `NODES` nodes: (CPU + 1) * `NODES` + place. The same number stands in a tail and in a link, where 0 is no
/// node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeCode<const NODES: usize>(u32);

/// Names the node of a nesting level.
pub(crate) type Code = NodeCode<LEVELS>;
/// Names the node of a slot.
pub(crate) type SlotCode = NodeCode<SLOTS>;

impl<const NODES: usize> NodeCode<NODES> {
    pub const fn new(cpu: usize, place: usize) -> Self {
        Self(((cpu + 1) * NODES + place) as u32)
    }

    /// The node that a tail or a link names, if any.
    pub fn from_raw(raw: u32) -> Option<Self> {
        (raw != 0).then_some(Self(raw))
    }

    pub const fn raw(self) -> u32 {
        self.0
    }

    pub const fn cpu(self) -> usize {
        self.0 as usize / NODES - 1
    }

    pub const fn place(self) -> usize {
        self.0 as usize % NODES
    }
}

/// One CPU's nesting depth. Written by this CPU only.
#[derive(Debug)]
pub(crate) struct Nesting(AtomicU32);

fresh!(pub(crate) Nesting(AtomicU32::new(0)));

impl Nesting {
    /// Enters a slow path; returns how many this CPU was in before.
    pub(crate) fn enter(&self) -> usize {
        // Relaxed, and not one step: see the module documentation.
        let depth = self.0.load(Relaxed);
        self.0.store(depth + mutant!("t6-claim-nothing": 1 => 0), Relaxed);
        // T6: an interrupt from here on finds the node taken. Without the fence the compiler may initialise
        // the node first, and the interrupt would then use it in between.
        compiler_fence(SeqCst);
        depth as usize
    }

    /// Leaves a slow path.
    pub(crate) fn leave(&self) {
        // The last access to the node comes before the count says that it is free.
        compiler_fence(SeqCst);
        // Relaxed: as in `enter`.
        self.0.store(self.0.load(Relaxed) - mutant!("t6-claim-nothing": 1 => 0), Relaxed);
    }
}

/// Waits for the link to a successor, which is on its way. Returns the successor's raw code, which is never 0.
#[inline(always)]
pub(crate) fn await_next<P: Platform>(platform: &P, next: &AtomicU32) -> u32 {
    loop {
        // Acquire: pairs with the release store by which the successor links itself.
        let raw = next.load(Acquire);
        if raw != 0 {
            return raw;
        }
        platform.pause();
    }
}

/// Which of one CPU's [`SLOTS`] are in use. Written by this CPU only.
#[derive(Debug)]
pub(crate) struct Slots(AtomicU32);

fresh!(pub(crate) Slots(AtomicU32::new(0)));

impl Slots {
    /// Claims a free slot of CPU `cpu`, the calling one.
    pub(crate) fn claim(&self, cpu: usize) -> usize {
        // Relaxed, and not one step: see the module documentation.
        let in_use = self.0.load(Relaxed);
        let slot = (0..SLOTS).find(|slot| in_use & 1 << slot == 0);
        let slot = slot.unwrap_or_else(|| {
            panic!("CPU {cpu} holds or waits for more than {SLOTS} queue locks of one kind")
        });
        self.0.store(in_use | 1 << slot, Relaxed);
        // T6: as where a level is entered.
        compiler_fence(SeqCst);
        slot
    }

    /// Gives back a slot whose node no other CPU looks at.
    pub(crate) fn give_back(&self, slot: usize) {
        compiler_fence(SeqCst);
        // Relaxed: as in `claim`.
        self.0.store(self.0.load(Relaxed) & !(1 << slot), Relaxed);
    }
}

/// Rounds between two looks at the clock.
///
/// A round is one pause instruction, 40 to 140 cycles on current x86; reading the clock each time would make
/// the rounds longer, and rarer looks would blur a threshold of a few microseconds.
const CLOCK_EVERY: u32 = if MODELLED { 1 } else { 16 };

/// Rounds are counted up to here, and then anew: few where a model checker compares states.
const ROUNDS: u32 = if MODELLED { 4 } else { 1 << 31 };

/// One bounded spin: patience lasts [`Platform::spin_threshold`] ticks, or [`Platform::spin_rounds`] rounds.
///
/// The bound is a time, unless rounds are asked for, because the length of a round varies by a factor of four
/// between processors, while what it is weighed against (a halt, a kick, a slice) does not.
pub(crate) struct Patience<'a, P> {
    platform: &'a P,
    /// [`Platform::off_ticks`] at its start.
    off: u64,
    since: u64,
    rounds: u32,
}

impl<'a, P: Platform> Patience<'a, P> {
    /// Starts the clock.
    pub(crate) fn new(platform: &'a P) -> Self {
        Self { platform, off: platform.off_ticks(), since: platform.now(), rounds: 0 }
    }

    /// Ticks that it has taken of the CPU's time. The order of the readings here and above makes them too few, if the CPU is
    /// taken away between them.
    pub(crate) fn spent(&self) -> u64 {
        let ticks = self.platform.now().wrapping_sub(self.since);
        ticks.saturating_sub(self.platform.off_ticks().wrapping_sub(self.off))
    }

    /// Whether this is one of every `n` rounds, the first included.
    pub(crate) fn every(&self, n: u32) -> bool {
        self.rounds.is_multiple_of(n)
    }

    /// Pauses for one round, or returns `false` at once if patience is over.
    pub(crate) fn pause(&mut self) -> bool {
        self.rounds = if self.rounds == ROUNDS - 1 { 0 } else { self.rounds + 1 };
        if self.is_over() {
            return false;
        }
        self.platform.pause();
        true
    }

    fn is_over(&self) -> bool {
        match self.platform.spin_rounds() {
            0 => {
                self.every(CLOCK_EVERY)
                    && self.platform.now().wrapping_sub(self.since) >= self.platform.spin_threshold()
            }
            most => self.rounds > most,
        }
    }
}

/// Gives the slice back, unless the CPU is in a section already: that is what must not lose it.
pub(crate) fn give_up_unless_in_section<P: Platform>(platform: &P) {
    if mutant!("slice-ignore-outer": !platform.is_in_section() => true) {
        platform.yield_to(None);
    }
}

/// When its CPU was last kicked, in ticks; 0 since that CPU last went to sleep.
///
/// For `pv_latency_wake` only. The stamp races with the sleeper by nature: a kick that is not matched to a
/// wake-up is one that `pv_kick_wake` does not count.
#[derive(Debug)]
pub(crate) struct KickStamp(Statistic);

fresh!(pub(crate) KickStamp(Statistic::new(0)));

/// Counters of the kicks of one kind of lock.
pub(crate) struct Kicks {
    sent: Event,
    woke: Event,
    ticks_to_send: Event,
    ticks_to_wake: Event,
}

/// Counters of spinlocks.
pub(crate) const OF_SPINLOCKS: Kicks = Kicks {
    sent: Event::PvKickUnlock,
    woke: Event::PvKickWake,
    ticks_to_send: Event::PvLatencyKick,
    ticks_to_wake: Event::PvLatencyWake,
};

/// Counters of sleeping locks.
pub(crate) const OF_SLEEPING_LOCKS: Kicks = Kicks {
    sent: Event::SleepKick,
    woke: Event::SleepKickWake,
    ticks_to_send: Event::SleepLatencyKick,
    ticks_to_wake: Event::SleepLatencyWake,
};

impl Kicks {
    /// `pv_wait`, and how long ago the kick was that ended it.
    pub(crate) fn sleep<P: Platform>(&self, platform: &P, mine: &KickStamp, still: impl Fn() -> bool) {
        mine.0.store(0, Relaxed);
        platform.point(Point::BeforeSleep);
        platform.wait(still);
        let kicked = mine.0.load(Relaxed);
        if kicked != 0 {
            platform.count(self.woke, 1);
            // Not below 0: clocks of two CPUs may differ.
            let ticks = (platform.now() as usize).wrapping_sub(kicked).cast_signed().max(0);
            platform.count(self.ticks_to_wake, ticks as u64);
        }
    }

    /// `pv_kick`, and how long it took.
    pub(crate) fn kick<P: Platform>(&self, platform: &P, theirs: &KickStamp, cpu: usize) {
        let started = platform.now();
        // The search of all states compares states, which must not differ by a time.
        if !cfg!(liveness) {
            theirs.0.store((started as usize).max(1), Relaxed);
        }
        platform.kick(cpu);
        platform.count(self.sent, 1);
        platform.count(self.ticks_to_send, platform.now().saturating_sub(started));
    }
}
