//! The lock crate's locks as this guest has them: where their instances lie, and the memory that each kind shares.

use haltkick_hypercalls::MAX_VCPUS;
use haltkick_locks::{
    CachePadded, ClhDomain, Lock, McsDomain, Native, OwnerYieldDomain, Pv, PvTicket, PvTicketDomain,
    QSpinDomain, QSpinLock, V16, Whole, WorkConserving,
};

use haltkick_mm::{Scheme, Sharing as _};

use crate::foreign::Foreign;
use crate::memory::Semaphore;
use crate::platform::{Guest, Instrumented, LINES};
use crate::relax::{Halt, Hook as _, Pause, YieldSlice};

/// Most locks that a run may ask for.
pub(crate) const INSTANCES: usize = haltkick_hypercalls::MAX_LOCKS as usize;

/// A kind of lock that the workloads can use.
pub(crate) trait GuestLock: 'static {
    /// Whether it excludes; the one that does not is the measure of the ideal.
    fn excludes() -> bool {
        true
    }

    /// Does `section` while it holds lock number `index`, below [`INSTANCES`].
    fn section(index: usize, section: impl FnOnce());

    /// Does `section` while no other vCPU is in [`section`](Self::section). Where readers share, others may be in here.
    #[inline(always)]
    fn read_section(index: usize, section: impl FnOnce()) {
        Self::section(index, section);
    }
}

/// A kind of lock with functions for lock and unlock.
pub(crate) trait Kind: 'static {
    /// The lock itself.
    type Lock: Lock<Self::Domain> + 'static;
    /// The memory that all locks of this kind share.
    type Domain: haltkick_locks::Domain + 'static;
    /// See [`GuestLock::excludes`].
    const EXCLUDES: bool = true;
    /// What the first bytes of a lock mean, for whoever looks at a guest that failed.
    const WORD: u32 = haltkick_hypercalls::WORD_OPAQUE;
    /// Memory that each vCPU needs for locks of this kind.
    const CPU_BYTES: usize = size_of::<Self::Domain>() / MAX_VCPUS;

    /// Lock number `index`, below [`INSTANCES`].
    fn instance(index: usize) -> &'static CachePadded<Self::Lock>;
    /// The shared memory.
    fn domain() -> &'static Self::Domain;
}

/// Compiled into the caller; workloads use [`Sites`](crate::calls::Sites) instead.
impl<K: Kind> GuestLock for K {
    fn excludes() -> bool {
        K::EXCLUDES
    }

    #[inline(always)]
    fn section(index: usize, section: impl FnOnce()) {
        let lock = K::instance(index);
        let token = lock.lock(K::domain());
        section();
        lock.unlock(K::domain(), token);
    }
}

/// A lock that is held for the length of a closure, which no site can call.
pub(crate) trait Scoped: GuestLock {
    /// How page faults are served with it, if it is such a thing.
    const FAULTS: Option<Scheme> = None;
    /// Memory of one lock.
    const LOCK_BYTES: usize;
    /// Memory that each vCPU needs for such locks.
    const CPU_BYTES: usize;
}

/// Declares a kind of lock with its statics.
macro_rules! guest_lock {
    ($name:ident: $lock:ty = $new:expr, $domain_type:ty = $domain:expr $(, $constant:ident = $value:expr)?
     $(; $word:ident)?) => {
        pub(crate) enum $name {}

        impl Kind for $name {
            type Lock = $lock;
            type Domain = $domain_type;
            $(const $constant: bool = $value;)?
            $(const WORD: u32 = haltkick_hypercalls::$word;)?

            #[inline(always)]
            fn instance(index: usize) -> &'static CachePadded<$lock> {
                static INSTANCE: [CachePadded<$lock>; INSTANCES] = [const { CachePadded::new($new) }; INSTANCES];
                &INSTANCE[index]
            }

            #[inline(always)]
            fn domain() -> &'static $domain_type {
                static DOMAIN: $domain_type = $domain;
                &DOMAIN
            }
        }
    };
}

/// Declares a lock of another crate.
macro_rules! foreign_lock {
    ($name:ident: $lock:ty, $hook:ident) => {
        pub(crate) enum $name {}

        impl Kind for $name {
            type Lock = Foreign<$lock, $hook>;
            type Domain = Guest;
            const CPU_BYTES: usize = $hook::CPU_BYTES;

            #[inline(always)]
            fn instance(index: usize) -> &'static CachePadded<Self::Lock> {
                static INSTANCE: [CachePadded<Foreign<$lock, $hook>>; INSTANCES] =
                    [const { CachePadded::new(Foreign::new()) }; INSTANCES];
                &INSTANCE[index]
            }

            #[inline(always)]
            fn domain() -> &'static Guest {
                &Guest
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

        impl Scoped for $name {
            const LOCK_BYTES: usize = size_of::<Foreign<$lock, $hook>>();
            const CPU_BYTES: usize = $hook::CPU_BYTES + size_of::<mcslock::raw::MutexNode>();
        }
    };
}

/// Declares a lock with readers, of which sites know nothing: the workloads are compiled for it.
macro_rules! readers_lock {
    ($name:ident: $lock:ty, $domain_type:ty) => {
        pub(crate) enum $name {}

        impl $name {
            #[inline(always)]
            fn find(index: usize) -> (&'static $lock, &'static $domain_type) {
                static INSTANCE: [CachePadded<$lock>; INSTANCES] =
                    [const { CachePadded::new(<$lock>::new()) }; INSTANCES];
                static DOMAIN: $domain_type = <$domain_type>::new(Guest);
                (&INSTANCE[index], &DOMAIN)
            }
        }

        impl GuestLock for $name {
            #[inline(always)]
            fn section(index: usize, section: impl FnOnce()) {
                let (lock, domain) = Self::find(index);
                lock.write(domain);
                section();
                lock.write_unlock(domain);
            }

            #[inline(always)]
            fn read_section(index: usize, section: impl FnOnce()) {
                let (lock, domain) = Self::find(index);
                lock.read(domain);
                section();
                lock.read_unlock(domain);
            }
        }

        impl Scoped for $name {
            const LOCK_BYTES: usize = size_of::<$lock>();
            const CPU_BYTES: usize = size_of::<$domain_type>() / MAX_VCPUS;
        }
    };
}

type QspinDomain = QSpinDomain<Guest, MAX_VCPUS, LINES>;

guest_lock!(NoLock: haltkick_locks::NoLock = haltkick_locks::NoLock::new(), Guest = Guest, EXCLUDES = false);
guest_lock!(Tas: haltkick_locks::Tas = haltkick_locks::Tas::new(), Guest = Guest; WORD_TAS);
guest_lock!(SliceTas: haltkick_locks::SliceTas = haltkick_locks::SliceTas::new(), Guest = Guest; WORD_TAS);
guest_lock!(VirtTas: QSpinLock<haltkick_locks::VirtTas> = QSpinLock::new(), QspinDomain = QSpinDomain::new(Guest); WORD_QSPINLOCK);
guest_lock!(Ticket: haltkick_locks::Ticket = haltkick_locks::Ticket::new(), Guest = Guest; WORD_TICKET);
guest_lock!(TicketParavirt: PvTicket = PvTicket::new(), PvTicketDomain<Guest, MAX_VCPUS> = PvTicketDomain::new(Guest); WORD_PV_TICKET);
guest_lock!(UnfairTicket: haltkick_locks::UnfairTicket = haltkick_locks::UnfairTicket::new(), Guest = Guest; WORD_UNFAIR_TICKET);
guest_lock!(Mcs: haltkick_locks::Mcs = haltkick_locks::Mcs::new(), McsDomain<Guest, MAX_VCPUS> = McsDomain::new(Guest); WORD_MCS);
guest_lock!(
    Clh: haltkick_locks::Clh = haltkick_locks::Clh::new(),
    ClhDomain<Guest, MAX_VCPUS, INSTANCES> = ClhDomain::new(Guest);
    WORD_CLH
);
guest_lock!(
    OwnerYield: haltkick_locks::OwnerYield = haltkick_locks::OwnerYield::new(),
    OwnerYieldDomain<Guest, MAX_VCPUS> = OwnerYieldDomain::new(Guest);
    WORD_OWNER_YIELD
);
guest_lock!(QspinlockNative: QSpinLock<Native> = QSpinLock::new(), QspinDomain = QSpinDomain::new(Guest); WORD_QSPINLOCK);
guest_lock!(QspinlockParavirt: QSpinLock<Pv> = QSpinLock::new(), QspinDomain = QSpinDomain::new(Guest); WORD_QSPINLOCK);
guest_lock!(QspinlockNativeWhole: QSpinLock<Native, Whole> = QSpinLock::new(), QspinDomain = QSpinDomain::new(Guest); WORD_QSPINLOCK_WHOLE);
guest_lock!(QspinlockParavirtWhole: QSpinLock<Pv, Whole> = QSpinLock::new(), QspinDomain = QSpinDomain::new(Guest); WORD_QSPINLOCK_WHOLE);
guest_lock!(QspinlockV16: QSpinLock<V16> = QSpinLock::new(), QspinDomain = QSpinDomain::new(Guest); WORD_QSPINLOCK);
guest_lock!(QspinlockWc: QSpinLock<WorkConserving> = QSpinLock::new(), QspinDomain = QSpinDomain::new(Guest); WORD_QSPINLOCK);

type Spinlock<H> = spinning_top::lock_api::Mutex<spinning_top::RawSpinlock<H>, ()>;

foreign_lock!(SpinMutex: spin::mutex::SpinMutex<(), Pause>, Pause);
foreign_lock!(SpinMutexYield: spin::mutex::SpinMutex<(), YieldSlice>, YieldSlice);
foreign_lock!(SpinMutexHalt: spin::mutex::SpinMutex<(), Halt>, Halt);
foreign_lock!(SpinTicket: spin::mutex::TicketMutex<(), Pause>, Pause);
foreign_lock!(SpinTicketYield: spin::mutex::TicketMutex<(), YieldSlice>, YieldSlice);
foreign_lock!(SpinTicketHalt: spin::mutex::TicketMutex<(), Halt>, Halt);
foreign_lock!(SpinningTop: Spinlock<Pause>, Pause);
foreign_lock!(SpinningTopYield: Spinlock<YieldSlice>, YieldSlice);
foreign_lock!(SpinningTopHalt: Spinlock<Halt>, Halt);
scoped_lock!(Mcslock: mcslock::raw::Mutex<(), Pause>, Pause);
scoped_lock!(McslockYield: mcslock::raw::Mutex<(), YieldSlice>, YieldSlice);
scoped_lock!(McslockHalt: mcslock::raw::Mutex<(), Halt>, Halt);
scoped_lock!(McslockBarging: mcslock::barging::Mutex<(), Pause, Pause>, Pause);
scoped_lock!(McslockBargingYield: mcslock::barging::Mutex<(), YieldSlice, YieldSlice>, YieldSlice);
scoped_lock!(McslockBargingHalt: mcslock::barging::Mutex<(), Halt, YieldSlice>, Halt);
// The instrumented arms: the same source over a platform whose points are more than nothing. Their memory is their own.
type QspinPointsDomain = QSpinDomain<Instrumented, MAX_VCPUS, LINES>;

guest_lock!(QspinlockNativePoints: QSpinLock<Native> = QSpinLock::new(), QspinPointsDomain = QSpinDomain::new(Instrumented); WORD_QSPINLOCK);
guest_lock!(QspinlockParavirtPoints: QSpinLock<Pv> = QSpinLock::new(), QspinPointsDomain = QSpinDomain::new(Instrumented); WORD_QSPINLOCK);
guest_lock!(
    TicketPoints: PvTicket = PvTicket::new(),
    PvTicketDomain<Instrumented, MAX_VCPUS> = PvTicketDomain::new(Instrumented);
    WORD_PV_TICKET
);
guest_lock!(
    OwnerYieldPoints: haltkick_locks::OwnerYield = haltkick_locks::OwnerYield::new(),
    OwnerYieldDomain<Instrumented, MAX_VCPUS> = OwnerYieldDomain::new(Instrumented);
    WORD_OWNER_YIELD
);

/// Declares a way to serve page faults. As a lock, it is the `mmap_sem` that all of them have, held for writing.
macro_rules! fault_scheme {
    ($name:ident) => {
        pub(crate) enum $name {}

        impl GuestLock for $name {
            #[inline(always)]
            fn section(index: usize, section: impl FnOnce()) {
                let semaphore = mmap_sem(index);
                semaphore.write();
                section();
                semaphore.write_unlock();
            }
        }

        impl Scoped for $name {
            const LOCK_BYTES: usize = size_of::<Semaphore>();
            const CPU_BYTES: usize = Semaphore::CPU_BYTES;
            const FAULTS: Option<Scheme> = Some(Scheme::$name);
        }
    };
}

fn mmap_sem(index: usize) -> &'static Semaphore {
    static INSTANCE: [CachePadded<Semaphore>; INSTANCES] =
        [const { CachePadded::new(Semaphore::new(false)) }; INSTANCES];
    &INSTANCE[index]
}

fault_scheme!(MmapSem);
fault_scheme!(Speculative);
fault_scheme!(PerVma);
use haltkick_locks::{SleepDomain, osq};

type Sleepers<L> = SleepDomain<Guest, L, MAX_VCPUS>;

guest_lock!(MutexPacked: haltkick_locks::Mutex<osq::Packed> = haltkick_locks::Mutex::new(), Sleepers<osq::Packed> = SleepDomain::new(Guest); WORD_MUTEX);
guest_lock!(MutexSplit: haltkick_locks::Mutex<osq::Split> = haltkick_locks::Mutex::new(), Sleepers<osq::Split> = SleepDomain::new(Guest); WORD_MUTEX);
guest_lock!(MutexCached: haltkick_locks::Mutex<osq::Cached> = haltkick_locks::Mutex::new(), Sleepers<osq::Cached> = SleepDomain::new(Guest); WORD_MUTEX);
guest_lock!(MutexPrevCpu: haltkick_locks::Mutex<osq::PrevCpu> = haltkick_locks::Mutex::new(), Sleepers<osq::PrevCpu> = SleepDomain::new(Guest); WORD_MUTEX);
readers_lock!(RwSemPacked: haltkick_locks::RwSem<osq::Packed>, Sleepers<osq::Packed>);
readers_lock!(RwSemSplit: haltkick_locks::RwSem<osq::Split>, Sleepers<osq::Split>);
readers_lock!(RwSemCached: haltkick_locks::RwSem<osq::Cached>, Sleepers<osq::Cached>);
readers_lock!(RwSemPrevCpu: haltkick_locks::RwSem<osq::PrevCpu>, Sleepers<osq::PrevCpu>);
guest_lock!(Futex: haltkick_locks::FutexMutex = haltkick_locks::FutexMutex::new(), Sleepers<osq::Packed> = SleepDomain::new(Guest); WORD_FUTEX);
