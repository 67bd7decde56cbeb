//! Per-CPU reader-writer lock ("big reader"): a reader writes to a line of its own CPU, a writer looks at all of them.
//!
//! ```text
//! each CPU has a slot:  the lock that it is reading, or none
//! each lock has a flag: a writer has it or wants it;  and a reader-writer lock underneath, which orders the writers
//!
//!     reader                               writer
//! C1  slot := this lock                C6  write-lock underneath
//!     full fence                       C7  flag := 1
//! C2  flag clear: done                     full fence
//! C3  slot := none                     C8  for each CPU: wait until its slot is another one's
//! C4  read-lock underneath                 ...
//! C5  slot := this lock; unlock        C9  flag := 0; write-unlock underneath
//! ```
//!
//! Either the reader sees the flag or the writer sees the slot: that is what the two fences are for. In C5 the reader
//! owns the lock underneath, so no writer is between C6 and C9, and the next one's C6 comes after C5's unlock.
//!
//! A CPU that is reading another lock of the domain already uses the lock underneath. If that one is fair, it must not do
//! so twice with the same lock, as there.
//!
//! A CPU that is reading *this* lock already, by its slot, must not read it again, from an interrupt neither, fair or
//! not: a writer in C8 has the lock underneath and waits for the slot, which the CPU in C4 would keep until the writer
//! has left. That is refused with a panic, whether or not there is such a writer just then.
//!
//! Reading costs a private store and a fence; writing costs a look at every CPU, and a wait for each reader that has
//! been descheduled.

use core::ops::Deref;

use crate::{
    contract::{Activity, Domain, Platform, Point, RwLock, wait_until},
    faults::mutant::mutant,
    memory::{AtomicU32, AtomicUsize, CachePadded, Ordering::*, const_unless_loom, fence, fresh},
};

/// The address of no lock.
const NOBODY: usize = 0;

/// Reader-writer lock with a slot for each CPU, on top of the reader-writer lock `U`.
///
/// Known to readers' slots by its address: it must not be moved while it is held.
#[derive(Debug)]
pub struct PerCpuRwLock<U> {
    underneath: U,
    /// 1 while a writer has the lock or waits for readers to leave.
    writer: AtomicU32,
}

/// State shared by all per-CPU reader-writer locks of one kernel: slots `S` for all CPUs (an array, or a reference to a
/// slice), and the domain of the locks underneath, to which `R` is a reference.
#[derive(Debug)]
pub struct PerCpuRwDomain<R, S> {
    underneath: R,
    slots: S,
}

/// The lock that one CPU is reading.
#[derive(Debug)]
pub struct ReaderSlot(
    /// Address of the lock. Written by this CPU only.
    CachePadded<AtomicUsize>,
);

fresh!(pub ReaderSlot(CachePadded::new(AtomicUsize::new(NOBODY))));

/// How a reader holds the lock, for `read_unlock`.
#[derive(Clone, Copy, Debug)]
#[must_use = "without its token the lock cannot be released"]
pub enum PerCpuReadToken<T> {
    /// By the slot of its CPU.
    Slot,
    /// By the lock underneath.
    Underneath(T),
}

impl<R, S: AsRef<[ReaderSlot]>> PerCpuRwDomain<R, S> {
    /// The memory of as many CPUs as there are `slots`, none of which reads.
    pub const fn new(underneath: R, slots: S) -> Self {
        Self { underneath, slots }
    }

    /// How many CPUs are reading by their slot. A snapshot, for diagnosis.
    pub fn readers(&self) -> usize {
        // Relaxed: a snapshot.
        self.slots.as_ref().iter().filter(|slot| slot.0.load(Relaxed) != NOBODY).count()
    }

    fn slot(&self, cpu: usize) -> &AtomicUsize {
        &self.slots.as_ref()[cpu].0
    }
}

impl<U> PerCpuRwLock<U> {
    const_unless_loom! {
        /// A free lock on top of the free lock `underneath`.
        pub const fn new(underneath: U) -> Self {
            Self { underneath, writer: AtomicU32::new(0) }
        }
    }

    #[inline(always)]
    fn address(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }

    /// C1, C2. `false`: a writer has the lock or wants it, and the slot is empty again.
    #[inline(always)]
    fn enter<P: Platform>(&self, platform: &P, slot: &AtomicUsize) -> bool {
        // Relaxed: the fence orders it before the load below. Pairs with C8.
        slot.store(self.address(), Relaxed);
        // Store buffering: without it this CPU may load the flag before its slot is visible, and the writer may find
        // the slot empty after setting the flag. Partner: the fence in `drain`.
        mutant!("percpu-no-fence-in-reader": fence(SeqCst) => ());
        platform.point(Point::ReaderAnnounced);
        // Acquire: pairs with the release in `write_unlock`: the last writer's section comes before this one.
        if self.writer.load(mutant!("percpu-relaxed-flag": Acquire => Relaxed)) == 0 {
            return true;
        }
        // Relaxed: this reader has read nothing.
        slot.store(NOBODY, Relaxed);
        false
    }

    /// C4, C5.
    #[cold]
    #[inline(never)]
    fn enter_behind_the_writer<D: Domain>(&self, domain: &D, slot: &AtomicUsize)
    where
        U: RwLock<D>,
    {
        let token = self.underneath.read(domain);
        // Relaxed: published by the release in `read_unlock`, which the next writer's C6 acquires.
        slot.store(self.address(), Relaxed);
        self.underneath.read_unlock(domain, token);
    }

    /// C7, C8: the lock underneath is held for writing.
    fn drain<P: Platform>(&self, platform: &P, slots: &[ReaderSlot]) {
        // Relaxed: the fence orders it before the loads below. Pairs with C2.
        self.writer.store(1, Relaxed);
        // Partner: the fence in `enter`.
        mutant!("percpu-no-fence-in-writer": fence(SeqCst) => ());
        for ReaderSlot(slot) in slots {
            // Acquire: pairs with the release in `read_unlock`.
            let acquire = mutant!("percpu-relaxed-drain": Acquire => Relaxed);
            if slot.load(acquire) == self.address() {
                wait_until(platform, Activity::Head, || slot.load(acquire) != self.address());
            }
        }
    }
}

impl<R, S> Domain for PerCpuRwDomain<R, S>
where
    R: Deref<Target: Domain + Sized> + Sync,
    S: AsRef<[ReaderSlot]> + Sync,
{
    type Platform = <R::Target as Domain>::Platform;

    #[inline(always)]
    fn platform(&self) -> &Self::Platform {
        self.underneath.platform()
    }
}

impl<U, R, S> RwLock<PerCpuRwDomain<R, S>> for PerCpuRwLock<U>
where
    R: Deref<Target: Domain + Sized> + Sync,
    S: AsRef<[ReaderSlot]> + Sync,
    U: RwLock<R::Target>,
{
    type ReadToken = PerCpuReadToken<U::ReadToken>;
    type WriteToken = U::WriteToken;

    #[inline(always)]
    fn read(&self, domain: &PerCpuRwDomain<R, S>) -> Self::ReadToken {
        let platform = domain.underneath.platform();
        let slot = domain.slot(platform.cpu());
        // Relaxed: only this CPU writes it.
        let reading = mutant!("percpu-forget-outer": slot.load(Relaxed) => NOBODY);
        if reading != NOBODY {
            assert!(
                mutant!("percpu-wait-for-own-writer": reading != self.address() => true),
                "CPU {} reads this lock already: a writer that waits for it would never let it in again",
                platform.cpu()
            );
            return PerCpuReadToken::Underneath(self.underneath.read(&*domain.underneath));
        }
        if !self.enter(platform, slot) {
            self.enter_behind_the_writer(&*domain.underneath, slot);
        }
        PerCpuReadToken::Slot
    }

    #[inline(always)]
    fn read_unlock(&self, domain: &PerCpuRwDomain<R, S>, token: Self::ReadToken) {
        match token {
            PerCpuReadToken::Slot => {
                let slot = domain.slot(domain.underneath.platform().cpu());
                // Release: pairs with the acquires in `drain`: what was read has been read.
                slot.store(NOBODY, mutant!("percpu-relaxed-leave": Release => Relaxed));
            }
            PerCpuReadToken::Underneath(token) => self.underneath.read_unlock(&*domain.underneath, token),
        }
    }

    #[inline]
    fn write(&self, domain: &PerCpuRwDomain<R, S>) -> U::WriteToken {
        let token = self.underneath.write(&*domain.underneath);
        self.drain(domain.underneath.platform(), domain.slots.as_ref());
        token
    }

    #[inline]
    fn write_unlock(&self, domain: &PerCpuRwDomain<R, S>, token: U::WriteToken) {
        // Release: pairs with C2 of readers that find the flag clear.
        self.writer.store(0, mutant!("percpu-relaxed-write-unlock": Release => Relaxed));
        self.underneath.write_unlock(&*domain.underneath, token);
    }
}
