//! Faults in the use of locks: each planted one is found, and sound use is silent.

use std::{
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Mutex as StdMutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
};

use haltkick_qspin::{
    checks::{Checker, Checks, Context, Fault},
    guarded::{Mutex, RwLock},
    *,
};
use haltkick_testing::Watchdog;

use crate::{support::rounds, threads::Threads};

thread_local! {
    static CONTEXT: Cell<Option<Context>> = const { Cell::new(None) };
    /// Pins of this thread by a strict kernel.
    static PINS: Cell<isize> = const { Cell::new(0) };
}

/// Checks and faults of one kernel: two tests do not see each other's.
struct State {
    checks: Checks<64, 64>,
    found: StdMutex<Vec<String>>,
}

static STATES: [State; 17] =
    [const { State { checks: Checks::new(), found: StdMutex::new(Vec::new()) } }; 17];

/// A kernel that writes faults down and goes on.
struct Kernel<const N: usize>;

impl<const N: usize> Kernel<N> {
    /// The faults since the last call.
    fn found() -> Vec<String> {
        std::mem::take(&mut STATES[N].found.lock().unwrap())
    }

    /// The one fault since the last call.
    fn the_fault() -> String {
        let mut found = Self::found();
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    }
}

impl<const N: usize> Delegate for Kernel<N> {
    type Platform = Threads;

    fn platform(&self) -> &Threads {
        &Threads
    }
}

// SAFETY: as `Threads`.
#[expect(unsafe_code, reason = "the promise of the platform above")]
unsafe impl<const N: usize> TrustedCpu for Kernel<N> {
    fn pin(&self) {}

    fn unpin(&self) {}

    fn checks(&self) -> Option<Checker<'_>> {
        Some(STATES[N].checks.checker())
    }

    fn context(&self) -> Option<Context> {
        CONTEXT.get()
    }

    fn found(&self, fault: &Fault) {
        let text = fault.to_string();
        assert!(!text.contains('\n'), "{text}");
        STATES[N].found.lock().unwrap().push(text);
    }
}

/// Declares kernels that stop the task at a fault.
macro_rules! strict {
    ($name:ident, $state:expr $(, $found:item)?) => {
        struct $name;

        impl Delegate for $name {
            type Platform = Threads;

            fn platform(&self) -> &Threads {
                &Threads
            }
        }

        // SAFETY: as `Threads`.
        #[expect(unsafe_code, reason = "the promise of the platform above")]
        unsafe impl TrustedCpu for $name {
            fn pin(&self) {
                PINS.set(PINS.get() + 1);
            }

            fn unpin(&self) {
                PINS.set(PINS.get() - 1);
            }

            fn context(&self) -> Option<Context> {
                CONTEXT.get()
            }

            fn checks(&self) -> Option<Checker<'_>> {
                Some(STATES[$state].checks.checker())
            }

            $($found)?
        }
    };
}

fn panic_of(run: impl FnOnce()) -> String {
    *catch_unwind(AssertUnwindSafe(run)).expect_err("a fault").downcast::<String>().expect("its text")
}

/// This file and a line of it, as faults name places.
macro_rules! here {
    () => {
        concat!(file!(), ":", line!())
    };
}

#[test]
fn a_cpu_that_asks_for_its_own_lock_is_told() {
    strict!(Strict, 0);
    home! { Plain: Strict = Strict; }
    static OWN: Mutex<u64, Ticket, Plain> = Mutex::new(0);
    let (guard, since) = (OWN.lock(), here!());
    let text = panic_of(|| drop(OWN.lock()));
    assert!(text.contains("asks at") && text.contains(since) && text.contains("release it first"), "{text}");
    drop(guard);
    *OWN.lock() += 1;
    assert!(OWN.try_lock().is_some());
}

#[test]
fn a_panic_leaves_no_cpu_pinned() {
    strict!(Strict, 15);
    home! { Plain: Strict = Strict; }
    static A: Mutex<(), Ticket, Plain> = Mutex::new(());
    static B: RwLock<(), FairRwLock<Ticket>, Plain> = RwLock::new(());
    // A context of the second use that does not go with the first one's.
    within(Context::Handler, || drop((A.lock(), B.write())));
    within(Context::InterruptsOn, || {
        assert!(panic_of(|| drop(A.try_lock())).contains("turn interrupts off here"));
    });
    assert_eq!(PINS.get(), 0, "of a try");
    let read = B.read();
    assert!(panic_of(|| drop(A.lock())).contains("one order"));
    assert_eq!(PINS.get(), 1, "of a lock that is asked for");
    assert!(panic_of(|| drop(B.write())).contains("for which it asked"));
    drop(read);
    let moved = Moved(A.lock());
    assert_eq!(PINS.get(), 1);
    let drop_all = |moved: Moved<_>| drop(moved);
    let release = move || {
        PINS.set(1);
        assert!(panic_of(|| drop_all(moved)).contains("does not have"));
        PINS.get()
    };
    assert_eq!(thread::scope(|scope| scope.spawn(release).join().unwrap()), 0, "of a release");
}

#[test]
fn a_reader_does_not_ask_again_nor_become_a_writer() {
    strict!(Strict, 1);
    home! { Plain: Strict = Strict; }
    static VALUE: RwLock<(), FairRwLock<Ticket>, Plain> = RwLock::new(());
    let read = VALUE.read();
    assert!(panic_of(|| drop(VALUE.read())).contains("for which it asked"));
    assert!(panic_of(|| drop(VALUE.write())).contains("for which it asked"));
    assert!(VALUE.try_read().is_some() && VALUE.try_write().is_none());
    drop(read);
    let written = VALUE.write();
    assert!(panic_of(|| drop(VALUE.read())).contains("for which it asked"));
    drop(written);
    drop(VALUE.read());
}

#[test]
fn two_locks_in_two_orders_are_found_without_a_meeting() {
    home! { Plain: Kernel<2> = Kernel; }
    static A: Mutex<(), Ticket, Plain> = Mutex::new(());
    static B: Mutex<(), Tas, Plain> = Mutex::new(());
    let guard = A.lock();
    let (inner, elsewhere) = (B.lock(), here!());
    drop((inner, guard));
    assert_eq!(Kernel::<2>::found(), [""; 0]);
    let backwards = || {
        let _b = B.lock();
        drop(A.lock());
    };
    backwards();
    let text = Kernel::<2>::the_fault();
    assert!(text.contains(&format!("opposite at {elsewhere}")) && text.contains("one order"), "{text}");
    assert!(!text.contains("through other locks"), "{text}");
    backwards();
    assert_eq!(Kernel::<2>::found(), [""; 0], "it is told once");
}

#[test]
fn three_locks_in_a_circle_are_found() {
    home! { Plain: Kernel<3> = Kernel; }
    static LOCKS: [Mutex<(), Ticket, Plain>; 3] = [const { Mutex::new(()) }; 3];
    let nested = |outer: usize, inner: usize| {
        let _outer = LOCKS[outer].lock();
        drop(LOCKS[inner].lock());
    };
    nested(0, 1);
    nested(1, 2);
    nested(0, 2);
    assert_eq!(Kernel::<3>::found(), [""; 0]);
    nested(2, 0);
    assert!(Kernel::<3>::the_fault().contains("opposite at"));
    nested(2, 1);
    assert!(Kernel::<3>::the_fault().contains("opposite at"));
}

/// A long way round: 0, 1, ... 9, and from there to 0.
#[test]
fn a_long_circle_is_found_and_said_to_be_one() {
    home! { Plain: Kernel<4> = Kernel; }
    static LOCKS: [Mutex<(), Ticket, Plain>; 10] = [const { Mutex::new(()) }; 10];
    for outer in 0..10 {
        assert_eq!(Kernel::<4>::found(), [""; 0]);
        let _outer = LOCKS[outer].lock();
        drop(LOCKS[(outer + 1) % 10].lock());
    }
    let text = Kernel::<4>::the_fault();
    assert!(text.contains("through other locks"), "{text}");
}

/// Each has one lock before either asks for the second: without a panic they would wait for each other.
#[test]
fn two_cpus_that_would_wait_for_each_other_are_stopped() {
    // Without a word: it is done a thousand times.
    strict!(
        Strict,
        5,
        fn found(&self, fault: &Fault) {
            self.unpin();
            resume_unwind(Box::new(fault.to_string()));
        }
    );
    home! { Plain: Strict = Strict; }
    static LOCKS: [Mutex<(), Ticket, Plain>; 2] = [const { Mutex::new(()) }; 2];
    let _watchdog = Watchdog::new(String::new);
    let arrived = AtomicUsize::new(0);
    // Spinning, so that both go on at once.
    let await_both = || {
        let met = arrived.fetch_add(1, SeqCst) / 2 * 2 + 2;
        let mut spins = 0;
        while arrived.load(SeqCst) < met {
            spins += 1;
            if spins > rounds(10_000) {
                thread::yield_now();
            }
        }
    };
    let stopped = AtomicUsize::new(0);
    let rounds = rounds(4_000);
    thread::scope(|scope| {
        for first in 0..2 {
            let (await_both, stopped) = (&await_both, &stopped);
            scope.spawn(move || {
                for round in 0..rounds {
                    let cross = catch_unwind(|| {
                        let _first = LOCKS[first].lock();
                        await_both();
                        drop(LOCKS[1 - first].lock());
                    });
                    if let Err(panic) = cross {
                        let text = panic.downcast::<String>().expect("the text of a fault");
                        assert!(text.contains("one order"), "{text}");
                        stopped.fetch_add(1, SeqCst);
                    }
                    await_both();
                    assert!(stopped.load(SeqCst) > round, "neither was stopped, and neither waits");
                    await_both();
                    if first == 0 {
                        STATES[5].checks.forget(0..usize::MAX);
                    }
                    await_both();
                }
            });
        }
    });
}

fn within(context: Context, run: impl FnOnce()) {
    let before = CONTEXT.replace(Some(context));
    run();
    CONTEXT.set(before);
}

#[test]
fn a_handlers_lock_is_not_taken_with_interrupts_on() {
    home! { Plain: Kernel<6> = Kernel; }
    static LOCKS: [Mutex<(), Ticket, Plain>; 3] = [const { Mutex::new(()) }; 3];
    let take = |lock: usize, context| within(context, || drop(LOCKS[lock].lock()));
    take(0, Context::Handler);
    take(0, Context::InterruptsOff);
    assert_eq!(Kernel::<6>::found(), [""; 0]);
    within(Context::InterruptsOn, || drop(LOCKS[0].try_lock()));
    let text = Kernel::<6>::the_fault();
    assert!(text.contains("turn interrupts off here"), "{text}");
    take(0, Context::InterruptsOn);
    assert_eq!(Kernel::<6>::found(), [""; 0], "it is told once");
    take(1, Context::InterruptsOn);
    within(Context::Handler, || drop(LOCKS[1].try_lock()));
    assert_eq!(Kernel::<6>::found(), [""; 0], "who tries does not wait");
    take(1, Context::Handler);
    let text = Kernel::<6>::the_fault();
    assert!(text.contains("asks in a handler") && text.contains("turn them off there"), "{text}");
    take(2, Context::InterruptsOff);
    take(2, Context::Handler);
    assert_eq!(Kernel::<6>::found(), [""; 0]);
}

#[test]
fn a_fair_lock_is_not_read_in_a_handler_and_elsewhere() {
    home! { Plain: Kernel<7> = Kernel; }
    static VALUE: RwLock<(), FairRwLock<Ticket>, Plain> = RwLock::new(());
    within(Context::InterruptsOn, || drop(VALUE.read()));
    within(Context::Handler, || drop(VALUE.read()));
    assert!(Kernel::<7>::the_fault().contains("asks in a handler"));
}

/// A task that has moved, as one may that is not pinned.
struct Moved<T>(T);

// SAFETY: none: it is the fault.
#[expect(unsafe_code, reason = "a planted fault")]
unsafe impl<T> Send for Moved<T> {}

#[test]
fn a_guard_that_is_dropped_on_another_cpu_is_found() {
    home! { Plain: Kernel<8> = Kernel; }
    static VALUE: Mutex<(), Ticket, Plain> = Mutex::new(());
    let line = line!() + 1;
    let moved = Moved(VALUE.lock());
    let drop_all = |moved: Moved<_>| drop(moved);
    thread::scope(|scope| _ = scope.spawn(move || drop_all(moved)));
    let text = Kernel::<8>::the_fault();
    assert!(text.contains("does not have") && text.contains("`pin`"), "{text}");
    assert!(text.contains(&format!("asked for it at {}:{line}", file!())), "{text}");
    drop(VALUE.lock());
    assert_eq!(Kernel::<8>::found(), [""; 0], "the CPU does not have it any more");
}

/// Every CPU nests four locks in one order, as they come, and a handler takes one with which interrupts are off elsewhere.
#[test]
fn sound_nesting_is_silent() {
    home! {
        Plain: Kernel<9> = Kernel;
        Queues: QSpinDomain<Kernel<9>, 64> = QSpinDomain::new(Kernel);
    }
    static A: Mutex<u64, QSpinLock<Pv>, Queues> = Mutex::new(0);
    static B: RwLock<u64, FairRwLock<Ticket>, Plain> = RwLock::new(0);
    static C: Mutex<u64, QSpinLock<Native>, Queues> = Mutex::new(0);
    static D: Mutex<u64, Ticket, Plain> = Mutex::new(0);
    thread::scope(|scope| {
        for cpu in 0..3 {
            scope.spawn(move || {
                CONTEXT.set(Some(Context::InterruptsOn));
                for round in 0..rounds(300) {
                    let mut a = A.lock();
                    if (round + cpu) % 3 == 0 {
                        let mut b = B.write();
                        *a += 1;
                        drop(a);
                        *b += *C.lock() % 2;
                    } else {
                        let b = B.read();
                        let c = C.try_lock();
                        drop((a, b, c));
                    }
                    let c = C.lock();
                    drop((A.try_lock(), c));
                    within(Context::InterruptsOff, || *D.lock() += 1);
                    within(Context::Handler, || *D.lock() += 1);
                }
            });
        }
    });
    assert_eq!(*D.lock(), 2 * 3 * rounds(300) as u64);
    assert_eq!((Kernel::<9>::found(), STATES[9].checks.missed()), (vec![], 0));
}

#[test]
fn full_tables_are_counted_and_find_what_they_know() {
    home! { Plain: Kernel<10> = Kernel; }
    static LOCKS: [Mutex<(), Ticket, Plain>; 20] = [const { Mutex::new(()) }; 20];
    let checks = &STATES[10].checks;
    let held: Vec<_> = LOCKS[..13].iter().map(Mutex::lock).collect();
    assert_eq!(
        (Kernel::<10>::found(), checks.missed()),
        (vec![], 1),
        "one has found no room, and the rest does not search"
    );
    assert!(checks.is_full());
    drop(held);
    {
        let _one = LOCKS[1].lock();
        drop(LOCKS[0].lock());
    }
    assert_eq!(Kernel::<10>::found(), [""; 0], "there is no room for a new order");
    checks.forget(0..usize::MAX);
    assert!(!checks.is_full());
    let held: Vec<_> = LOCKS[..2].iter().map(Mutex::lock).collect();
    drop(held);
    {
        let _one = LOCKS[1].lock();
        drop(LOCKS[0].lock());
    }
    assert!(Kernel::<10>::the_fault().contains("one order"));
    let before = checks.missed();
    let held: Vec<_> = LOCKS.iter().filter_map(Mutex::try_lock).collect();
    assert_eq!(checks.missed() - before, 20 - 16, "the locks of one CPU");
    drop(held);
    assert_eq!(Kernel::<10>::found(), [""; 0], "what was not noted is not missed at its release");
}

#[test]
fn memory_that_is_used_anew_has_no_order() {
    home! { Plain: Kernel<11> = Kernel; }
    let pair: [Mutex<(), Ticket, Plain>; 2] = [const { Mutex::new(()) }; 2];
    let nested = |outer: usize| {
        let _outer = pair[outer].lock();
        drop(pair[1 - outer].lock());
    };
    nested(0);
    let range = pair.as_ptr_range();
    STATES[11].checks.forget(range.start.addr()..range.end.addr());
    nested(1);
    assert_eq!(Kernel::<11>::found(), [""; 0]);
    nested(0);
    assert!(Kernel::<11>::the_fault().contains("one order"));
}

#[test]
fn a_checked_value_is_as_large_as_its_lock_and_itself() {
    home! { Plain: Kernel<12> = Kernel; }
    assert_eq!(size_of::<Mutex<u32, Tas, Plain>>(), 8);
    assert_eq!(size_of::<RwLock<u32, FairRwLock<Tas>, Plain>>(), 12);
}

#[cfg(feature = "lock_api")]
#[test]
fn locks_of_lock_api_are_checked() {
    home! { Plain: Kernel<13> = Kernel; }
    static A: lock_api::Mutex<guarded::RawLock<Ticket, Plain>, ()> = lock_api::Mutex::new(());
    static B: lock_api::RwLock<guarded::RawLock<FairRwLock<Ticket>, Plain>, ()> = lock_api::RwLock::new(());
    let (a, elsewhere) = (A.lock(), line!() + 1);
    drop(B.read());
    drop(a);
    let b = B.write();
    drop(A.lock());
    drop(b);
    let text = Kernel::<13>::the_fault();
    assert!(text.contains(&format!("opposite at {}:{elsewhere}", file!())), "{text}");
}

#[cfg(feature = "lock_api_04")]
#[test]
fn locks_of_lock_api_04_are_checked() {
    home! { Plain: Kernel<14> = Kernel; }
    static A: lock_api_04::Mutex<guarded::TokenlessLock<Ticket, Plain>, ()> = lock_api_04::Mutex::new(());
    static B: lock_api_04::RwLock<guarded::TokenlessLock<FairRwLock<Ticket>, Plain>, ()> =
        lock_api_04::RwLock::new(());
    let a = A.lock();
    assert!(B.try_read().is_some());
    drop(B.write());
    drop(a);
    let b = B.read();
    drop(A.lock());
    drop(b);
    assert!(Kernel::<14>::the_fault().contains("one order"));
    drop(A.lock());
    assert_eq!(Kernel::<14>::found(), [""; 0]);
}
