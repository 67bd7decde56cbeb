//! The lock crate's locks as this guest has them. One entry for each: its name, what it is, and the memory that it needs.

use haltkick_hypercalls::{LockFlags, MAX_VCPUS};
use haltkick_locks::{
    Bounded, GcrDomain, McsDomain, Native, OwnerYieldDomain, Pv, PvTicket, PvTicketDomain, QSpinDomain,
    QSpinLock, RqSpinDomain, RqSpinLock, SleepDomain, V16, Whole, WorkConserving, osq,
};

use crate::lock::kind::{Paged, Part, guest_kind};
use crate::lock::platform::{Guest, Instrumented, LINES};
use crate::lock::registry::lock;

type Qspin = QSpinDomain<Guest, MAX_VCPUS, LINES>;
/// The instrumented arms: the same source over a platform whose points are more than nothing. Their memory is their own.
type QspinPoints = QSpinDomain<Instrumented, MAX_VCPUS, LINES>;
type Sleepers<L> = SleepDomain<Guest, L, MAX_VCPUS>;

lock! {
    "010" "none", "no lock at all: what the hardware could do",
    LockFlags::IS_LOCK_FREE
        .with(LockFlags::SERVES_FAULTS)
        .with(LockFlags::IS_PART)
        .with(LockFlags::MAY_BE_INTERRUPTED)
        .with(LockFlags::HAS_SPIN_QUEUE);
    native {
        NoLock: haltkick_locks::NoLock = haltkick_locks::NoLock::new(), Guest = Guest,
        EXCLUDES: bool = false, PART: Option<Part> = Some(Part::Nothing),
        // Each vCPU has an address space of its own then, which no scheme guards better than another.
        FAULTS: Option<crate::lock::kind::Serving> = None
    }
}

lock! {
    "020" "tas", "test and test-and-set, unfair", LockFlags::IS_PART.with(LockFlags::MAY_BE_INTERRUPTED);
    native {
        Tas: haltkick_locks::Tas = haltkick_locks::Tas::new(), Guest = Guest,
        WORD: u32 = haltkick_hypercalls::WORD_TAS, PART: Option<Part> = Some(Part::Tas)
    }
}

lock! {
    "030" "slice-tas", "test-and-set that is not taken when the slice is about to end (--slice-margin)",
    LockFlags::NONE;
    native {
        SliceTas: haltkick_locks::SliceTas = haltkick_locks::SliceTas::new(), Guest = Guest,
        WORD: u32 = haltkick_hypercalls::WORD_TAS
    }
}

lock! {
    "040" "virt-tas", "test-and-set on the qspinlock word: Linux on a hypervisor without PV", LockFlags::MAY_BE_INTERRUPTED;
    native {
        VirtTas: QSpinLock<haltkick_locks::VirtTas> = QSpinLock::new(), Qspin = Qspin::new(Guest),
        WORD: u32 = haltkick_hypercalls::WORD_QSPINLOCK
    }
}

lock! {
    "050" "ticket", "two counters, first come first served; paravirtual: halts, as Linux 3.12 to 4.1",
    LockFlags::IS_PART.with(LockFlags::MAY_BE_INTERRUPTED);
    native {
        Ticket: haltkick_locks::Ticket = haltkick_locks::Ticket::new(), Guest = Guest,
        WORD: u32 = haltkick_hypercalls::WORD_TICKET, PART: Option<Part> = Some(Part::Ticket)
    }
    paravirt {
        TicketParavirt: PvTicket = PvTicket::new(), PvTicketDomain<Guest, MAX_VCPUS> = PvTicketDomain::new(Guest),
        WORD: u32 = haltkick_hypercalls::WORD_PV_TICKET, PART: Option<Part> = Some(Part::TicketParavirt)
    }
}

lock! {
    "060" "unfair-ticket", "ticket lock whose unlock frees it for any vCPU (2010)", LockFlags::NONE;
    native {
        UnfairTicket: haltkick_locks::UnfairTicket = haltkick_locks::UnfairTicket::new(), Guest = Guest,
        WORD: u32 = haltkick_hypercalls::WORD_UNFAIR_TICKET
    }
}

lock! {
    "070" "mcs", "queue of per-CPU nodes, first come first served", LockFlags::MAY_BE_INTERRUPTED;
    native {
        Mcs: haltkick_locks::Mcs = haltkick_locks::Mcs::new(), McsDomain<Guest, MAX_VCPUS> = McsDomain::new(Guest),
        WORD: u32 = haltkick_hypercalls::WORD_MCS
    }
}

lock! {
    "090" "qspinlock",
    "Linux-style queued spinlock; paravirtual: hybrid stealing, halted waiters, hashed head", LockFlags::IS_PART.with(LockFlags::MAY_BE_INTERRUPTED);
    native {
        QspinlockNative: QSpinLock<Native> = QSpinLock::new(), Qspin = Qspin::new(Guest),
        WORD: u32 = haltkick_hypercalls::WORD_QSPINLOCK, PART: Option<Part> = Some(Part::QspinlockNative)
    }
    paravirt {
        QspinlockParavirt: QSpinLock<Pv> = QSpinLock::new(), Qspin = Qspin::new(Guest),
        WORD: u32 = haltkick_hypercalls::WORD_QSPINLOCK, PART: Option<Part> = Some(Part::QspinlockParavirt)
    }
}

lock! {
    "100" "qspinlock-whole",
    "qspinlock whose word is only ever changed whole, as on other machines (up to 2^21 CPUs)", LockFlags::MAY_BE_INTERRUPTED;
    native {
        QspinlockNativeWhole: QSpinLock<Native, Whole> = QSpinLock::new(), Qspin = Qspin::new(Guest),
        WORD: u32 = haltkick_hypercalls::WORD_QSPINLOCK_WHOLE
    }
    paravirt {
        QspinlockParavirtWhole: QSpinLock<Pv, Whole> = QSpinLock::new(), Qspin = Qspin::new(Guest),
        WORD: u32 = haltkick_hypercalls::WORD_QSPINLOCK_WHOLE
    }
}

lock! {
    "110" "qspinlock-v16", "the paravirtual qspinlock as first posted (2015): no stealing",
    LockFlags::MAY_BE_INTERRUPTED;
    paravirt {
        QspinlockV16: QSpinLock<V16> = QSpinLock::new(), Qspin = Qspin::new(Guest),
        WORD: u32 = haltkick_hypercalls::WORD_QSPINLOCK
    }
}

lock! {
    "120" "qspinlock-wc",
    "qspinlock whose thieves and woken heads sleep too, instead of spinning behind a preempted owner", LockFlags::NONE;
    paravirt {
        QspinlockWc: QSpinLock<WorkConserving> = QSpinLock::new(), Qspin = Qspin::new(Guest),
        WORD: u32 = haltkick_hypercalls::WORD_QSPINLOCK
    }
}

lock! {
    "125" "qspinlock-bounded", "paravirtual qspinlock with qspinlock-wc's bounds on spinning, and none of its hints",
    LockFlags::NONE;
    paravirt {
        QspinlockBounded: QSpinLock<Bounded> = QSpinLock::new(), Qspin = Qspin::new(Guest),
        WORD: u32 = haltkick_hypercalls::WORD_QSPINLOCK
    }
}

lock! {
    "130" "owner-yield", "queued lock whose word names the owner; waiters yield to it when it is preempted",
    LockFlags::NONE;
    paravirt {
        OwnerYield: haltkick_locks::OwnerYield = haltkick_locks::OwnerYield::new(),
        OwnerYieldDomain<Guest, MAX_VCPUS> = OwnerYieldDomain::new(Guest),
        WORD: u32 = haltkick_hypercalls::WORD_OWNER_YIELD
    }
}

lock! {
    "135" "gcr", "test-and-set for which two vCPUs race; the others queue and sleep, and take turns", LockFlags::NONE;
    paravirt {
        Gcr: haltkick_locks::Gcr = haltkick_locks::Gcr::new(),
        GcrDomain<Guest, MAX_VCPUS> = GcrDomain::new(Guest)
    }
}

lock! {
    "143" "rqspinlock",
    "native qspinlock that fails after 25,000 --spin-threshold or in a deadlock, and is asked again (Linux 6.15)",
    LockFlags::NONE;
    native {
        Rqspinlock: RqSpinLock = RqSpinLock::new(),
        RqSpinDomain<Guest, MAX_VCPUS> = RqSpinDomain::new(Guest),
        WORD: u32 = haltkick_hypercalls::WORD_QSPINLOCK
    }
    paravirt Rqspinlock
}

lock! {
    "600" "qspinlock-points", "qspinlock that can be stopped at points of its slow path (--deschedule at=)",
    LockFlags::HAS_POINTS;
    native {
        QspinlockNativePoints: QSpinLock<Native> = QSpinLock::new(), QspinPoints = QspinPoints::new(Instrumented),
        WORD: u32 = haltkick_hypercalls::WORD_QSPINLOCK
    }
    paravirt {
        QspinlockParavirtPoints: QSpinLock<Pv> = QSpinLock::new(), QspinPoints = QspinPoints::new(Instrumented),
        WORD: u32 = haltkick_hypercalls::WORD_QSPINLOCK
    }
}

lock! {
    "610" "ticket-points", "paravirtual ticket lock that can be stopped at points", LockFlags::HAS_POINTS;
    paravirt {
        TicketPoints: PvTicket = PvTicket::new(),
        PvTicketDomain<Instrumented, MAX_VCPUS> = PvTicketDomain::new(Instrumented),
        WORD: u32 = haltkick_hypercalls::WORD_PV_TICKET
    }
}

lock! {
    "620" "owner-yield-points", "owner-yield that can be stopped at points", LockFlags::HAS_POINTS;
    paravirt {
        OwnerYieldPoints: haltkick_locks::OwnerYield = haltkick_locks::OwnerYield::new(),
        OwnerYieldDomain<Instrumented, MAX_VCPUS> = OwnerYieldDomain::new(Instrumented),
        WORD: u32 = haltkick_hypercalls::WORD_OWNER_YIELD
    }
}

/// A sleeping lock in each of the layouts that its spin queue can have.
macro_rules! in_every_layout {
    ($($order:literal $mutex:literal $mutex_name:ident, $rw_order:literal $rwsem:literal $rwsem_name:ident, $layout:ident;)+) => {$(
        lock! {
            $order $mutex,
            "sleeping lock; spins, queued, while its owner runs; a sleeper that is overtaken is handed the lock",
            LockFlags::HAS_SPIN_QUEUE;
            paravirt {
                $mutex_name: haltkick_locks::Mutex<osq::$layout> = haltkick_locks::Mutex::new(),
                Sleepers<osq::$layout> = SleepDomain::new(Guest),
                WORD: u32 = haltkick_hypercalls::WORD_MUTEX
            }
        }

        guest_kind! {
            readers $rwsem_name: haltkick_locks::RwSem<osq::$layout> = haltkick_locks::RwSem::new(),
            Sleepers<osq::$layout> = {
                static DOMAIN: Paged<Sleepers<osq::$layout>> = Paged(SleepDomain::new(Guest));
                &DOMAIN.0
            }
        }
        lock! {
            $rw_order $rwsem,
            "reader-writer sleeping lock; writers spin as in mutex; one that sleeps for 4 ms is handed the lock",
            LockFlags::HAS_READERS;
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

lock! {
    "780" "futex-mutex", "three-state sleeping lock of the futex kind, with a short spin before it", LockFlags::NONE;
    paravirt {
        Futex: haltkick_locks::FutexMutex = haltkick_locks::FutexMutex::new(),
        Sleepers<osq::Packed> = SleepDomain::new(Guest),
        WORD: u32 = haltkick_hypercalls::WORD_FUTEX
    }
}
