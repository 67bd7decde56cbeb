//! Sleeping waiters for a lock without sleep: a foreign spinlock that calls our hook between two looks at its word.
//!
//! Each lock has a set of the CPUs that sleep until it is released, or are about to. A waiter whose patience is over enters
//! itself, has the lock look once more, and sleeps only at the next call. So either that look finds the lock free, or the
//! unlock finds the waiter in the set: case T1 of the locks with a paravirtual form of their own.
//!
//! A CPU in the set of a lock is asking for it. A "wake one" relies on that: the CPU that it takes out either acquires,
//! and wakes the next one at its own unlock, or fails because another CPU has acquired, which will. So every way out of
//! the sleep takes the CPU out of the set, a kick that was meant for an earlier sleep included. With the bit left
//! behind, a CPU that acquires and goes on to other things would be woken in the place of one that sleeps.

use crate::{
    contract::{Activity, Domain, Platform},
    faults::mutant::mutant,
    memory::{
        CachePadded,
        sync::{AtomicU8, AtomicUsize, Ordering, array, const_unless_loom, fence},
    },
};

/// CPUs that an unlock has to wake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wake {
    /// Any one: the lock is free to the first that comes.
    One,
    /// All: the lock is free to one of them, and only that one knows.
    All,
}

const BITS: usize = usize::BITS as usize;

/// The CPUs that sleep, or are about to, until one lock is released: one bit for each, below `WORDS` times the length of a
/// word.
#[derive(Debug)]
pub struct Sleepers<const WORDS: usize>([AtomicUsize; WORDS]);

impl<const WORDS: usize> Sleepers<WORDS> {
    const_unless_loom! {
        /// An empty set.
        #[must_use]
        pub const fn new() -> Self {
            Self(array![AtomicUsize::new(0); WORDS])
        }
    }

    /// T1: the caller's next look at the lock comes after the fence, which pairs with the one in `take_out`. The insertion alone is a
    /// full fence on x86 only.
    pub(crate) fn insert(&self, cpu: usize) {
        // Relaxed: ordered by the fence.
        self.0[cpu / BITS].fetch_or(1 << (cpu % BITS), Ordering::Relaxed);
        if !mutant!("sleepers-no-fence": false => true) {
            fence(Ordering::SeqCst);
        }
    }

    /// Whether `cpu` was still in it.
    pub(crate) fn remove(&self, cpu: usize) -> bool {
        let bit = 1 << (cpu % BITS);
        // Relaxed: decides who kicks, and publishes nothing.
        self.0[cpu / BITS].fetch_and(!bit, Ordering::Relaxed) & bit != 0
    }

    /// Takes CPUs out, for `taken` to kick, until it returns false. The first is the next after `cpu`, by number and around.
    #[inline]
    fn take_out(&self, cpu: usize, mut taken: impl FnMut(usize) -> bool) {
        // The caller has written the lock's word, and reads the set after that; pairs with the fence in `insert`.
        fence(Ordering::SeqCst);
        let first = cpu + 1;
        let (first_word, not_before) = (first / BITS % WORDS, usize::MAX << (first % BITS));
        for step in 0..=WORDS {
            let index = (first_word + step) % WORDS;
            // Relaxed: ordered by the fence; `remove` decides.
            let mut bits = self.0[index].load(Ordering::Relaxed);
            if step == 0 {
                bits &= not_before;
            } else if step == WORDS {
                bits &= !not_before;
            }
            while bits != 0 {
                let cpu = index * BITS + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                if self.remove(cpu) && !taken(cpu) {
                    return;
                }
            }
        }
    }

    /// Takes the next CPU after `cpu` out, if there is any.
    pub(crate) fn take_one(&self, cpu: usize) -> Option<usize> {
        let mut next = None;
        self.take_out(cpu, |cpu| {
            next = Some(cpu);
            false
        });
        next
    }

    /// Whether `cpu` is in it.
    #[must_use]
    pub fn contains(&self, cpu: usize) -> bool {
        self.0[cpu / BITS].load(Ordering::Relaxed) & 1 << (cpu % BITS) != 0
    }
}

/// State that a waiter keeps from one look at the lock to the next. A CPU waits for one lock at a time.
struct Waiting {
    /// When the spinning began; 0: not yet.
    since: AtomicUsize,
    /// Not 0: this CPU has entered itself into the lock's set, and has not slept yet.
    registered: AtomicU8,
}

/// The memory that all locks share whose waiters sleep like this.
pub struct SleeperDomain<P, const CPUS: usize> {
    platform: P,
    waiting: [CachePadded<Waiting>; CPUS],
}

impl<P: Platform, const CPUS: usize> SleeperDomain<P, CPUS> {
    const_unless_loom! {
        /// No waiters.
        #[must_use]
        pub const fn new(platform: P) -> Self {
            let waiting = array![
                CachePadded::new(Waiting { since: AtomicUsize::new(0), registered: AtomicU8::new(0) });
                CPUS
            ];
            Self { platform, waiting }
        }
    }

    #[inline(always)]
    fn this(&self) -> &Waiting {
        &self.waiting[self.platform.cpu()]
    }

    /// The calling CPU is about to ask for a lock.
    #[inline(always)]
    pub fn asking(&self) {
        // Relaxed, here and below: only this CPU accesses its own `Waiting`.
        self.this().since.store(0, Ordering::Relaxed);
    }

    /// Whether the threshold is still ahead of the calling CPU, which waits.
    #[inline]
    pub fn is_patient(&self) -> bool {
        let (since, now) = (&self.this().since, self.platform.now() as usize);
        match since.load(Ordering::Relaxed) {
            0 => {
                since.store(now, Ordering::Relaxed);
                true
            }
            begun => now.wrapping_sub(begun) < self.platform.spin_threshold() as usize,
        }
    }

    /// A look at the lock has failed.
    #[inline]
    pub fn relax<const WORDS: usize>(&self, sleepers: &Sleepers<WORDS>) {
        self.platform.announce(Activity::Waiter);
        let (cpu, waiting) = (self.platform.cpu(), self.this());
        if self.is_patient() {
            self.platform.pause();
        } else if waiting.registered.load(Ordering::Relaxed) == 0 {
            waiting.registered.store(1, Ordering::Relaxed);
            sleepers.insert(cpu);
        } else {
            // Even if an unlock has taken this CPU out already: the kick is on its way, and is used up here.
            self.platform.wait(|| true);
            // The CPU that woke this one has taken it out, unless a stray kick ended the sleep.
            mutant!("sleepers-stay-after-a-stray-kick": _ = sleepers.remove(cpu) => ());
            waiting.registered.store(0, Ordering::Relaxed);
        }
    }

    /// The calling CPU holds the lock.
    #[inline(always)]
    pub fn holding<const WORDS: usize>(&self, sleepers: &Sleepers<WORDS>) {
        let waiting = self.this();
        if waiting.registered.load(Ordering::Relaxed) != 0 {
            waiting.registered.store(0, Ordering::Relaxed);
            // Before this CPU's own unlock, so that a CPU that still finds it there knows of an unlock to come.
            sleepers.remove(self.platform.cpu());
        }
    }

    /// The calling CPU has released the lock.
    #[inline(always)]
    pub fn released<const WORDS: usize>(&self, sleepers: &Sleepers<WORDS>, wake: Wake) {
        sleepers.take_out(self.platform.cpu(), |cpu| {
            self.platform.kick(cpu);
            wake == Wake::All
        });
    }
}

impl<P: Platform, const CPUS: usize> Domain for SleeperDomain<P, CPUS> {
    type Platform = P;

    #[inline(always)]
    fn platform(&self) -> &P {
        &self.platform
    }
}
