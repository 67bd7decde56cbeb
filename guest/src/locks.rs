//! The lock crate's locks as this guest has them: where their instances lie, and the memory that each kind shares.

use haltkick_hypercalls::MAX_VCPUS;
use haltkick_locks::{
    CachePadded, ClhDomain, Lock, McsDomain, Native, OwnerYieldDomain, Pv, PvTicket, PvTicketDomain,
    QSpinDomain, QSpinLock, V16, WorkConserving,
};

use crate::foreign::Foreign;
use crate::platform::{Guest, Instrumented};
use crate::relax::{Halt, Pause, YieldSlice};

/// Most locks that a run may ask for.
pub(crate) const INSTANCES: usize = haltkick_hypercalls::MAX_LOCKS as usize;

/// A kind of lock that the workloads can use.
pub(crate) trait GuestLock: 'static {
    /// Whether it excludes; the one that does not is the measure of the ideal.
    const EXCLUDES: bool = true;

    /// Does `section` while it holds lock number `index`, below [`INSTANCES`].
    fn section(index: usize, section: impl FnOnce());
}

/// Declares a kind of lock with its statics.
macro_rules! guest_lock {
    ($name:ident: $lock:ty = $new:expr, $domain_type:ty = $domain:expr $(, excludes = $excludes:literal)?) => {
        pub(crate) enum $name {}

        impl GuestLock for $name {
            $(const EXCLUDES: bool = $excludes;)?

            #[inline(always)]
            fn section(index: usize, section: impl FnOnce()) {
                static INSTANCE: [CachePadded<$lock>; INSTANCES] = [const { CachePadded::new($new) }; INSTANCES];
                static DOMAIN: $domain_type = $domain;
                let lock = &INSTANCE[index];
                let token = lock.lock(&DOMAIN);
                section();
                lock.unlock(&DOMAIN, token);
            }
        }
    };
}

/// Declares a lock of another crate that is held for the length of a closure.
macro_rules! scoped_lock {
    ($name:ident: $lock:ty, $hook:ident) => {
        pub(crate) enum $name {}

        impl GuestLock for $name {
            #[inline(always)]
            fn section(index: usize, section: impl FnOnce()) {
                static INSTANCE: [CachePadded<Foreign<$lock, $hook>>; INSTANCES] =
                    [const { CachePadded::new(Foreign::new()) }; INSTANCES];
                INSTANCE[index].section(section);
            }
        }
    };
}

/// Enough lines for one sleeping queue head per vCPU and nesting level.
const LINES: usize = MAX_VCPUS;

type QspinDomain = QSpinDomain<Guest, MAX_VCPUS, LINES>;

guest_lock!(NoLock: haltkick_locks::NoLock = haltkick_locks::NoLock::new(), Guest = Guest, excludes = false);
guest_lock!(Tas: haltkick_locks::Tas = haltkick_locks::Tas::new(), Guest = Guest);
guest_lock!(VirtTas: QSpinLock<haltkick_locks::VirtTas> = QSpinLock::new(), QspinDomain = QSpinDomain::new(Guest));
guest_lock!(Ticket: haltkick_locks::Ticket = haltkick_locks::Ticket::new(), Guest = Guest);
guest_lock!(TicketParavirt: PvTicket = PvTicket::new(), PvTicketDomain<Guest, MAX_VCPUS> = PvTicketDomain::new(Guest));
guest_lock!(UnfairTicket: haltkick_locks::UnfairTicket = haltkick_locks::UnfairTicket::new(), Guest = Guest);
guest_lock!(Mcs: haltkick_locks::Mcs = haltkick_locks::Mcs::new(), McsDomain<Guest, MAX_VCPUS> = McsDomain::new(Guest));
guest_lock!(
    Clh: haltkick_locks::Clh = haltkick_locks::Clh::new(),
    ClhDomain<Guest, MAX_VCPUS, INSTANCES> = ClhDomain::new(Guest)
);
guest_lock!(
    OwnerYield: haltkick_locks::OwnerYield = haltkick_locks::OwnerYield::new(),
    OwnerYieldDomain<Guest, MAX_VCPUS> = OwnerYieldDomain::new(Guest)
);
guest_lock!(QspinlockNative: QSpinLock<Native> = QSpinLock::new(), QspinDomain = QSpinDomain::new(Guest));
guest_lock!(QspinlockParavirt: QSpinLock<Pv> = QSpinLock::new(), QspinDomain = QSpinDomain::new(Guest));
guest_lock!(QspinlockV16: QSpinLock<V16> = QSpinLock::new(), QspinDomain = QSpinDomain::new(Guest));
guest_lock!(QspinlockWc: QSpinLock<WorkConserving> = QSpinLock::new(), QspinDomain = QSpinDomain::new(Guest));

type Spinlock<H> = spinning_top::lock_api::Mutex<spinning_top::RawSpinlock<H>, ()>;

guest_lock!(SpinMutex: Foreign<spin::mutex::SpinMutex<(), Pause>, Pause> = Foreign::new(), Guest = Guest);
guest_lock!(SpinMutexYield: Foreign<spin::mutex::SpinMutex<(), YieldSlice>, YieldSlice> = Foreign::new(), Guest = Guest);
guest_lock!(SpinMutexHalt: Foreign<spin::mutex::SpinMutex<(), Halt>, Halt> = Foreign::new(), Guest = Guest);
guest_lock!(SpinTicket: Foreign<spin::mutex::TicketMutex<(), Pause>, Pause> = Foreign::new(), Guest = Guest);
guest_lock!(SpinTicketYield: Foreign<spin::mutex::TicketMutex<(), YieldSlice>, YieldSlice> = Foreign::new(), Guest = Guest);
guest_lock!(SpinTicketHalt: Foreign<spin::mutex::TicketMutex<(), Halt>, Halt> = Foreign::new(), Guest = Guest);
guest_lock!(SpinningTop: Foreign<Spinlock<Pause>, Pause> = Foreign::new(), Guest = Guest);
guest_lock!(SpinningTopYield: Foreign<Spinlock<YieldSlice>, YieldSlice> = Foreign::new(), Guest = Guest);
guest_lock!(SpinningTopHalt: Foreign<Spinlock<Halt>, Halt> = Foreign::new(), Guest = Guest);
scoped_lock!(Mcslock: mcslock::raw::Mutex<(), Pause>, Pause);
scoped_lock!(McslockYield: mcslock::raw::Mutex<(), YieldSlice>, YieldSlice);
scoped_lock!(McslockHalt: mcslock::raw::Mutex<(), Halt>, Halt);
scoped_lock!(McslockBarging: mcslock::barging::Mutex<(), Pause, Pause>, Pause);
scoped_lock!(McslockBargingYield: mcslock::barging::Mutex<(), YieldSlice, YieldSlice>, YieldSlice);
scoped_lock!(McslockBargingHalt: mcslock::barging::Mutex<(), Halt, YieldSlice>, Halt);
// The instrumented arms: the same source over a platform whose points are more than nothing. Their memory is their own.
type QspinPointsDomain = QSpinDomain<Instrumented, MAX_VCPUS, LINES>;

guest_lock!(QspinlockNativePoints: QSpinLock<Native> = QSpinLock::new(), QspinPointsDomain = QSpinDomain::new(Instrumented));
guest_lock!(QspinlockParavirtPoints: QSpinLock<Pv> = QSpinLock::new(), QspinPointsDomain = QSpinDomain::new(Instrumented));
guest_lock!(
    TicketPoints: PvTicket = PvTicket::new(),
    PvTicketDomain<Instrumented, MAX_VCPUS> = PvTicketDomain::new(Instrumented)
);
guest_lock!(
    OwnerYieldPoints: haltkick_locks::OwnerYield = haltkick_locks::OwnerYield::new(),
    OwnerYieldDomain<Instrumented, MAX_VCPUS> = OwnerYieldDomain::new(Instrumented)
);
