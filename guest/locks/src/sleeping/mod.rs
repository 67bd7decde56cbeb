//! Locks whose waiters sleep, and the queue in which some of them spin first.
//!
//! # Sleeping
//!
//! Sleeping locks share where CPUs sleep, and for which lock.
//!
//! Each CPU has one [`Sleeper`]: a CPU sleeps for one lock at a time. A sleeping lock has a [`WaitList`], whose
//! links lie in the sleepers and which has a lock of its own.
//!
//! # Why no wake-up is lost
//!
//! ```text
//! waiter                                     waker, under the list's lock or after it
//! S1  state := ASLEEP, under the list's lock   W1  state := WOKEN or GRANTED
//! S2  parked := 1                              W2  fence
//! S3  fence                                    W3  parked? kick
//! S4  sleep while state = ASLEEP
//! ```
//!
//! The later one of S2 and W1 is followed by a load that sees the earlier one: either S4 does not sleep or W3 kicks.
//! The look at `parked` saves a hypercall if the waiter has not gone to sleep yet. It also tells CPUs that spin on an
//! owner whether the owner is on its CPU.

pub mod futex;
pub mod mutex;
pub mod osq;
pub mod rwsem;

use osq::Layout;

use crate::{
    contract::{Activity, Domain, Event, Platform, Point},
    faults::mutant::mutant,
    memory::{AtomicU32, CachePadded, Ordering::*, Time, array, const_unless_loom, fence, fresh},
    waiting::{KickStamp, OF_SLEEPING_LOCKS, Patience},
};

pub use futex::FutexMutex;
pub use mutex::Mutex;
pub use osq::{Osq, OsqNodes};
pub use rwsem::{Rules2018, RulesToday, RwSem, RwSemRules};

/// State shared by [`Mutex`](crate::Mutex) and [`RwSem`](crate::RwSem) of one kernel: the platform, the nodes of their
/// spin queues in layout `L`, and for each CPU a place to sleep.
///
/// A CPU waits for one sleeping lock at a time, in task context: a kernel with more tasks than CPUs needs one
/// domain entry per task, and a [`Platform`] that counts tasks.
#[derive(Debug)]
pub struct SleepDomain<P, L, const CPUS: usize> {
    pub(crate) platform: P,
    pub(crate) queue: OsqNodes<L, CPUS>,
    sleepers: [CachePadded<Sleeper>; CPUS],
}

/// Not waiting, or awake to try again.
const WOKEN: u32 = 0;
/// Asleep until woken.
const ASLEEP: u32 = 1;
/// Has been given the lock.
const GRANTED: u32 = 2;

/// One CPU's place to sleep.
#[derive(Debug)]
struct Sleeper {
    /// Number (CPU + 1) of the one behind in a list, 0 if none. Protected by the list's lock.
    next: AtomicU32,
    /// [`WOKEN`], [`ASLEEP`] or [`GRANTED`].
    state: AtomicU32,
    /// 1 for who wants to share. Protected by the list's lock.
    shares: AtomicU32,
    /// 1 from before the sleep to after it. Written by this CPU.
    parked: AtomicU32,
    /// When patience with others who overtake is over. Protected by the list's lock, and for fairness only.
    deadline: Time,
    kicked: KickStamp,
}

fresh!(Sleeper {
    next: AtomicU32::new(0),
    state: AtomicU32::new(WOKEN),
    shares: AtomicU32::new(0),
    parked: AtomicU32::new(0),
    deadline: Time::new(0),
    kicked: KickStamp::new(),
});

impl<P: Platform, L: Layout, const CPUS: usize> Domain for SleepDomain<P, L, CPUS> {
    type Platform = P;

    #[inline(always)]
    fn platform(&self) -> &P {
        &self.platform
    }
}

impl<P, L, const CPUS: usize> SleepDomain<P, L, CPUS> {
    const_unless_loom! {
        /// The memory of `CPUS` CPUs, none of which waits.
        pub const fn new(platform: P) -> Self {
            Self { platform, queue: OsqNodes::new(), sleepers: array![CachePadded::new(Sleeper::new()); CPUS] }
        }
    }

    fn sleeper(&self, number: u32) -> &Sleeper {
        &self.sleepers[number as usize - 1]
    }
}

impl<P: Platform, L: Layout, const CPUS: usize> SleepDomain<P, L, CPUS> {
    /// The calling CPU's number.
    #[inline(always)]
    pub(crate) fn me(&self) -> u32 {
        self.platform.cpu() as u32 + 1
    }

    /// Whether `number` is on its CPU, and its CPU on a physical one, as far as can be told: is it worth spinning
    /// until it does something?
    #[inline]
    pub(crate) fn is_running(&self, number: u32) -> bool {
        // Relaxed: a hint.
        self.sleeper(number).parked.load(Relaxed) == 0 && !self.platform.is_preempted(number as usize - 1)
    }

    /// Counts one round of spinning on `owner`.
    #[inline]
    pub(crate) fn count_spin(&self, owner: u32) {
        self.platform.count(Event::OwnerSpin, 1);
        if self.platform.is_preempted_for_the_record(owner as usize - 1) {
            self.platform.count(Event::OwnerSpinPreempted, 1);
        }
    }

    /// Spins by `spin` as head of `queue`. Whether that took the lock; `false` also if this CPU did not become head.
    pub(crate) fn spin_as_head(&self, queue: &Osq<L>, spin: impl FnOnce() -> bool) -> bool {
        if !queue.lock(&self.queue, &self.platform, || false) {
            return false;
        }
        self.platform.announce(Activity::Head);
        let taken = spin();
        queue.unlock(&self.queue, &self.platform);
        if !taken {
            self.platform.announce(Activity::Waiter);
        }
        taken
    }

    /// S2 to S4: sleeps until woken, or for no reason. The caller has been put to sleep under the lock of a list.
    pub(crate) fn park(&self) {
        let sleeper = self.sleeper(self.me());
        // S2. Relaxed: ordered by S3.
        sleeper.parked.store(1, Relaxed);
        self.platform.point(Point::HaltedPublished);
        // S3: pairs with W2.
        if !mutant!("sleep-no-fence": false => true) {
            fence(SeqCst);
        }
        // S4. Relaxed: the caller looks with `is_granted` or takes a lock.
        if sleeper.state.load(Relaxed) == ASLEEP {
            OF_SLEEPING_LOCKS
                .sleep(&self.platform, &sleeper.kicked, || sleeper.state.load(Relaxed) == ASLEEP);
        }
        // Relaxed: a kick too many does no harm.
        sleeper.parked.store(0, Relaxed);
    }

    /// Whether the calling CPU has been put to sleep and not been woken since.
    pub(crate) fn is_asleep(&self) -> bool {
        // Relaxed: decides only whether to sleep on.
        self.sleeper(self.me()).state.load(Relaxed) == ASLEEP
    }

    /// Whether the calling CPU has been given the lock. Acquire: pairs with W1.
    pub(crate) fn is_granted(&self) -> bool {
        self.sleeper(self.me()).state.load(Acquire) == GRANTED
    }

    /// W2, W3, after W1.
    fn kick(&self, number: u32) {
        let sleeper = self.sleeper(number);
        // W2: pairs with S3.
        fence(SeqCst);
        // W3. Relaxed: ordered by W2.
        if sleeper.parked.load(Relaxed) != 0 {
            OF_SLEEPING_LOCKS.kick(&self.platform, &sleeper.kicked, number as usize - 1);
        }
    }
}

/// Sleepers of one lock, first come, first in the list.
#[derive(Debug)]
pub(crate) struct WaitList {
    /// Number of the CPU that may change the list; 0: no CPU.
    holder: AtomicU32,
    /// Number of the first and of the last; 0: no CPU.
    first: AtomicU32,
    last: AtomicU32,
}

/// The right to change a list.
///
/// All accesses to what the list's lock protects are relaxed: the lock orders them.
pub(crate) struct Held<'a, P: Platform, L: Layout, const CPUS: usize> {
    list: &'a WaitList,
    domain: &'a SleepDomain<P, L, CPUS>,
}

/// CPUs to be woken when the list is free again, linked like a list.
#[must_use = "somebody sleeps on otherwise"]
pub(crate) struct Woken(u32);

fresh!(pub(crate) WaitList { holder: AtomicU32::new(0), first: AtomicU32::new(0), last: AtomicU32::new(0) });

impl WaitList {
    /// Whether the first of the list is on its CPU; `false` if there is none. A hint.
    pub(crate) fn is_first_running<P: Platform, L: Layout, const CPUS: usize>(
        &self,
        domain: &SleepDomain<P, L, CPUS>,
    ) -> bool {
        // Relaxed: a hint.
        let first = self.first.load(Relaxed);
        first != 0 && domain.is_running(first)
    }

    /// Takes the list's lock, a test-and-set that names its holder. A waiter gives its slice to the holder when that is
    /// preempted, or has held the list for longer than the threshold.
    pub(crate) fn hold<'a, P: Platform, L: Layout, const CPUS: usize>(
        &'a self,
        domain: &'a SleepDomain<P, L, CPUS>,
    ) -> Held<'a, P, L, CPUS> {
        let me = domain.me();
        // Acquire: pairs with the drop of `Held`.
        while let Err(holder) = self.holder.compare_exchange(0, me, Acquire, Relaxed) {
            self.await_holder(&domain.platform, holder);
        }
        Held { list: self, domain }
    }

    #[cold]
    fn await_holder<P: Platform>(&self, platform: &P, holder: u32) {
        let mut patience = Patience::new(platform);
        // Relaxed: a hint when to try again.
        while self.holder.load(Relaxed) == holder {
            if platform.is_preempted(holder as usize - 1) || !patience.pause() {
                platform.yield_to(Some(holder as usize - 1));
                patience = Patience::new(platform);
            }
        }
    }
}

impl<P: Platform, L: Layout, const CPUS: usize> Held<'_, P, L, CPUS> {
    pub(crate) fn is_empty(&self) -> bool {
        self.list.first.load(Relaxed) == 0
    }

    /// Number of the first.
    pub(crate) fn first(&self) -> Option<u32> {
        let first = self.list.first.load(Relaxed);
        (first != 0).then_some(first)
    }

    pub(crate) fn is_only(&self, number: u32) -> bool {
        self.list.first.load(Relaxed) == number && self.list.last.load(Relaxed) == number
    }

    /// Whether `number`, of this list, wants to share.
    pub(crate) fn shares(&self, number: u32) -> bool {
        self.domain.sleeper(number).shares.load(Relaxed) != 0
    }

    /// Whether the patience of `number`, of this list, is over.
    pub(crate) fn is_overdue(&self, number: u32) -> bool {
        let deadline = self.domain.sleeper(number).deadline.load(Relaxed);
        // The sign of a difference: patience is far below half of what a word holds.
        (self.domain.platform.now() as usize).wrapping_sub(deadline).cast_signed() >= 0
    }

    /// Puts the calling CPU at the end.
    pub(crate) fn append(&self, shares: bool, patience: u64) {
        let me = self.domain.me();
        let sleeper = self.domain.sleeper(me);
        sleeper.next.store(0, Relaxed);
        sleeper.shares.store(u32::from(shares), Relaxed);
        sleeper.deadline.store(self.domain.platform.now().wrapping_add(patience) as usize, Relaxed);
        match self.list.last.load(Relaxed) {
            0 => self.list.first.store(me, Relaxed),
            last => self.domain.sleeper(last).next.store(me, Relaxed),
        }
        self.list.last.store(me, Relaxed);
    }

    /// S1, for the calling CPU. Before it looks at its lock for the last time.
    pub(crate) fn fall_asleep(&self) {
        self.domain.sleeper(self.domain.me()).state.store(ASLEEP, Relaxed);
    }

    /// Takes the first, which there must be, out of the list.
    pub(crate) fn remove_first(&self) {
        self.remove(self.list.first.load(Relaxed));
    }

    /// Takes `number`, of this list, out of it.
    pub(crate) fn remove(&self, number: u32) {
        let next = |of: u32| self.domain.sleeper(of).next.load(Relaxed);
        let (mut before, mut at) = (0, self.list.first.load(Relaxed));
        while at != number {
            (before, at) = (at, next(at));
        }
        self.unlink(before, number, next(number));
    }

    /// W1 for the first, which there must be: it is to try again. It stays in the list. `None` if it has been
    /// woken before and not gone to sleep since.
    pub(crate) fn wake_first(&self) -> Option<Woken> {
        let first = self.list.first.load(Relaxed);
        let sleeper = self.domain.sleeper(first);
        if sleeper.state.load(Relaxed) != ASLEEP {
            return None;
        }
        // W1. Release is not needed: who is woken takes the list's lock, or the lock itself, to learn anything.
        sleeper.state.store(WOKEN, Relaxed);
        Some(Woken(first))
    }

    /// Takes up to `most` of those who share out of the list, and those behind one who does not only if it may pass such. The
    /// caller has to give them the lock.
    pub(crate) fn remove_sharing(&self, most: u32, past_others: bool) -> (Woken, u32) {
        let (mut taken_first, mut taken_last, mut taken) = (0, 0, 0);
        let (mut before, mut number) = (0, self.list.first.load(Relaxed));
        while number != 0 && taken < most {
            let next = self.domain.sleeper(number).next.load(Relaxed);
            if self.shares(number) {
                self.unlink(before, number, next);
                self.domain.sleeper(number).next.store(0, Relaxed);
                match taken_last {
                    0 => taken_first = number,
                    last => self.domain.sleeper(last).next.store(number, Relaxed),
                }
                (taken_last, taken) = (number, taken + 1);
            } else if past_others {
                before = number;
            } else {
                break;
            }
            number = next;
        }
        (Woken(taken_first), taken)
    }

    fn unlink(&self, before: u32, number: u32, next: u32) {
        match before {
            0 => self.list.first.store(next, Relaxed),
            before => self.domain.sleeper(before).next.store(next, Relaxed),
        }
        if self.list.last.load(Relaxed) == number {
            self.list.last.store(before, Relaxed);
        }
    }
}

impl<P: Platform, L: Layout, const CPUS: usize> Drop for Held<'_, P, L, CPUS> {
    fn drop(&mut self) {
        // Release: pairs with `hold`.
        self.list.holder.store(0, mutant!("sleep-relaxed-list": Release => Relaxed));
    }
}

impl Woken {
    /// Wakes the one that is to try again.
    pub(crate) fn kick<P: Platform, L: Layout, const CPUS: usize>(self, domain: &SleepDomain<P, L, CPUS>) {
        domain.kick(self.0);
    }

    /// W1 for those who are given the lock. Each is gone as soon as it sees that, with its link: the link is read
    /// first.
    pub(crate) fn grant<P: Platform, L: Layout, const CPUS: usize>(self, domain: &SleepDomain<P, L, CPUS>) {
        let mut number = self.0;
        while number != 0 {
            let sleeper = domain.sleeper(number);
            let next = sleeper.next.load(Relaxed);
            // Release: pairs with `is_granted`.
            sleeper.state.store(GRANTED, Release);
            domain.kick(number);
            number = next;
        }
    }
}
