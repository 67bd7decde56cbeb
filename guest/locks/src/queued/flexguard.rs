//! FlexGuard (Laforet and others, SOSP 2025): waiters spin in a queue as long as the CPUs ahead of them run, and sleep once one does not.
//!
//! ```text
//! word    {free, held by a CPU; does a CPU sleep}      who takes it has the lock
//! tail    of the queue, head      who of the queue may race for the word
//! set     of the CPUs that sleep until this lock is released
//! ```
//!
//! The lock of the paper lives in user space. A program in the kernel counts there how many holders of any lock are preempted, and
//! recognises a holder by the address of its next instruction. Here the word names the holder from the first moment on, and the platform
//! says whether that CPU runs. So each lock decides for itself. The lock is *stopped* if its holder is preempted, or the head of its queue.
//!
//! # Steps
//! ```text
//! F10 lock    word: free -> held: has the lock
//! F11         stopped: F15
//! F12 queue   claim a node; initialise it; swap it into `tail`; link behind p; spin until granted or stopped
//! F13 race    spin: free -> held: taken; until taken or stopped
//! F14 leave   the queue: tail := 0 if this is the last; else head := next, grant it. Taken: has the lock
//! F15 sleep   enter the set; free -> held and sleeps: leave the set, has the lock; held -> held and sleeps; sleep while in the set
//! F16         leave the set; F11. From now on F13 takes the word as F15 does
//!
//! F17 unlock  held, no CPU sleeps -> free: done
//! F18         no CPU sleeps := true; take one out of the set; there is none: F17
//! F19         word := free; kick that one
//! ```
//!
//! # Why it excludes
//! F10, F13 and F15 exchange a word that is free for one that names the CPU. All else is about who asks.
//!
//! # Why the queue may be left in any order
//! A waiter leaves the queue from its middle. The one before it grants its node later, whatever that is used for by then. A CPU may race
//! too early for that, which does no harm. Each CPU that links is granted by the one before it, which leaves sooner or later. A node has
//! one successor each time it is used, and F14 waits for the link: so none is written late.
//!
//! # Why no sleeper is forgotten
//! 1. T1: F15 enters the set, and then looks at the word. F18 changes the word, and then looks at the set. So either F18 finds the CPU, or
//!    that CPU sees the word that F18 has left, and marks it again, or sees it free.
//! 2. A CPU that F18 takes out asks for the lock. Its kick comes after the release, and it looks at the word again after the kick. It marks
//!    the word, or takes it with the mark, for those that are in the set still. So F19 may overwrite a mark.
//! 3. T4: F19 does not touch the lock after the release.
//!
//! # How long a CPU waits
//! Without bound: F10 takes the word past all that wait.
//!
//! # What it is for
//! It shows what exact events are worth. It has no threshold, and under overcommitment it comes near the lock that bounds all spins. It
//! does not prevent that a holder is preempted, and its waits are longer than those of the PV lock. Thousand sections a second, and in
//! brackets the longest wait in milliseconds:
//!
//! | hold, think, ratio | flexguard | without the hint | `mcs` | `qspinlock`, pv | `qspinlock-wc` | `gcr` |
//! |---|---|---|---|---|---|---|
//! | 1 us, 2 us, 1 | 716 (0.03) | | 752 (0.02) | 688 (0.3) | 723 (7) | 661 (4) |
//! | 1 us, 2 us, 2 | 712 (7) | 302 (10) | 4 (9) | 671 (0.5) | 722 (15) | 666 (7) |
//! | 1 us, 2 us, 4 | 702 (18) | 119 (46) | 0.8 (46) | 717 (7) | 721 (30) | 658 (14) |
//! | 1 us, 50 us, 1 | 310 (0.0) | | 310 (0.0) | 310 (0.0) | 310 (0.0) | 310 (0.0) |
//! | 1 us, 50 us, 2 | 309 (6) | | 8 (4) | 286 (5) | 308 (2) | 309 (2) |
//! | 1 us, 50 us, 4 | 309 (13) | | 0.8 (46) | 277 (11) | 308 (4) | 308 (7) |
//! | 50 us, 2 us, 2 | 20 (27) | | 2.5 (14) | 20 (7) | 19 (16) | 20 (45) |
//!
//! *Provenance: `haltkick run --engine sim --machine skylake-8s --cpus 0-15 --duration 40ms --warmup 5ms --repeat 5`, medians of five seeds, none
//! invalid, slices of 1 ms, 27 November 2026.*
//!
//! Without [`Platform::is_preempted`] no CPU sleeps, and the lock is a queue lock that newcomers overtake.
//!
//! # Orderings
//! | release | acquire | what it is for |
//! |---|---|---|
//! | F17, F19 | F10, F13, F15 | the critical section |
//! | swap of `tail` in F12 | the same | the node is initialised, and so its link is not lost |
//! | link in F12 | F14 | the node is initialised, and so its grant is not lost |
//! | fence in F15 | fence in F18 | T1 |

use core::{mem::offset_of, ptr};

use crate::{
    contract::{Activity, Event, Lock, Platform, Point, Queues, domain::domain},
    faults::mutant::mutant,
    memory::sync::{AtomicU32, MODELLED, Ordering::*, Statistic, array, const_unless_loom},
    waiting::{
        nesting::{Code, LEVELS, Nesting},
        sleepers::Sleepers,
        wake::{KickStamp, OF_SPINLOCKS},
    },
};

const HELD: u32 = 1;
/// A CPU sleeps, or is about to: who releases has to look.
const SLEEPS: u32 = 2;
const OWNER_SHIFT: u32 = 2;

/// Rounds of spinning in the queue between two looks at whether the lock is stopped.
const LOOK_EVERY: u32 = if MODELLED { 1 } else { 16 };

/// Queue lock whose waiters sleep as soon as its holder is preempted. It serves `WORDS` words of CPUs, one bit each.
#[derive(Debug)]
#[repr(C)]
pub struct FlexGuard<const WORDS: usize = 1> {
    /// 0: free. Otherwise [`HELD`], perhaps [`SLEEPS`], and the CPU that holds it.
    word: AtomicU32,
    /// 0: there is no queue. Otherwise the [`Code`] of the last node in it.
    tail: AtomicU32,
    /// The CPU that was last made head of the queue: a hint, and stale while there is no queue.
    head: Statistic,
    sleepers: Sleepers<WORDS>,
}

/// Memory that all such locks of one kernel share: the platform, and four nodes for each CPU.
#[derive(Debug)]
pub struct FlexGuardDomain<P, const CPUS: usize> {
    platform: P,
    cpus: [PerCpu; CPUS],
}

#[derive(Debug)]
#[repr(C, align(64))]
struct PerCpu {
    /// Written by neighbours in a queue.
    nodes: [Node; LEVELS],
    own: Own,
}

/// The line that this CPU writes, but for the stamp of a kick.
#[derive(Debug)]
#[repr(C, align(64))]
struct Own {
    nesting: Nesting,
    kicked: KickStamp,
}

/// A CPU in a queue.
#[derive(Debug)]
struct Node {
    /// Code of the successor, 0 while none is known. Written by the successor.
    next: AtomicU32,
    /// 1: it was granted to its CPU to race. See the [module](self) for grants that come late.
    granted: AtomicU32,
}

impl Node {
    const_unless_loom! {
        const fn new() -> Self {
            Self { next: AtomicU32::new(0), granted: AtomicU32::new(0) }
        }
    }
}

impl PerCpu {
    const_unless_loom! {
        const fn new() -> Self {
            let own = Own { nesting: Nesting::new(), kicked: KickStamp::new() };
            Self { nodes: array![Node::new(); LEVELS], own }
        }
    }
}

domain!(FlexGuardDomain<CPUS>, queues_in_memory);

impl<P, const CPUS: usize> FlexGuardDomain<P, CPUS> {
    const_unless_loom! {
        /// The memory of `CPUS` CPUs, none of which waits.
        pub const fn new(platform: P) -> Self {
            const { assert!(CPUS < 1 << 28, "a code cannot name so many CPUs") };
            Self { platform, cpus: array![PerCpu::new(); CPUS] }
        }
    }

    fn queues_in_memory(&self) -> Queues {
        Queues {
            nodes: ptr::from_ref(&self.cpus[0].nodes).addr(),
            cpu_bytes: size_of::<PerCpu>(),
            node_bytes: size_of::<Node>(),
            nodes_per_cpu: LEVELS,
            in_use: ptr::from_ref(&self.cpus[0].own.nesting).addr(),
            next: offset_of!(Node, next),
            locked: offset_of!(Node, granted),
            ..Queues::default()
        }
    }

    fn node(&self, code: Code) -> &Node {
        &self.cpus[code.cpu()].nodes[code.level()]
    }
}

/// The word of a lock that `cpu` holds.
const fn held_by(cpu: usize) -> u32 {
    (cpu as u32) << OWNER_SHIFT | HELD
}

impl<const WORDS: usize> FlexGuard<WORDS> {
    const_unless_loom! {
        /// A free lock.
        pub const fn new() -> Self {
            Self {
                word: AtomicU32::new(0),
                tail: AtomicU32::new(0),
                head: Statistic::new(0),
                sleepers: Sleepers::new(),
            }
        }
    }

    /// Whether this exchanged a free word for `mark`.
    #[inline(always)]
    fn take(&self, mark: u32) -> bool {
        // Acquire: pairs with F17 and F19.
        self.word
            .compare_exchange(0, mark, mutant!("flexguard-relaxed-take": Acquire => Relaxed), Relaxed)
            .is_ok()
    }

    /// Whether a CPU that all others wait for does not run, by a word that was just seen.
    fn is_stopped<P: Platform>(&self, platform: &P, seen: u32) -> bool {
        // Relaxed, here and below: hints.
        let holder = seen & HELD != 0 && platform.is_preempted((seen >> OWNER_SHIFT) as usize);
        let head = || self.tail.load(Relaxed) != 0 && platform.is_preempted(self.head.load(Relaxed));
        mutant!("flexguard-trust-the-holder": holder => false)
            || mutant!("flexguard-trust-the-head": head() => false)
    }

    #[cold]
    #[inline(never)]
    fn lock_slow<P: Platform, const CPUS: usize>(&self, domain: &FlexGuardDomain<P, CPUS>) {
        let platform = &domain.platform;
        let cpu = platform.cpu();
        let mut mark = held_by(cpu);
        loop {
            platform.announce(Activity::Waiter);
            // F11
            let stopped = self.is_stopped(platform, self.word.load(Relaxed));
            if mutant!("flexguard-sleep-anyway": !stopped => false) && self.spin(domain, mark) {
                return;
            }
            // F16: other CPUs may sleep, too.
            mark |= mutant!("flexguard-forget-the-others": SLEEPS => 0);
            if self.sleep(domain, cpu, mark | SLEEPS) {
                return;
            }
        }
    }

    /// F12 to F14: whether it took the word. False if the lock is stopped.
    fn spin<P: Platform, const CPUS: usize>(&self, domain: &FlexGuardDomain<P, CPUS>, mark: u32) -> bool {
        let platform = &domain.platform;
        let cpu = platform.cpu();
        // The node is this CPU's from `enter` to `leave`.
        let per_cpu = &domain.cpus[cpu];
        let level = per_cpu.own.nesting.enter();
        let taken = match per_cpu.nodes.get(level) {
            Some(node) => self.queue(domain, Code::new(cpu, level), node, mark),
            // T9: one more level than there are nodes.
            None => {
                platform.count(Event::LockNoNode, 1);
                self.race(platform, mark)
            }
        };
        per_cpu.own.nesting.leave();
        taken
    }

    fn queue<P: Platform, const CPUS: usize>(
        &self,
        domain: &FlexGuardDomain<P, CPUS>,
        code: Code,
        node: &Node,
        mark: u32,
    ) -> bool {
        let platform = &domain.platform;
        platform.point(Point::NodeClaimed);
        platform.count(Event::LockSlowpath, 1);
        // F12. Relaxed: published by the swap.
        node.next.store(0, Relaxed);
        node.granted.store(0, Relaxed);
        // Release: publishes the node. Acquire: the predecessor's node is published.
        let prev = self.tail.swap(code.raw(), mutant!("flexguard-relaxed-tail": AcqRel => Relaxed));
        platform.point(Point::TailPublished);
        match Code::from_raw(prev) {
            Some(prev) => {
                // Release: pairs with the acquire in F14.
                domain
                    .node(prev)
                    .next
                    .store(code.raw(), mutant!("flexguard-relaxed-link": Release => Relaxed));
                self.wait_behind(platform, node);
            }
            None => self.head.store(code.cpu(), Relaxed),
        }
        let taken = self.race(platform, mark);
        self.leave_queue(domain, code, node);
        taken
    }

    /// Spins until granted, or until the lock is stopped.
    fn wait_behind<P: Platform>(&self, platform: &P, node: &Node) {
        let mut round = 0;
        // Relaxed: a grant publishes nothing, the word does.
        while node.granted.load(Relaxed) == 0 {
            platform.pause();
            round += 1;
            if round == LOOK_EVERY {
                round = 0;
                if self.is_stopped(platform, self.word.load(Relaxed)) {
                    return;
                }
            }
        }
    }

    /// F13: whether it took the word.
    fn race<P: Platform>(&self, platform: &P, mark: u32) -> bool {
        platform.announce(Activity::Head);
        loop {
            // Relaxed: only a hint when to try.
            let seen = self.word.load(Relaxed);
            if seen == 0 && self.take(mark) {
                return true;
            }
            if self.is_stopped(platform, seen) {
                return false;
            }
            platform.pause();
        }
    }

    /// F14
    fn leave_queue<P: Platform, const CPUS: usize>(
        &self,
        domain: &FlexGuardDomain<P, CPUS>,
        code: Code,
        node: &Node,
    ) {
        // Acquire, here and below: pairs with the link in F12.
        let mut next = node.next.load(Acquire);
        if next == 0 {
            // Relaxed: who finds no queue links to no node.
            if self.tail.compare_exchange(code.raw(), 0, Relaxed, Relaxed).is_ok() {
                return;
            }
            while next == 0 {
                domain.platform.pause();
                next = node.next.load(Acquire);
            }
        }
        let next = Code::from_raw(next).expect("not 0");
        // Before the grant: it may find a CPU that does not run.
        self.head.store(next.cpu(), Relaxed);
        // Relaxed: as in F12.
        domain.node(next).granted.store(1, Relaxed);
    }

    /// F15 and F16: whether it took the word.
    fn sleep<P: Platform, const CPUS: usize>(
        &self,
        domain: &FlexGuardDomain<P, CPUS>,
        cpu: usize,
        mark: u32,
    ) -> bool {
        let platform = &domain.platform;
        self.sleepers.insert(cpu);
        let taken = self.take_or_mark(mark);
        if !taken {
            platform.point(Point::HaltedPublished);
            platform.count(Event::PvWaitNode, 1);
            OF_SPINLOCKS.sleep(platform, &domain.cpus[cpu].own.kicked, || self.sleepers.contains(cpu));
        }
        // A CPU that stayed in the set while it goes on to other things would be kicked in the place of one that sleeps.
        if mutant!("flexguard-stay": self.sleepers.remove(cpu) => false) && !taken {
            platform.count(Event::PvSpuriousWakeup, 1);
        }
        taken
    }

    /// F15: whether it took the word. If not, its holder has to look for sleepers.
    fn take_or_mark(&self, mark: u32) -> bool {
        // Relaxed: comes after the fence of the insertion (T1).
        let mut seen = self.word.load(Relaxed);
        loop {
            let free = seen == 0;
            let new = if free { mark } else { seen | mutant!("flexguard-forget-the-mark": SLEEPS => 0) };
            if seen == new {
                return false;
            }
            // Acquire: pairs with F17 and F19.
            match self.word.compare_exchange(seen, new, Acquire, Relaxed) {
                Ok(_) => return free,
                Err(now) => seen = now,
            }
        }
    }

    /// F18, F19, by `cpu`.
    #[cold]
    #[inline(never)]
    fn unlock_slow<P: Platform, const CPUS: usize>(&self, domain: &FlexGuardDomain<P, CPUS>, cpu: usize) {
        let platform = &domain.platform;
        let held = held_by(cpu);
        let sleeper = loop {
            // Relaxed: the fence in `take_one` follows (T1).
            let before = self.word.fetch_and(!SLEEPS, Relaxed);
            // T14: say what happened instead of a word that has become nonsense.
            assert!(before & !SLEEPS == held, "CPU {cpu} unlocks a lock whose word is {before:#x}");
            if let Some(sleeper) = self.sleepers.take_one(cpu) {
                break sleeper;
            }
            // F17. Release: pairs with every take.
            if self.word.compare_exchange(held, 0, Release, Relaxed).is_ok() {
                return;
            }
        };
        // F19. Release: as above, although the fence in `take_one` would do. A store would, too, but loom does not order one after the
        // exchanges of other CPUs.
        self.word.swap(0, Release);
        // T4: from here on, only the domain is touched.
        platform.announce(Activity::Other);
        platform.point(Point::SlowReleased);
        OF_SPINLOCKS.kick(platform, &domain.cpus[sleeper].own.kicked, sleeper);
    }
}

impl<P: Platform, const CPUS: usize, const WORDS: usize> Lock<FlexGuardDomain<P, CPUS>> for FlexGuard<WORDS> {
    type Token = ();

    #[inline(always)]
    fn lock(&self, domain: &FlexGuardDomain<P, CPUS>) {
        const { assert!(CPUS <= WORDS * usize::BITS as usize, "the set of sleepers has no bit for each CPU") };
        // F10
        if !self.take(held_by(domain.platform.cpu())) {
            self.lock_slow(domain);
        }
    }

    #[inline(always)]
    fn try_lock(&self, domain: &FlexGuardDomain<P, CPUS>) -> Option<()> {
        // Relaxed: failing needs no ordering, and spares the line when the lock is held.
        let taken = self.word.load(Relaxed) == 0 && self.take(held_by(domain.platform.cpu()));
        taken.then_some(())
    }

    #[inline(always)]
    fn unlock(&self, domain: &FlexGuardDomain<P, CPUS>, (): ()) {
        let cpu = domain.platform.cpu();
        // F17. Release: pairs with every take.
        let release = mutant!("flexguard-relaxed-unlock": Release => Relaxed);
        if self.word.compare_exchange(held_by(cpu), 0, release, Relaxed).is_err() {
            self.unlock_slow(domain, cpu);
        }
    }
}
