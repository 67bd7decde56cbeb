//! Values under locks: what guards do, on CPUs that are threads and number themselves.

use std::{
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
};

use haltkick_locks::{
    guarded::{Mutex, RwLock},
    *,
};

use crate::{support::rounds, threads::Threads};

/// Few: fair locks make CPUs wait for threads that do not run.
const THREADS: usize = 3;

home! {
    Plain: Threads = Threads;
    Queues: QSpinDomain<Threads, 64> = QSpinDomain::new(Threads);
    Tickets: PvTicketDomain<Threads, 64> = PvTicketDomain::new(Threads);
    McsQueues: McsDomain<Threads, 64> = McsDomain::new(Threads);
    ClhQueues: ClhDomain<Threads, 64> = ClhDomain::new(Threads);
    Owners: OwnerYieldDomain<Threads, 64> = OwnerYieldDomain::new(Threads);
    Readers: PerCpuRwDomain<&'static Threads, [ReaderSlot; 64]> =
        PerCpuRwDomain::new(&Threads, [const { ReaderSlot::new() }; 64]);
}

/// Threads that count in a plain integer, by each way to take the lock.
macro_rules! mutexes {
    ($($name:ident: $lock:ty, $home:ty;)+) => {$(
        #[test]
        fn $name() {
            static COUNT: Mutex<u64, $lock, $home> = Mutex::new(0);
            thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| {
                        for _ in 0..rounds(300) {
                            let mut count = COUNT.try_lock().unwrap_or_else(|| COUNT.lock());
                            let seen = *count;
                            if seen % 64 == 0 {
                                thread::yield_now();
                            }
                            *count = seen + 1;
                        }
                    });
                }
            });
            assert_eq!(*COUNT.lock(), (THREADS * rounds(300)) as u64);
        }
    )+};
}

mutexes! {
    only_one_thread_has_a_value_under_tas: Tas, Plain;
    only_one_thread_has_a_value_under_slice_tas: SliceTas, Plain;
    only_one_thread_has_a_value_under_ticket: CachePadded<Ticket>, Plain;
    only_one_thread_has_a_value_under_pv_ticket: PvTicket, Tickets;
    only_one_thread_has_a_value_under_mcs: Mcs, McsQueues;
    only_one_thread_has_a_value_under_clh: Clh, ClhQueues;
    only_one_thread_has_a_value_under_owner_yield: OwnerYield, Owners;
    only_one_thread_has_a_value_under_native: QSpinLock<Native>, Queues;
    only_one_thread_has_a_value_under_pv: QSpinLock<Pv>, Queues;
    only_one_thread_has_a_value_under_pv_in_a_whole_word: QSpinLock<Pv, Whole>, Queues;
    only_one_thread_has_a_value_under_work_conserving: QSpinLock<WorkConserving>, Queues;
}

macro_rules! rw_locks {
    ($($name:ident: $lock:ty, $home:ty;)+) => {$(
        #[test]
        fn $name() {
            static PAIR: RwLock<(u64, u64), $lock, $home> = RwLock::new((0, 0));
            thread::scope(|scope| {
                for number in 0..THREADS {
                    scope.spawn(move || {
                        for round in 0..rounds(300) {
                            if (round + number) % 4 == 0 {
                                let mut pair = PAIR.try_write().unwrap_or_else(|| PAIR.write());
                                pair.0 += 1;
                                pair.1 += 1;
                            } else {
                                let pair = PAIR.try_read().unwrap_or_else(|| PAIR.read());
                                assert_eq!(pair.0, pair.1);
                            }
                        }
                    });
                }
            });
            let written = (0..THREADS).map(|number| (0..rounds(300)).filter(|round| (round + number) % 4 == 0).count());
            assert_eq!(PAIR.read().0, written.sum::<usize>() as u64);
        }
    )+};
}

rw_locks! {
    a_writer_is_alone_with_a_value_under_unfair: UnfairRwLock, Plain;
    a_writer_is_alone_with_a_value_under_fair: FairRwLock<Ticket>, Plain;
    a_writer_is_alone_with_a_value_under_fair_on_mcs: FairRwLock<Mcs>, McsQueues;
    a_writer_is_alone_with_a_value_under_per_cpu: PerCpuRwLock<UnfairRwLock>, Readers;
}

#[test]
fn a_value_costs_no_more_than_its_lock() {
    assert_eq!(size_of::<Mutex<u32, QSpinLock<Pv>, Queues>>(), 8);
    assert_eq!(size_of::<RwLock<u32, UnfairRwLock, Plain>>(), 8);
}

#[test]
fn a_section_that_panics_releases_its_lock() {
    static COUNT: Mutex<u64, Mcs, McsQueues> = Mutex::new(0);
    catch_unwind(|| {
        *COUNT.lock() = 1;
        let _guard = COUNT.lock();
        panic!("on purpose");
    })
    .expect_err("it panics");
    assert_eq!(COUNT.try_lock().as_deref(), Some(&1));
}

#[test]
fn guards_may_be_dropped_in_any_order() {
    static FIRST: Mutex<u64, Mcs, McsQueues> = Mutex::new(0);
    static SECOND: Mutex<u64, Mcs, McsQueues> = Mutex::new(0);
    let first = FIRST.lock();
    let second = SECOND.lock();
    drop(first);
    assert!(FIRST.try_lock().is_some() && SECOND.try_lock().is_none());
    drop(second);
    assert!(SECOND.try_lock().is_some());
}

/// A CPU that counts its pins, and whose interrupts are on or off.
struct Counting;

thread_local! {
    static PINS: Cell<i64> = const { Cell::new(0) };
    static ON: Cell<bool> = const { Cell::new(true) };
}

impl Delegate for Counting {
    type Platform = Threads;

    fn platform(&self) -> &Threads {
        &Threads
    }
}

// SAFETY: as `Threads`.
#[expect(unsafe_code, reason = "the promise of the platform above")]
unsafe impl TrustedCpu for Counting {
    fn pin(&self) {
        PINS.set(PINS.get() + 1);
    }

    fn unpin(&self) {
        PINS.set(PINS.get() - 1);
    }
}

impl Interrupts for Counting {
    type Saved = bool;

    fn turn_off(&self) -> bool {
        ON.replace(false)
    }

    fn restore(&self, saved: bool) {
        ON.set(saved);
    }
}

home! { Counted: Counting = Counting; }

#[test]
fn a_cpu_is_pinned_as_long_as_there_is_a_guard() {
    static VALUE: Mutex<(), Ticket, Counted> = Mutex::new(());
    static SHARED: RwLock<(), FairRwLock<Ticket>, Counted> = RwLock::new(());
    let held = VALUE.lock();
    assert_eq!(PINS.get(), 1);
    assert!(VALUE.try_lock().is_none());
    assert_eq!(PINS.get(), 1, "who does not get the lock is not pinned");
    let read = SHARED.read();
    assert!(SHARED.try_write().is_none());
    assert_eq!(PINS.get(), 2);
    drop(held);
    drop(read);
    let written = SHARED.try_write();
    assert!(written.is_some() && SHARED.try_read().is_none());
    assert_eq!(PINS.get(), 1);
    drop(written);
    assert_eq!(PINS.get(), 0);
}

#[test]
fn interrupts_are_off_for_the_section_and_then_as_they_were() {
    static OUTER: Mutex<u64, Ticket, Counted> = Mutex::new(0);
    static INNER: Mutex<u64, Ticket, Counted> = Mutex::new(0);
    let answer = OUTER.with_interrupts_off(|outer| {
        assert!(!ON.get());
        INNER.with_interrupts_off(|inner| *inner += 1);
        assert!(!ON.get(), "off before the inner section, and so after it");
        *outer += 1;
        *outer
    });
    assert_eq!((answer, ON.get(), PINS.get()), (1, true, 0));
    catch_unwind(|| OUTER.with_interrupts_off(|_| panic!("on purpose"))).expect_err("it panics");
    assert!(ON.get() && OUTER.try_lock().is_some());
}

#[test]
fn interrupts_are_off_for_readers_and_writers_who_say_so() {
    static VALUE: RwLock<u64, FairRwLock<Ticket>, Counted> = RwLock::new(0);
    VALUE.write_with_interrupts_off(|value| {
        assert!(!ON.get() && VALUE.try_read().is_none());
        *value += 1;
    });
    assert!(ON.get());
    let read = VALUE.read_with_interrupts_off(|value| {
        assert!(!ON.get() && VALUE.try_read().is_some() && VALUE.try_write().is_none());
        *value
    });
    assert_eq!((read, ON.get(), PINS.get()), (1, true, 0));
    for panics in [
        catch_unwind(|| VALUE.write_with_interrupts_off(|_| panic!("on purpose"))),
        catch_unwind(|| VALUE.read_with_interrupts_off(|_| panic!("on purpose"))),
    ] {
        panics.expect_err("it panics");
        assert!(ON.get() && VALUE.try_write().is_some());
    }
}

/// A lock that says it is crowded after two readers.
struct Small(UnfairRwLock);

static READERS_OF_SMALL: AtomicU64 = AtomicU64::new(0);

impl haltkick_locks::RwLock<Threads> for Small {
    type ReadToken = ();
    type WriteToken = ();

    fn read(&self, domain: &Threads) {
        self.0.read(domain);
        READERS_OF_SMALL.fetch_add(1, Relaxed);
    }

    fn try_read(&self, domain: &Threads) -> Option<()> {
        self.0.try_read(domain).inspect(|()| _ = READERS_OF_SMALL.fetch_add(1, Relaxed))
    }

    fn read_unlock(&self, domain: &Threads, (): ()) {
        READERS_OF_SMALL.fetch_sub(1, Relaxed);
        self.0.read_unlock(domain, ());
    }

    fn write(&self, domain: &Threads) {
        self.0.write(domain);
    }

    fn try_write(&self, domain: &Threads) -> Option<()> {
        self.0.try_write(domain)
    }

    fn write_unlock(&self, domain: &Threads, (): ()) {
        self.0.write_unlock(domain, ());
    }
}

// SAFETY: the lock inside.
#[expect(unsafe_code, reason = "the promise of the lock inside")]
unsafe impl ExclusiveWriter<Threads> for Small {
    fn is_crowded(&self) -> bool {
        READERS_OF_SMALL.load(Relaxed) > 2
    }
}

impl guarded::Free for Small {
    const FREE: Self = Self(UnfairRwLock::new());
}

#[test]
fn a_reader_too_many_gives_the_lock_back_and_panics() {
    static VALUE: RwLock<(), Small, Plain> = RwLock::new(());
    let readers = [VALUE.read(), VALUE.read()];
    catch_unwind(|| drop(VALUE.read())).expect_err("the third is one too many");
    catch_unwind(|| drop(VALUE.try_read())).expect_err("this one, too");
    assert_eq!(READERS_OF_SMALL.load(Relaxed), 2);
    drop(readers);
    assert!(VALUE.try_write().is_some());
}

/// Kept guards are counted in the word: the reader whose count would wrap is not let in.
#[test]
#[cfg_attr(miri, ignore = "four million guards")]
fn readers_that_never_leave_do_not_let_a_writer_in() {
    static VALUE: RwLock<(), FairRwLock<Ticket>, Plain> = RwLock::new(());
    let kept = Cell::new(0_u32);
    let result = catch_unwind(AssertUnwindSafe(|| {
        loop {
            std::mem::forget(VALUE.read());
            kept.set(kept.get() + 1);
            assert!(kept.get() < 1 << 23, "the count has wrapped");
        }
    }));
    let message = result.expect_err("it ends").downcast::<&str>().expect("the message of the lock");
    assert!(message.contains("more readers"), "{message}");
    assert_eq!(kept.get(), (1 << 22) - 1);
    assert!(VALUE.try_write().is_none());
}

#[cfg(feature = "lock_api")]
mod raw {
    use super::*;

    type RawMutex = lock_api::Mutex<guarded::RawLock<Mcs, McsQueues>, u64>;
    type RawRwLock = lock_api::RwLock<guarded::RawLock<FairRwLock<QSpinLock<Pv>>, Queues>, (u64, u64)>;

    #[test]
    fn only_one_thread_has_a_value_of_lock_api() {
        static COUNT: RawMutex = RawMutex::new(0);
        static PAIR: RawRwLock = RawRwLock::new((0, 0));
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for round in 0..rounds(300) {
                        *COUNT.try_lock().unwrap_or_else(|| COUNT.lock()) += 1;
                        if round % 4 == 0 {
                            let mut pair = PAIR.write();
                            pair.0 += 1;
                            pair.1 += 1;
                        } else {
                            let pair = PAIR.try_read().unwrap_or_else(|| PAIR.read());
                            assert_eq!(pair.0, pair.1);
                        }
                    }
                });
            }
        });
        assert_eq!(*COUNT.lock(), (THREADS * rounds(300)) as u64);
        assert_eq!(PAIR.read().0, (THREADS * rounds(300).div_ceil(4)) as u64);
    }

    #[test]
    fn a_look_at_a_raw_lock_leaves_it_as_it_was() {
        static COUNT: RawMutex = RawMutex::new(0);
        static PAIR: RawRwLock = RawRwLock::new((0, 0));
        assert!(!COUNT.is_locked() && !PAIR.is_locked() && !PAIR.is_locked_exclusive());
        let (guard, read) = (COUNT.lock(), PAIR.read());
        assert!(COUNT.is_locked() && PAIR.is_locked() && !PAIR.is_locked_exclusive());
        drop((guard, read));
        let written = PAIR.write();
        assert!(PAIR.is_locked_exclusive() && !COUNT.is_locked());
        drop(written);
        assert!(PAIR.try_write().is_some());
    }

    #[test]
    fn a_raw_lock_pins_its_cpu() {
        static VALUE: lock_api::Mutex<guarded::RawLock<Ticket, Counted>, ()> = lock_api::Mutex::new(());
        let guard = VALUE.lock();
        assert!(VALUE.try_lock().is_none());
        assert_eq!(PINS.get(), 1);
        drop(guard);
        assert_eq!(PINS.get(), 0);
    }
}

#[cfg(feature = "lock_api_04")]
mod tokenless {
    use super::*;

    type RawMutex = lock_api_04::Mutex<guarded::TokenlessLock<QSpinLock<Pv>, Queues>, u64>;
    type RawRwLock =
        lock_api_04::RwLock<guarded::TokenlessLock<FairRwLock<QSpinLock<Pv>>, Queues>, (u64, u64)>;

    #[test]
    fn only_one_thread_has_a_value_of_lock_api_04() {
        static COUNT: RawMutex = RawMutex::new(0);
        static PAIR: RawRwLock = RawRwLock::new((0, 0));
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for round in 0..rounds(300) {
                        *COUNT.try_lock().unwrap_or_else(|| COUNT.lock()) += 1;
                        if round % 4 == 0 {
                            let mut pair = PAIR.write();
                            pair.0 += 1;
                            pair.1 += 1;
                        } else {
                            let pair = PAIR.try_read().unwrap_or_else(|| PAIR.read());
                            assert_eq!(pair.0, pair.1);
                        }
                    }
                });
            }
        });
        assert_eq!(*COUNT.lock(), (THREADS * rounds(300)) as u64);
        assert_eq!(PAIR.read().0, (THREADS * rounds(300).div_ceil(4)) as u64);
    }

    #[test]
    fn a_tokenless_lock_pins_its_cpu() {
        static VALUE: lock_api_04::Mutex<guarded::TokenlessLock<Ticket, Counted>, ()> =
            lock_api_04::Mutex::new(());
        let guard = VALUE.lock();
        assert!(VALUE.try_lock().is_none());
        assert_eq!(PINS.get(), 1);
        drop(guard);
        assert_eq!(PINS.get(), 0);
    }
}

#[cfg(feature = "checked")]
mod checked {
    use haltkick_locks::checks::{Checker, Checks};

    use super::*;

    struct Checked;

    static CHECKS: Checks<64> = Checks::new();

    impl Delegate for Checked {
        type Platform = Threads;

        fn platform(&self) -> &Threads {
            &Threads
        }
    }

    // SAFETY: as `Threads`.
    #[expect(unsafe_code, reason = "the promise of the platform above")]
    unsafe impl TrustedCpu for Checked {
        fn pin(&self) {}

        fn unpin(&self) {}

        fn checks(&self) -> Option<Checker<'_>> {
            Some(CHECKS.checker())
        }
    }

    home! { Plain: Checked = Checked; }

    #[test]
    fn readers_that_may_nest_are_no_fault() {
        static FIRST: RwLock<(), UnfairRwLock, Plain> = RwLock::new(());
        static SECOND: RwLock<(), UnfairRwLock, Plain> = RwLock::new(());
        for [outer, inner] in [[&FIRST, &SECOND], [&SECOND, &FIRST]] {
            let guards = [outer.read(), inner.read(), outer.read()];
            assert!(outer.try_write().is_none());
            drop(guards);
        }
        let read = FIRST.read();
        catch_unwind(|| drop(FIRST.write())).expect_err("a reader that becomes a writer waits for itself");
        drop(read);
    }
}
