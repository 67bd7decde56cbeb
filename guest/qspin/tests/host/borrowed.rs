//! Queue spinlocks whose domain is lent its memory at run time, on CPUs that are threads and number themselves.

use std::{
    mem::MaybeUninit,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Once,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
};

use haltkick_qspin::{guarded::Home, *};

use crate::{
    support::{Plain, rounds},
    threads::Threads,
};

/// Few: fair locks make CPUs wait for threads that do not run.
const THREADS: usize = 4;

fn memory<T>(elements: usize) -> Box<[MaybeUninit<T>]> {
    Box::new_uninit_slice(elements)
}

/// A lock that is taken before there is any memory, then by two CPUs, and by more while those run.
macro_rules! hotplug {
    ($($name:ident: $lock:ty;)+) => {$(
        #[test]
        fn $name() {
            let (mut cpus, mut table) = (memory(64), memory(64));
            let (domain, lock) = (BorrowedQSpinDomain::new(Threads), <$lock>::new());
            let (count, done) = (Plain::default(), AtomicUsize::new(0));
            let visit = || {
                lock.lock(&domain);
                count.increment();
                lock.unlock(&domain, ());
                done.fetch_add(1, Relaxed);
            };
            visit();
            assert_eq!(domain.cpus(), 0, "a free lock needs no node");
            domain.lend(&mut cpus, &mut table);
            assert_eq!(domain.cpus(), 64);
            thread::scope(|scope| {
                for number in 0..THREADS {
                    while number >= 2 && done.load(Relaxed) < number * rounds(50) {
                        thread::yield_now();
                    }
                    scope.spawn(|| (0..rounds(400)).for_each(|_| visit()));
                }
            });
            assert_eq!(count.get(), (THREADS * rounds(400) + 1) as u64);
            assert_eq!(domain.sleeping_heads(), 0);
        }
    )+};
}

hotplug! {
    later_cpus_queue_for_a_native_lock: QSpinLock<Native>;
    later_cpus_queue_for_a_native_lock_in_a_whole_word: QSpinLock<Native, Whole>;
    later_cpus_queue_for_a_pv_lock: QSpinLock<Pv>;
    later_cpus_queue_for_a_pv_lock_in_a_whole_word: QSpinLock<Pv, Whole>;
    later_cpus_queue_for_a_work_conserving_lock: QSpinLock<WorkConserving>;
}

home! {
    Queues: BorrowedQSpinDomain<'static, Threads> = BorrowedQSpinDomain::new(Threads);
}

#[test]
#[expect(unsafe_code, reason = "a home lends its domain to those who keep its promise")]
fn guards_have_a_home_that_is_lent_memory_at_run_time() {
    static LENT: Once = Once::new();
    static COUNT: guarded::Mutex<u64, QSpinLock<Pv>, Queues> = guarded::Mutex::new(0);
    // SAFETY: no lock is taken by this way.
    LENT.call_once(|| unsafe { Queues::domain() }.lend(Box::leak(memory(64)), Box::leak(memory(64))));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| (0..rounds(300)).for_each(|_| *COUNT.lock() += 1));
        }
    });
    assert_eq!(*COUNT.lock(), (THREADS * rounds(300)) as u64);
}

#[test]
fn a_cpu_for_which_there_is_no_memory_does_not_queue() {
    let (domain, lock) = (BorrowedQSpinDomain::new(Threads), QSpinLock::<Pv>::new());
    lock.lock(&domain);
    let queues = catch_unwind(AssertUnwindSafe(|| lock.lock(&domain)));
    assert!(queues.is_err());
    lock.unlock(&domain, ());
}

/// Memory of its own for a number of CPUs and lines.
type Lent = (Box<[MaybeUninit<QSpinCpu>]>, Box<[MaybeUninit<QSpinLine>]>);

/// Whether `domain` refuses that memory.
fn refuses<'m>(domain: &BorrowedQSpinDomain<'m, Threads>, lent: &'m mut Lent) -> bool {
    let mut lent = Some(lent);
    let lend = || {
        let (cpus, lines) = lent.take().expect("once");
        domain.lend(cpus, lines);
    };
    catch_unwind(AssertUnwindSafe(lend)).is_err()
}

#[test]
fn memory_is_lent_once_with_room_for_each_cpus_sleeping_head() {
    let too_small = [(8, 63), (8, 32), (65, 64), (65, 96), (0, 0), (1 << 14, 1 << 14)];
    let [mut small, mut right] = [&too_small[..], &[(65, 128), (65, 128)]]
        .map(|sizes| sizes.iter().map(|&(cpus, lines)| (memory(cpus), memory(lines))).collect::<Vec<Lent>>());
    let domain = BorrowedQSpinDomain::new(Threads);
    for (sizes, lent) in too_small.iter().zip(&mut small) {
        assert!(refuses(&domain, lent), "CPUs and lines: {sizes:?}");
        assert_eq!(domain.cpus(), 0);
    }
    assert!(domain.queues().is_none());
    let [first, second] = &mut right[..] else { panic!("there are two") };
    assert!(!refuses(&domain, first));
    let queues = domain.queues().expect("it has memory");
    assert_eq!((queues.cpu_bytes, queues.table_entries), (128, 512));
    assert!(refuses(&domain, second), "a second time");
    assert_eq!(domain.queues().expect("it has that memory still").nodes, queues.nodes);
}
