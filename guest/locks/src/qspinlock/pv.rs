//! The paravirtual slow paths: waiters that have spun long enough sleep, and are kicked.
//!
//! A waiter that is not head sleeps on the `state` of its own node, the head on the locked byte of the lock.
//! The owner wakes neither when it hands over the queue: it registers the sleeping new head in the
//! [`Table`], so that one kick at unlock does for both. The steps P, K and U are listed with all the others in
//! the documentation of [`qspinlock`](super), and what goes wrong without their fences and checks in [`races`](crate::races).

use super::{
    Mode, Queued,
    domain::{HALTED, HASHED, Memory, Node, RUNNING, Shared},
    word::{LOCKED, LOCKED_MASK, LOCKED_PENDING, PENDING, SLOW, TAIL_MASK, Word, try_lock},
};

use crate::{
    contract::{Activity, Event, Platform, Point, sealed},
    faults::mutant::mutant,
    memory::{AtomicU32, MODELLED, Ordering::*, fence},
    waiting::{Code, Patience, give_up_unless_in_section},
};

/// Differences between the paravirtual locks of different years.
pub trait Policy: sealed::Sealed + 'static {
    /// Newcomers may take a free lock past the queue while its head does not spin, and a waiter sleeps at once if its predecessor
    /// does.
    const STEALING: bool = false;

    /// Newcomers and woken heads spin for the threshold at most: rules 1 and 2 of [`WorkConserving`].
    const BOUNDED: bool = false;

    /// Rules 3 to 5 of [`WorkConserving`].
    const WORK_CONSERVING: bool = false;
}

/// Declares the paravirtual locks, each with what it has of that.
macro_rules! policies {
    ($($(#[$documentation:meta])* $mode:ident { $($rule:ident)* })+) => {$(
        $(#[$documentation])*
        #[derive(Debug)]
        pub enum $mode {}

        impl sealed::Sealed for $mode {}

        impl Policy for $mode {
            $(const $rule: bool = true;)*
        }
    )+};
}

policies! {
    /// Today's paravirtual lock: queued, but stealing is allowed while the head of the queue sleeps.
    Pv { STEALING }

    /// Today's lock without what keeps a physical CPU from working, or makes it work for the lock alone.
    ///
    /// Two spins of today's lock have no bound while the owner is not running. Here they end with the threshold.
    /// 1. A newcomer that finds the lock held and the head asleep waits for something to steal, for as long as
    ///    that takes. While the owner is preempted, every CPU that comes by spends its whole slice there.
    /// 2. A head registers once. When it has been woken and a thief was faster, its next sleeps end at once,
    ///    because the locked byte is not SLOW; it spends its slices on spinning behind that thief, who may be
    ///    preempted. Here a head may register again once the unlocker has told it, through its node, that its
    ///    entry is out of the table; that its byte is not SLOW proves nothing, for the owner that registers a
    ///    sleeping successor publishes HASHED first and marks the byte later (K1, K2).
    ///
    /// Three things it knows from a host that tells, and does without where the host does not:
    /// 3. It does not ask for the lock when the slice is about to end ([`Platform::slice_ends_soon`](crate::Platform::slice_ends_soon)), so that
    ///    owners are hardly ever preempted (I-Spinlock: Teabe et al., EuroSys 2017); unless the CPU holds another lock
    ///    ([`Platform::is_in_section`](crate::Platform::is_in_section)), whose owner would be the one to lose its CPU.
    /// 4. No CPU sleeps unless a vCPU waits for a physical CPU
    ///    ([`Platform::is_overcommitted`](crate::Platform::is_overcommitted)): to spin costs
    ///    nothing then, to sleep costs two exits.
    /// 5. The head is courteous to an owner that wants the lock back at once; see `Courtesy`. Fewer changes of
    ///    owner are fewer kicks (concurrency restriction: Dice, "Malthusian Locks", EuroSys 2017).
    WorkConserving { STEALING BOUNDED WORK_CONSERVING }

    /// [`WorkConserving`] with its first two rules alone: every spin is bounded, and nothing is asked of the host.
    Bounded { STEALING BOUNDED }

    /// The paravirtual lock as first posted in its sixteenth version, in 2015: strictly first come, first served.
    V16 {}
}

/// Rounds between two looks at the predecessor's state.
const PREV_CHECK: u32 = if MODELLED { 2 } else { 256 };

impl<T: Policy> Mode for T {
    #[inline(always)]
    fn lock_slow<W: Word, D: Memory>(word: &AtomicU32, domain: &D, seen: u32) {
        super::lock_slow::<Self, W, D>(word, domain, seen);
    }

    #[inline(always)]
    fn before_lock<D: Memory>(domain: &D) {
        if T::WORK_CONSERVING && domain.shared().platform.slice_ends_soon() {
            give_up_slice(domain);
        }
    }

    #[inline(always)]
    fn unlock<W: Word, D: Memory>(word: &AtomicU32, domain: &D) {
        // U1: (*,*,1) -> (*,*,0)
        if let Err(locked) = W::try_unlock(word) {
            pv_unlock_slow::<T, W, D>(word, domain, locked);
        }
    }
}

impl<T: Policy> Queued for T {
    /// There is no lane for a pending CPU: the bit says that the head spins. Work-conserving: an owner that wants
    /// its lock back at once, while the head lets it, should not need a node for that.
    fn lock_unqueued<W: Word, P: Platform>(word: &AtomicU32, shared: Shared<'_, P>, seen: u32) -> bool {
        let stolen = T::WORK_CONSERVING && seen & LOCKED_PENDING == 0 && W::steal(word, seen);
        if stolen {
            shared.platform.count(Event::PvLockStealing, 1);
        }
        stolen
    }

    /// With stealing: (*,0,0) -> (*,0,1), for as long as there is a queue whose head does not spin.
    fn try_enter<W: Word, P: Platform>(word: &AtomicU32, platform: &P) -> bool {
        if !T::STEALING {
            return try_lock(word);
        }
        let mut patience = T::BOUNDED.then(|| Patience::new(platform));
        loop {
            // Relaxed: `steal` is what acquires.
            let seen = word.load(Relaxed);
            if seen & LOCKED_PENDING == 0 && W::steal(word, seen) {
                platform.count(Event::PvLockStealing, 1);
                return true;
            }
            let head_spins = seen & PENDING != 0;
            if seen & TAIL_MASK == 0 || head_spins {
                return false;
            }
            let Some(patience) = &mut patience else {
                platform.pause();
                continue;
            };
            if !patience.pause() {
                return false;
            }
        }
    }

    /// P0. Relaxed, but for T1 and P0a: the acquiring wait of Q4 follows.
    fn pv_wait_node<P: Platform>(shared: Shared<'_, P>, code: Code, node: &Node, prev: &Node) {
        let platform = shared.platform;
        loop {
            let Some(spin) = spin_for_locked::<T, P>(platform, node, prev) else { return };
            node.state.store(HALTED, Relaxed);
            platform.point(Point::HaltedPublished);
            // T1, fence A; pairs with fence B in `pv_kick_node`.
            fence(SeqCst);
            if node.locked.load(Relaxed) == 0 {
                platform.count(Event::PvWaitNode, 1);
                let halt = if spin.ended_early {
                    platform.count(Event::PvWaitEarly, 1);
                    platform.count(Event::PvLatencySpinEarly, spin.ticks);
                    Event::PvLatencyHaltEarly
                } else {
                    platform.count(Event::PvLatencySpinNode, spin.ticks);
                    Event::PvLatencyHaltNode
                };
                shared.sleep(code.cpu(), halt, || node.state.load(Relaxed) == HALTED);
            }
            // Fails if the owner has made it HASHED, and then it stays so: the entry is in the table, or will
            // be. P0a: Acquire then; pairs with fence B.
            let acquire = mutant!("p0a-relaxed-wake": Acquire => Relaxed);
            _ = node.state.compare_exchange(HALTED, RUNNING, Relaxed, acquire);
            if node.locked.load(Relaxed) == 0 {
                platform.count(Event::PvSpuriousWakeup, 1);
            }
        }
    }

    /// P1 to P4.
    fn pv_wait_head<W: Word, P: Platform>(
        word: &AtomicU32,
        shared: Shared<'_, P>,
        code: Code,
        node: &Node,
    ) -> u32 {
        let platform = shared.platform;
        platform.count(Event::LockSlowpath, 1);
        // Relaxed: the owner's K1 either came before the end of P0, which has seen it, or finds RUNNING and
        // fails.
        let mut registered = node.state.load(Relaxed) == HASHED;
        let mut slept = false;
        let mut courtesy = T::WORK_CONSERVING.then(|| Courtesy::new(shared, node));
        loop {
            // Relaxed: successors read it to decide whether to sleep early.
            node.state.store(RUNNING, Relaxed);

            // P1
            let mut patience = Patience::new(platform);
            let taken = match &mut courtesy {
                Some(courtesy) => courtesy.spin::<W>(word),
                None => spin_for_lock::<T, W, P>(word, platform, &mut patience),
            };
            if let Some(seen) = taken {
                return seen;
            }
            let spin = patience.spent();

            if !registered {
                // P2
                shared.pv_hash(word, code);
                registered = true;
                platform.point(Point::HeadHashed);
                // P3: (*,0,x) -> (*,0,3). T3: the release in it publishes the entry.
                if W::swap_slow(word) == 0 {
                    // (*,0,3) -> (*,0,1): the owner left between P1 and P3, and this CPU owns the lock.
                    W::unmark_slow(word);
                    shared.pv_unhash(word);
                    // Relaxed: the swap has acquired.
                    return word.load(Relaxed) | LOCKED;
                }
            }

            // P4. T2: HASHED, so that the owner that made this CPU head does not register it once more.
            node.state.store(HASHED, Relaxed);
            let halt = count_wait_of_head(platform, spin, slept);
            slept = true;
            shared.sleep(code.cpu(), halt, || word.load(Relaxed) & LOCKED_MASK == SLOW);
            if T::BOUNDED && has_been_released(word, node) {
                // Relaxed: the next one to set it is the unlocker that finds the next entry.
                node.taken_out.store(0, Relaxed);
                registered = false;
            }
        }
    }

    /// K1 and K2.
    fn pv_kick_node<W: Word, P: Platform>(
        word: &AtomicU32,
        shared: Shared<'_, P>,
        next: Code,
        next_node: &Node,
    ) {
        // T1, fence B; pairs with fence A in `pv_wait_node`.
        fence(SeqCst);
        // K1. The node is still the successor's, who cannot leave before this CPU unlocks. Relaxed: the fence
        // orders it, and nothing is read through it.
        if next_node.state.compare_exchange(HALTED, HASHED, Relaxed, Relaxed).is_ok() {
            shared.platform.point(Point::SuccessorHashed);
            // K2: (*,*,1) -> (*,*,3). In this order or the other: this CPU is the one that unlocks.
            W::mark_slow(word);
            shared.pv_hash(word, next);
        }
    }
}

#[cold]
#[inline(never)]
fn give_up_slice<D: Memory>(domain: &D) {
    give_up_unless_in_section(domain.shared().platform);
}

/// Counts that a head sleeps after a spin of `ticks`, once more if it has `slept`; returns what counts the time of the sleep.
fn count_wait_of_head<P: Platform>(platform: &P, ticks: u64, slept: bool) -> Event {
    platform.count(Event::PvWaitHead, 1);
    if slept {
        platform.count(Event::PvWaitAgain, 1);
        platform.count(Event::PvLatencySpinAgain, ticks);
        return Event::PvLatencyHaltAgain;
    }
    platform.count(Event::PvLatencySpinHead, ticks);
    Event::PvLatencyHaltHead
}

/// A spin that was given up.
struct Spin {
    /// Because the predecessor does not run.
    ended_early: bool,
    /// Time of the CPU that it took.
    ticks: u64,
}

/// P0: spins for `locked`. `None` once it is set.
fn spin_for_locked<T: Policy, P: Platform>(platform: &P, node: &Node, prev: &Node) -> Option<Spin> {
    let mut patience = Patience::new(platform);
    let mut ticks = 0;
    loop {
        // Relaxed: Q4 acquires.
        if node.locked.load(Relaxed) != 0 {
            return None;
        }
        let may_sleep = || !T::WORK_CONSERVING || platform.is_overcommitted();
        // Relaxed: a hint. Reading the predecessor's node is safe at any time, for nodes are never freed.
        let prev_sleeps = || prev.state.load(Relaxed) != RUNNING;
        let load_first = || mutant!("wc-early-ignores-load": may_sleep() => true);
        if T::STEALING && patience.every(PREV_CHECK) && prev_sleeps() && load_first() {
            return Some(Spin { ended_early: true, ticks: ticks + patience.spent() });
        }
        if !patience.pause() {
            ticks += patience.spent();
            if may_sleep() {
                return Some(Spin { ended_early: false, ticks });
            }
            patience = Patience::new(platform);
        }
    }
}

/// Whether the unlock that took this head's entry out of the table has also released the lock: one more entry
/// does not make two.
fn has_been_released(word: &AtomicU32, node: &Node) -> bool {
    // Acquire: pairs with U2, so that the byte is not one from before it became SLOW.
    let taken_out = node.taken_out.load(Acquire) != 0;
    // Relaxed: as just said. While the byte is SLOW, the unlocker has yet to overwrite it: what this CPU
    // wrote there now would be lost.
    taken_out && word.load(Relaxed) & LOCKED_MASK != SLOW
}

/// U2: (*,*,3) -> (*,*,0), and kicks the head.
#[cold]
#[inline(never)]
fn pv_unlock_slow<T: Policy, W: Word, D: Memory>(word: &AtomicU32, domain: &D, locked: u32) {
    // T14: a lock that is not held has no entry to look for; say what happened instead.
    assert!(locked == SLOW, "unlock of a lock whose locked byte is {locked}: not held, or overwritten");
    let shared = domain.shared();
    shared.platform.point(Point::SlowSeen);
    // T3: pairs with the release in `swap_slow`. The failed exchange orders nothing.
    fence(Acquire);
    let head = shared.pv_unhash(word);
    shared.platform.point(Point::EntryRemoved);
    if T::BOUNDED {
        // Release: pairs with `has_been_released`. The head cannot leave its node before the lock is released below.
        shared.node(head).taken_out.store(1, Release);
    }
    // T4: the next owner may free the lock's memory. From here on, only the domain is touched.
    W::unlock(word);
    // The kick may be where the host takes this CPU away: not as the holder of anything.
    shared.platform.announce(Activity::Other);
    shared.platform.point(Point::SlowReleased);
    shared.kick(head.cpu());
}

/// P1: spins for the lock. `Some` with the word as last seen, locked if this took the lock.
pub(super) fn spin_for_lock<T: Policy, W: Word, P: Platform>(
    word: &AtomicU32,
    platform: &P,
    patience: &mut Patience<'_, P>,
) -> Option<u32> {
    if T::STEALING {
        return insist::<W, P>(word, platform, patience);
    }
    loop {
        // Acquire: pairs with unlock. No other CPU can take the lock, so Q6 or Q7 will.
        let seen = word.load(mutant!("v16-relaxed-head": Acquire => Relaxed));
        if seen & LOCKED_MASK == 0 {
            return Some(seen);
        }
        if !patience.pause() {
            return None;
        }
    }
}

/// P1 of a head that forbids stealing.
pub(super) fn insist<W: Word, P: Platform>(
    word: &AtomicU32,
    platform: &P,
    patience: &mut Patience<'_, P>,
) -> Option<u32> {
    // (*,0,*) -> (*,1,*)
    W::announce_spinning(word);
    platform.point(Point::HeadSpinning);
    loop {
        // (*,1,0) -> (*,0,1)
        if W::spinning_to_locked(word) {
            // Relaxed: only tells Q6 whether a CPU has queued behind.
            return Some(word.load(Relaxed) | LOCKED);
        }
        if !patience.pause() {
            // (*,1,*) -> (*,0,*)
            W::clear_pending(word);
            return None;
        }
    }
}

/// After how many spin thresholds the head insists. Shorter turns would be fairer in the short run and cost more
/// changes; at the default threshold this is two thirds of a millisecond.
const TENURE: u64 = if MODELLED { 2 } else { 32 };

/// Rounds between two looks at the lock: the fewest, and the most.
const LOOK_EVERY: (u32, u32) = if MODELLED { (1, 2) } else { (16, 256) };

/// A head that waits.
///
/// The head of the PV qspinlock of Linux 4.5 and later announces itself at once, which forbids stealing, and so it gets
/// the next turn. Every turn of a head has a price. If a CPU sleeps behind it, that CPU has to be kicked, and on a
/// virtual machine a kick costs as much as thirty short critical sections. A lock that is never free for long has an
/// owner that wants it back at once: a row of heads turns the time of such a lock into kicks.
///
/// This head is courteous instead:
/// 1. It takes a lock that seems unwanted: free at two looks in a row, or at one if no CPU sleeps behind it. The
///    looks get rarer while the lock is held, for each of them takes the line away from the owner.
/// 2. It closes the lock to stealing after a handoff bound, so that no CPU waits forever, and owners change about as
///    often as slices end.
/// 3. Before it insists it gives up a slice that is about to end, for the lock is closed to all while such a head is off its CPU.
///    Then it wakes its successor, on its own time. When it has the lock there is no CPU to kick.
/// 4. It spins on while no other CPU waits for its physical CPU; else it sleeps as ever, once in a tenure. More often it
///    would cost the owner a kick each time: it lets others run, and looks again. Unless it holds another lock
///    ([`Platform::is_in_section`]): others wait for that one, and the vCPU that gets its slice may keep it off for
///    long. Then it sleeps,
///    for the kick brings it back.
#[derive(Debug)]
pub(super) struct Courtesy<'a, P> {
    shared: Shared<'a, P>,
    node: &'a Node,
    since: u64,
    slept: Option<u64>,
}

impl<'a, P: Platform> Courtesy<'a, P> {
    /// `node` has just become head.
    pub(super) fn new(shared: Shared<'a, P>, node: &'a Node) -> Self {
        Self { shared, node, since: shared.platform.now(), slept: None }
    }

    /// P1: spins for the lock. `Some` with the word as last seen, locked if this took the lock; `None`: time to sleep.
    pub(super) fn spin<W: Word>(&mut self, word: &AtomicU32) -> Option<u32> {
        let platform = self.shared.platform;
        loop {
            if let Some(seen) = self.take_if_unwanted::<W>(word) {
                return Some(seen);
            }
            if self.is_over(self.since) {
                // A head that has just closed the lock must not lose its CPU.
                if mutant!("wc-insist-at-the-end": platform.slice_ends_soon() => false) {
                    give_up_unless_in_section(platform);
                }
                self.wake_ahead();
                if let Some(seen) = insist::<W, P>(word, platform, &mut Patience::new(platform)) {
                    return Some(seen);
                }
            }
            if !platform.is_overcommitted() {
                continue;
            }
            let may_sleep = self.slept.is_none_or(|slept| self.is_over(slept));
            if platform.is_in_section() || may_sleep {
                self.slept = Some(platform.now());
                return None;
            }
            platform.yield_to(None);
        }
    }

    fn is_over(&self, since: u64) -> bool {
        let platform = self.shared.platform;
        platform.now().wrapping_sub(since) >= TENURE * platform.spin_threshold()
    }

    /// (*,0,0) -> (*,0,1), for as long as patience lasts.
    fn take_if_unwanted<W: Word>(&self, word: &AtomicU32) -> Option<u32> {
        let mut patience = Patience::new(self.shared.platform);
        let (mut free_before, mut every) = (false, LOOK_EVERY.0);
        loop {
            // Relaxed: `steal` is what acquires. So is the link: whether anybody is there, not who.
            let seen = word.load(Relaxed);
            let free = seen & LOCKED_PENDING == 0;
            let unwanted = || free_before || self.node.next.load(Relaxed) == 0;
            if free && unwanted() && W::steal(word, seen) {
                return Some(seen | LOCKED);
            }
            free_before = free;
            if !free {
                every = (every * 2).min(LOOK_EVERY.1);
            }
            for _ in 0..every {
                if !patience.pause() {
                    return None;
                }
            }
        }
    }

    /// Wakes the next in the queue, which is about to become head, if he sleeps.
    ///
    /// K1 then finds RUNNING and does not register him. If he has gone to sleep again by then, it finds HALTED as
    /// ever. He cannot leave his node before this one has handed over.
    fn wake_ahead(&self) {
        // Acquire: pairs with the link in Q4, as in `await_next`.
        let Some(next) = Code::from_raw(self.node.next.load(Acquire)) else { return };
        let state = &self.shared.node(next).state;
        // Relaxed: `kick` is what makes it visible to one who looked before it; nothing is read through it.
        let slept = state.compare_exchange(HALTED, RUNNING, Relaxed, Relaxed).is_ok();
        if slept {
            self.shared.kick(next.cpu());
        }
    }
}
