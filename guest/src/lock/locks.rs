//! The lock crate's locks as this guest has them. One entry for each: its name, what it is, and the memory that it needs.

use haltkick_hypercalls::MAX_VCPUS;
use haltkick_locks::{
    Bounded, GcrDomain, McsDomain, Native, OwnerYieldDomain, Pv, PvTicket, PvTicketDomain, QSpinDomain,
    QSpinLock, RqSpinDomain, RqSpinLock, SleepDomain, V16, Whole, WorkConserving, osq,
};

use crate::lock::kind::{Paged, guest_kind};
use crate::lock::platform::{Guest, LINES};
use crate::lock::registry::lock;

type Qspin = QSpinDomain<Guest, MAX_VCPUS, LINES>;
/// The instrumented arms: the same source over a platform whose points are more than nothing. Their memory is their own.
type QspinPoints = QSpinDomain<Guest<true>, MAX_VCPUS, LINES>;
type Sleepers<L> = SleepDomain<Guest, L, MAX_VCPUS>;

lock! {
    "010" "none", "no lock at all: what the hardware could do",
    [IS_LOCK_FREE SERVES_FAULTS IS_PART MAY_BE_INTERRUPTED HAS_SPIN_QUEUE];
    native {
        NoLock: haltkick_locks::NoLock, Guest = Guest,
        EXCLUDES: bool = false,
        // Each vCPU has an address space of its own then, which no scheme guards better than another.
        FAULTS: Option<crate::lock::kind::Serving> = None
    }
    "020" "tas", "test and test-and-set, unfair", [IS_PART MAY_BE_INTERRUPTED];
    native {
        Tas: haltkick_locks::Tas, Guest = Guest,
        WORD: u32 = haltkick_hypercalls::WORD_TAS
    }
    "030" "slice-tas", "test-and-set that is not taken when the slice is about to end (--slice-margin)", [];
    native {
        SliceTas: haltkick_locks::SliceTas, Guest = Guest, WORD: u32 = haltkick_hypercalls::WORD_TAS
    }
    "040" "virt-tas", "test-and-set on the qspinlock word: Linux on a hypervisor without PV", [MAY_BE_INTERRUPTED];
    native {
        VirtTas: QSpinLock<haltkick_locks::VirtTas>, Qspin = Qspin::new(Guest),
        WORD: u32 = haltkick_hypercalls::WORD_QSPINLOCK
    }
    "050" "ticket", "two counters, first come first served; paravirtual: halts, as Linux 3.12 to 4.1",
    [IS_PART MAY_BE_INTERRUPTED];
    native {
        Ticket: haltkick_locks::Ticket, Guest = Guest,
        WORD: u32 = haltkick_hypercalls::WORD_TICKET
    }
    paravirt {
        TicketParavirt: PvTicket, PvTicketDomain<Guest, MAX_VCPUS> = PvTicketDomain::new(Guest),
        WORD: u32 = haltkick_hypercalls::WORD_PV_TICKET
    }
    "060" "unfair-ticket", "ticket lock whose unlock frees it for any vCPU (2010)", [];
    native {
        UnfairTicket: haltkick_locks::UnfairTicket, Guest = Guest,
        WORD: u32 = haltkick_hypercalls::WORD_UNFAIR_TICKET
    }
    "070" "mcs", "queue of per-CPU nodes, first come first served", [MAY_BE_INTERRUPTED];
    native {
        Mcs: haltkick_locks::Mcs, McsDomain<Guest, MAX_VCPUS> = McsDomain::new(Guest),
        WORD: u32 = haltkick_hypercalls::WORD_MCS
    }
    "090" "qspinlock",
    "Linux-style queued spinlock; paravirtual: hybrid stealing, halted waiters, hashed head", [IS_PART MAY_BE_INTERRUPTED];
    native {
        QspinlockNative: QSpinLock<Native>, Qspin = Qspin::new(Guest),
        WORD: u32 = haltkick_hypercalls::WORD_QSPINLOCK
    }
    paravirt {
        QspinlockParavirt: QSpinLock<Pv>, Qspin = Qspin::new(Guest),
        WORD: u32 = haltkick_hypercalls::WORD_QSPINLOCK
    }
    "100" "qspinlock-whole",
    "qspinlock whose word is only ever changed whole, as on other machines (up to 2^21 CPUs)", [MAY_BE_INTERRUPTED];
    native {
        QspinlockNativeWhole: QSpinLock<Native, Whole>, Qspin = Qspin::new(Guest),
        WORD: u32 = haltkick_hypercalls::WORD_QSPINLOCK_WHOLE
    }
    paravirt {
        QspinlockParavirtWhole: QSpinLock<Pv, Whole>, Qspin = Qspin::new(Guest),
        WORD: u32 = haltkick_hypercalls::WORD_QSPINLOCK_WHOLE
    }
    "110" "qspinlock-v16", "the paravirtual qspinlock as first posted (2015): no stealing",
    [MAY_BE_INTERRUPTED];
    paravirt {
        QspinlockV16: QSpinLock<V16>, Qspin = Qspin::new(Guest),
        WORD: u32 = haltkick_hypercalls::WORD_QSPINLOCK
    }
    "120" "qspinlock-wc",
    "qspinlock whose thieves and woken heads sleep too, instead of spinning behind a preempted owner", [];
    paravirt {
        QspinlockWc: QSpinLock<WorkConserving>, Qspin = Qspin::new(Guest),
        WORD: u32 = haltkick_hypercalls::WORD_QSPINLOCK
    }
    "125" "qspinlock-bounded", "paravirtual qspinlock with qspinlock-wc's bounds on spinning, and none of its hints",
    [];
    paravirt {
        QspinlockBounded: QSpinLock<Bounded>, Qspin = Qspin::new(Guest),
        WORD: u32 = haltkick_hypercalls::WORD_QSPINLOCK
    }
    "130" "owner-yield", "queued lock whose word names the owner; waiters yield to it when it is preempted",
    [];
    paravirt {
        OwnerYield: haltkick_locks::OwnerYield,
        OwnerYieldDomain<Guest, MAX_VCPUS> = OwnerYieldDomain::new(Guest),
        WORD: u32 = haltkick_hypercalls::WORD_OWNER_YIELD
    }
    "135" "gcr", "test-and-set for which two vCPUs race; the others queue and sleep, and take turns", [];
    paravirt {
        Gcr: haltkick_locks::Gcr, GcrDomain<Guest, MAX_VCPUS> = GcrDomain::new(Guest)
    }
    "143" "rqspinlock",
    "native qspinlock that fails after 25,000 --spin-threshold or in a deadlock, and is asked again (Linux 6.15)",
    [];
    native {
        Rqspinlock: RqSpinLock, RqSpinDomain<Guest, MAX_VCPUS> = RqSpinDomain::new(Guest),
        WORD: u32 = haltkick_hypercalls::WORD_QSPINLOCK
    }
    paravirt Rqspinlock
    "600" "qspinlock-points", "qspinlock that can be stopped at points of its slow path (--deschedule at=)",
    [HAS_POINTS];
    native {
        QspinlockNativePoints: QSpinLock<Native>, QspinPoints = QspinPoints::new(Guest),
        WORD: u32 = haltkick_hypercalls::WORD_QSPINLOCK
    }
    paravirt {
        QspinlockParavirtPoints: QSpinLock<Pv>, QspinPoints = QspinPoints::new(Guest),
        WORD: u32 = haltkick_hypercalls::WORD_QSPINLOCK
    }
    "610" "ticket-points", "paravirtual ticket lock that can be stopped at points", [HAS_POINTS];
    paravirt {
        TicketPoints: PvTicket, PvTicketDomain<Guest<true>, MAX_VCPUS> = PvTicketDomain::new(Guest),
        WORD: u32 = haltkick_hypercalls::WORD_PV_TICKET
    }
    "620" "owner-yield-points", "owner-yield that can be stopped at points", [HAS_POINTS];
    paravirt {
        OwnerYieldPoints: haltkick_locks::OwnerYield,
        OwnerYieldDomain<Guest<true>, MAX_VCPUS> = OwnerYieldDomain::new(Guest),
        WORD: u32 = haltkick_hypercalls::WORD_OWNER_YIELD
    }
    "780" "futex-mutex", "three-state sleeping lock of the futex kind, with a short spin before it", [];
    paravirt {
        Futex: haltkick_locks::FutexMutex, Sleepers<osq::Packed> = SleepDomain::new(Guest),
        WORD: u32 = haltkick_hypercalls::WORD_FUTEX
    }
}

/// A sleeping lock in each of the layouts that its spin queue can have.
macro_rules! in_every_layout {
    ($($order:literal $mutex:literal $mutex_name:ident, $rw_order:literal $rwsem:literal $rwsem_name:ident, $layout:ident;)+) => {$(
        lock! {
            $order $mutex,
            "sleeping lock; spins, queued, while its owner runs; a sleeper that is overtaken is handed the lock",
            [HAS_SPIN_QUEUE];
            paravirt {
                $mutex_name: haltkick_locks::Mutex<osq::$layout>,
                Sleepers<osq::$layout> = SleepDomain::new(Guest),
                WORD: u32 = haltkick_hypercalls::WORD_MUTEX
            }
        }

        guest_kind! {
            $rwsem_name: haltkick_locks::RwSem<osq::$layout> = haltkick_locks::RwSem::new(),
            Sleepers<osq::$layout> = {
                static DOMAIN: Paged<Sleepers<osq::$layout>> = Paged(SleepDomain::new(Guest));
                &DOMAIN.0
            }
        }
        lock! {
            $rw_order $rwsem,
            "reader-writer sleeping lock; writers spin as in mutex; one that sleeps for 4 ms is handed the lock",
            [HAS_READERS];
            paravirt $rwsem_name
        }
    )+};
}

in_every_layout! {
    "700" "mutex/packed" MutexPacked, "740" "rwsem/packed" RwSemPacked, Packed;
    "710" "mutex/split" MutexSplit, "750" "rwsem/split" RwSemSplit, Split;
    "720" "mutex/cached" MutexCached, "760" "rwsem/cached" RwSemCached, Cached;
    "730" "mutex/prev-cpu" MutexPrevCpu, "770" "rwsem/prev-cpu" RwSemPrevCpu, PrevCpu;
}
