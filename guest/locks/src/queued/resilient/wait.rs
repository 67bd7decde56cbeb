//! The slow path.

use core::ptr;

use super::{View, check::Check, fallible::LockError};
use crate::{
    contract::{Activity, Event, Platform, Point},
    faults::mutant::mutant,
    memory::sync::{AtomicU32, MODELLED, Ordering::*},
    qspinlock::{
        Word,
        parts::{
            DISSOLVED, HEAD, LOCKED_MASK, LOCKED_PENDING, Node, TAIL_MASK, WAITS, become_pending, claim,
            count_level, hand_over, join, pending_to_owner, try_lock,
        },
    },
    waiting::nesting::Code,
};

/// The pending CPU waits for one section, the head of the queue for two.
const OF_PENDING: u64 = 2;
const OF_HEAD: u64 = 1;

/// Acquires a lock that is in the CPU's table and whose word was `seen` when it was not free. After an error, X: it is in the table no more.
#[cold]
#[inline(never)]
pub(super) fn lock_slow<W: Word, P: Platform>(
    word: &AtomicU32,
    view: View<'_, P>,
    seen: u32,
) -> Result<(), LockError> {
    let platform = view.shared.platform;
    platform.announce(Activity::Waiter);
    let taken = Waiter { view, word }.lock::<W>(seen);
    if let Err(error) = taken {
        view.own().leave();
        platform.announce(Activity::Other);
        platform.count(
            match error {
                LockError::Deadlock => Event::LockDeadlock,
                LockError::TimedOut => Event::LockTimedOut,
            },
            1,
        );
    }
    taken
}

/// Longest wait between two attempts, in limits.
const MOST_LIMITS: u64 = if MODELLED { 1 } else { 1024 };

/// Before another attempt: lets a queue that is being dissolved end, or a while pass, which is twice as long each time.
pub(super) struct Retry(u64);

impl Retry {
    pub(super) fn new() -> Self {
        Self(1)
    }

    #[cold]
    #[inline(never)]
    pub(super) fn pause<P: Platform>(&mut self, word: &AtomicU32, platform: &P) {
        let since = platform.now();
        loop {
            platform.pause();
            // Relaxed: a hint when to try.
            let is_gone = mutant!("rq-come-back-at-once": word.load(Relaxed) & TAIL_MASK == 0 => true);
            let limit = platform.lock_limit().saturating_mul(self.0);
            if is_gone || platform.now().wrapping_sub(since) >= limit {
                self.0 = (2 * self.0).min(MOST_LIMITS);
                return;
            }
        }
    }
}

/// A CPU in the slow path.
struct Waiter<'a, P> {
    view: View<'a, P>,
    word: &'a AtomicU32,
}

impl<P: Platform> Waiter<'_, P> {
    fn lock<W: Word>(&self, seen: u32) -> Result<(), LockError> {
        let Self { view, word } = *self;
        let platform = view.shared.platform;
        // A: before anything that others would have to wait for (RQ3, RQ5).
        if mutant!("rq-forget-own": view.own().held_before_the_last(self.lock_address()) => false) {
            return Err(LockError::Deadlock);
        }
        if let Some(old) = become_pending::<W, P>(word, platform, seen) {
            if old & LOCKED_MASK != 0
                && let Err(error) = self.wait_until_clear(LOCKED_MASK, OF_PENDING)
            {
                W::clear_pending(word);
                return Err(error);
            }
            pending_to_owner::<W, P>(word, platform);
            return Ok(());
        }
        platform.count(Event::LockSlowpath, 1);

        let per_cpu = view.shared.cpu(view.cpu);
        let level = per_cpu.nesting().enter();
        let taken = match per_cpu.node(level).filter(|_| self.may_queue(level)) {
            Some(node) => self.queue::<W>(Code::new(view.cpu, level), node),
            None => {
                platform.count(Event::LockNoNode, 1);
                if try_lock(word) { Ok(()) } else { Err(LockError::Deadlock) }
            }
        };
        per_cpu.nesting().leave();
        taken
    }

    /// An NMI must not queue if its CPU queues already: it might wait for what it has interrupted (RQ1, RQ4).
    fn may_queue(&self, level: usize) -> bool {
        mutant!("rq-nmi-never-queues": level == 0 => false)
            || !mutant!("rq-nmi-queues": self.view.shared.platform.is_in_nmi() => false)
    }

    /// Q1 to Q8.
    fn queue<W: Word>(&self, code: Code, node: &Node) -> Result<(), LockError> {
        let Self { view, word } = *self;
        let platform = view.shared.platform;
        platform.point(Point::NodeClaimed);
        // Q1, Q2
        count_level(platform, code);
        node.init();
        if try_lock(word) {
            return Ok(());
        }
        // Q3, Q4
        if join::<W, P>(word, view.shared, code).is_some() && self.await_verdict(node) == DISSOLVED {
            platform.count(Event::LockDissolved, 1);
            self.leave_queue::<W>(code, node, DISSOLVED);
            return Err(LockError::TimedOut);
        }
        // Q5
        platform.announce(Activity::Head);
        match self.wait_until_clear(LOCKED_PENDING, OF_HEAD) {
            Ok(seen) => {
                claim::<W, P>(word, view.shared, code, node, seen);
                Ok(())
            }
            // The others have done nothing wrong (RQ6).
            Err(LockError::Deadlock) => {
                self.leave_queue::<W>(code, node, mutant!("rq-punish-the-queue": HEAD => DISSOLVED));
                Err(LockError::Deadlock)
            }
            Err(LockError::TimedOut) => {
                self.leave_queue::<W>(code, node, DISSOLVED);
                Err(LockError::TimedOut)
            }
        }
    }

    /// Q4: waits to be made head, or to be sent away; without a clock.
    fn await_verdict(&self, node: &Node) -> u32 {
        loop {
            // Acquire: pairs with Q8, as in the queue of other locks.
            match node.locked.load(Acquire) {
                WAITS => self.view.shared.platform.pause(),
                verdict => return verdict,
            }
        }
    }

    /// N5, Q5: waits until no bit of `mask` is set; returns the word.
    fn wait_until_clear(&self, mask: u32, part: u64) -> Result<u32, LockError> {
        let mut check = Check::new(self.view, self.word, part);
        loop {
            // Acquire: pairs with unlock.
            let seen = self.word.load(mutant!("rq-relaxed-wait": Acquire => Relaxed));
            if seen & mask == 0 {
                return Ok(seen);
            }
            check.pause()?;
        }
    }

    /// H: leaves the queue, whose next CPU gets the verdict. The last one takes the tail with it: no other would come (RQ9).
    fn leave_queue<W: Word>(&self, code: Code, node: &Node, verdict: u32) {
        // Relaxed: the exchange validates the value.
        let mut seen = self.word.load(Relaxed);
        let own = code.raw() << W::TAIL_SHIFT;
        while mutant!("rq-await-a-successor": seen & !LOCKED_PENDING == own => verdict == DISSOLVED && seen & !LOCKED_PENDING == own)
        {
            // Relaxed: a newcomer that finds no tail needs nothing of this node.
            match self.word.compare_exchange(seen, seen & LOCKED_PENDING, Relaxed, Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
        hand_over(self.view.shared, node, verdict);
    }

    fn lock_address(&self) -> usize {
        ptr::from_ref(self.word).addr()
    }
}
