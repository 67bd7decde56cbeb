//! Values under locks: a guard lends its value to one CPU at a time, however the domain is named, the memory is lent
//! and the form of the lock is chosen.
//!
//! A guard names its domain by a type. Here that is a static of loom, which each execution makes anew.
#![expect(unsafe_code, reason = "what platforms, homes and choices promise")]

use haltkick_locks::{
    guarded::{Home, Mutex, RwLock},
    *,
};
use loom::thread;

use crate::model::{Bounds, Cpus, Plain, machine, play_out};

/// How often loom branches on a pause.
const PAUSES: usize = 6;

/// CPUs that loom numbers, each of which is one thread.
#[derive(Debug)]
struct Kernel(Cpus);

impl Kernel {
    fn new() -> Self {
        Self(machine(3, PAUSES, |_| false))
    }
}

impl Delegate for Kernel {
    type Platform = Cpus;

    fn platform(&self) -> &Cpus {
        &self.0
    }
}

// SAFETY: `play_out` gives each thread a number of its own, for good.
unsafe impl TrustedCpu for Kernel {
    fn pin(&self) {}

    fn unpin(&self) {}
}

/// `named! { Name: Domain = initial value; }`, as the crate's own, but made anew in each execution.
macro_rules! named {
    ($($name:ident: $domain:ty = $initial:expr;)+) => {$(
        #[derive(Debug)]
        enum $name {}

        // SAFETY: it is one static, whose name is known here alone.
        unsafe impl Home for $name {
            type Domain = $domain;

            unsafe fn domain() -> &'static $domain {
                loom::lazy_static! { static ref DOMAIN: $domain = $initial; }
                &DOMAIN
            }
        }
    )+};
}

loom::lazy_static! {
    static ref KERNEL: Kernel = Kernel::new();
}

named! {
    Bare: Kernel = Kernel::new();
    Queues: QSpinDomain<Kernel, 3, 1> = QSpinDomain::new(Kernel::new());
    Readers: PerCpuRwDomain<&'static Kernel, [ReaderSlot; 3]> =
        PerCpuRwDomain::new(&KERNEL, std::array::from_fn(|_| ReaderSlot::new()));
}

/// CPUs that count under a mutex; the last one tries first.
fn counts<L, H, const CPUS: usize>(rounds: usize, preemptions: usize, lock: fn() -> L)
where
    L: Exclusive<H::Domain> + Send + Sync + 'static,
    H: Home,
{
    let play = move |cpu, count: &Mutex<Plain, L, H>| {
        for _ in 0..rounds {
            let tried = if cpu == CPUS - 1 { count.try_lock() } else { None };
            tried.unwrap_or_else(|| count.lock()).increment();
        }
    };
    let bounds = Bounds { rounds, preemptions, pauses: PAUSES };
    play_out(
        CPUS,
        &bounds,
        move || Mutex::with_lock(lock(), Plain::default()),
        play,
        move |count: &Mutex<Plain, L, H>| assert_eq!(count.lock().get(), CPUS * rounds),
    );
}

#[test]
fn a_value_under_a_ticket_lock() {
    counts::<Ticket, Bare, 2>(2, 3, Ticket::new);
    counts::<Ticket, Bare, 3>(1, 2, Ticket::new);
}

#[test]
fn a_value_under_a_native_queue_lock() {
    counts::<QSpinLock<Native, Whole>, Queues, 2>(2, 3, QSpinLock::new);
    counts::<QSpinLock<Native, Whole>, Queues, 3>(1, 2, QSpinLock::new);
}

#[test]
fn a_value_under_a_paravirtual_queue_lock() {
    counts::<QSpinLock<Pv, Whole>, Queues, 2>(2, 3, QSpinLock::new);
}

#[test]
fn a_value_under_a_work_conserving_queue_lock() {
    counts::<QSpinLock<WorkConserving, Whole>, Queues, 2>(2, 2, QSpinLock::new);
}

/// CPU 0 writes, CPU 1 writes and reads, CPU 2 reads, and tries first.
fn reads_and_writes<L, H, const CPUS: usize>(lock: fn() -> L)
where
    L: ExclusiveWriter<H::Domain> + Send + Sync + 'static,
    H: Home,
{
    let play = |cpu, value: &RwLock<Plain, L, H>| {
        if cpu < 2 {
            value.write().increment();
        }
        if cpu > 0 {
            let tried = if cpu == 2 { value.try_read() } else { None };
            let seen = tried.unwrap_or_else(|| value.read()).get();
            assert!(
                seen <= 2 && (cpu == 2 || seen >= 1),
                "{seen} writes, one of them by CPU 1 before it reads"
            );
        }
    };
    let bounds = Bounds { rounds: 1, preemptions: 2, pauses: PAUSES };
    play_out(
        CPUS,
        &bounds,
        move || RwLock::with_lock(lock(), Plain::default()),
        play,
        |value: &RwLock<Plain, L, H>| assert_eq!(value.try_write().expect("nobody has it").get(), 2),
    );
}

#[test]
fn a_value_under_an_unfair_reader_writer_lock() {
    reads_and_writes::<UnfairRwLock, Bare, 2>(UnfairRwLock::new);
    reads_and_writes::<UnfairRwLock, Bare, 3>(UnfairRwLock::new);
}

#[test]
fn a_value_under_a_fair_reader_writer_lock() {
    reads_and_writes::<FairRwLock<Ticket>, Bare, 2>(|| FairRwLock::new(Ticket::new()));
    reads_and_writes::<FairRwLock<Ticket>, Bare, 3>(|| FairRwLock::new(Ticket::new()));
}

#[test]
fn a_value_under_a_reader_writer_lock_with_slots() {
    reads_and_writes::<PerCpuRwLock<UnfairRwLock>, Readers, 2>(|| PerCpuRwLock::new(UnfairRwLock::new()));
    reads_and_writes::<PerCpuRwLock<UnfairRwLock>, Readers, 3>(|| PerCpuRwLock::new(UnfairRwLock::new()));
}

mod interrupts {
    //! On CPU 0 a device interrupts at the worst moments: just before interrupts are turned off, and as soon as they
    //! are on again. Its handler wants the same lock, and would wait forever for a section that it has interrupted.

    use super::*;

    /// A CPU that is interrupted.
    #[derive(Debug)]
    struct Interrupted(Kernel);

    impl Delegate for Interrupted {
        type Platform = Cpus;

        fn platform(&self) -> &Cpus {
            &self.0.0
        }
    }

    // SAFETY: as `Kernel`; a handler is over before what it interrupted goes on.
    unsafe impl TrustedCpu for Interrupted {
        fn pin(&self) {}

        fn unpin(&self) {}
    }

    impl Interrupts for Interrupted {
        type Saved = ();

        fn turn_off(&self) {
            self.interrupt();
        }

        fn restore(&self, (): ()) {
            self.interrupt();
        }
    }

    named! { Home0: Interrupted = Interrupted(Kernel::new()); }

    type Count = Mutex<Plain, Ticket, Home0>;
    type Shared = RwLock<Plain, FairRwLock<Ticket>, Home0>;

    loom::lazy_static! {
        static ref COUNT: Count = Mutex::with_lock(Ticket::new(), Plain::default());
        static ref SHARED: Shared = RwLock::with_lock(FairRwLock::new(Ticket::new()), Plain::default());
    }

    impl Interrupted {
        fn interrupt(&self) {
            if self.cpu() == 0 {
                COUNT.lock().increment();
                SHARED.write().increment();
            }
        }
    }

    const BOUNDS: Bounds = Bounds { rounds: 1, preemptions: 2, pauses: PAUSES };

    #[test]
    fn a_handler_takes_a_mutex_outside_of_a_section_and_never_inside() {
        let play = |_, (): &()| COUNT.with_interrupts_off(|count| count.increment());
        play_out(2, &BOUNDS, || (), play, |()| assert_eq!(COUNT.lock().get(), 4));
    }

    #[test]
    fn a_handler_writes_before_and_after_a_section_and_never_in_it() {
        let play = |cpu, (): &()| {
            if cpu == 0 {
                SHARED.write_with_interrupts_off(|shared| shared.increment());
            } else {
                SHARED.read_with_interrupts_off(|shared| assert!(shared.get() <= 3));
            }
        };
        play_out(2, &BOUNDS, || (), play, |()| assert_eq!(SHARED.write().get(), 3));
    }

    #[test]
    fn a_handler_writes_before_and_after_a_reader_and_never_beside_it() {
        let play = |cpu, (): &()| {
            if cpu == 0 {
                SHARED.read_with_interrupts_off(|shared| assert!(shared.get() >= 1));
            } else {
                SHARED.write_with_interrupts_off(|shared| shared.increment());
            }
        };
        play_out(2, &BOUNDS, || (), play, |()| assert_eq!(SHARED.write().get(), 3));
    }
}

mod borrowed {
    //! Memory that is lent when the kernel runs. Here nothing but the domain itself tells the second CPU of it.

    use std::mem::MaybeUninit;

    use super::*;

    named! { Lent: BorrowedQSpinDomain<'static, Kernel> = BorrowedQSpinDomain::new(Kernel::new()); }

    /// Memory that is not given back: an execution leaks some hundred bytes.
    fn memory<T>(elements: usize) -> &'static mut [MaybeUninit<T>] {
        Box::leak(Box::new_uninit_slice(elements))
    }

    fn counts_in_lent_memory<M: Mode>() {
        let bounds = Bounds { rounds: 1, preemptions: 3, pauses: PAUSES };
        let play = |cpu, count: &Mutex<Plain, QSpinLock<M, Whole>, Lent>| {
            // SAFETY: no lock is taken by this way.
            let domain = unsafe { Lent::domain() };
            if cpu == 0 {
                // A free lock needs no memory.
                count.lock().increment();
                domain.lend(memory(2), memory(2));
            } else {
                while domain.cpus() == 0 {
                    thread::yield_now();
                }
            }
            count.lock().increment();
        };
        let scene = || Mutex::with_lock(QSpinLock::new(), Plain::default());
        play_out(2, &bounds, scene, play, |count: &Mutex<Plain, QSpinLock<M, Whole>, Lent>| {
            assert_eq!(count.lock().get(), 3);
            // SAFETY: as above.
            assert_eq!(unsafe { Lent::domain() }.sleeping_heads(), 0);
        });
    }

    #[test]
    fn a_cpu_queues_in_lent_memory_for_a_native_lock() {
        counts_in_lent_memory::<Native>();
    }

    #[test]
    fn a_cpu_queues_in_lent_memory_for_a_paravirtual_lock() {
        counts_in_lent_memory::<Pv>();
    }
}

mod chosen {
    //! Native or paravirtual: one CPU chooses while another one has to know.

    use super::*;

    #[derive(Debug)]
    enum Form {}

    impl Form {
        fn latch() -> &'static Latch {
            loom::lazy_static! { static ref LATCH: Latch = Latch::new(); }
            &LATCH
        }
    }

    // SAFETY: the latch decides once, for all.
    unsafe impl Choice for Form {
        fn is_paravirtual() -> bool {
            Self::latch().is_paravirtual()
        }
    }

    type Count<P> = Mutex<Plain, QSpinLock<Chosen<Form, P>, Whole>, Queues>;

    fn chosen_in_a_section<P>()
    where
        Chosen<Form, P>: Mode,
        P: 'static,
    {
        let bounds = Bounds { rounds: 1, preemptions: 3, pauses: PAUSES };
        let play = |cpu, count: &Count<P>| {
            if cpu == 0 {
                let guard = count.lock();
                // Late: the other one may wait already, and have decided.
                _ = Form::latch().choose(true);
                guard.increment();
                drop(guard);
            }
            count.lock().increment();
        };
        let scene = || Mutex::with_lock(QSpinLock::new(), Plain::default());
        play_out(2, &bounds, scene, play, |count: &Count<P>| {
            assert_eq!(count.lock().get(), 3);
            // SAFETY: no lock is taken by this way.
            assert_eq!(unsafe { Queues::domain() }.sleeping_heads(), 0);
        });
    }

    #[test]
    fn a_choice_that_comes_late_is_one_for_all_cpus() {
        chosen_in_a_section::<Pv>();
    }

    #[test]
    fn a_late_choice_of_a_work_conserving_lock_holds_for_all_cpus() {
        chosen_in_a_section::<WorkConserving>();
    }
}
