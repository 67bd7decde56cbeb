//! The lock crate's locks as this guest has them: where their instances lie, and the memory that each kind shares.

use haltkick_hypercalls::MAX_VCPUS;
use haltkick_locks::{
    CachePadded, ClhDomain, Lock, McsDomain, Native, OwnerYieldDomain, Pv, PvTicket, PvTicketDomain,
    QSpinDomain, QSpinLock, V16, WorkConserving,
};

use crate::platform::Guest;

/// Most locks that a run may ask for.
pub(crate) const INSTANCES: usize = haltkick_hypercalls::MAX_LOCKS as usize;

/// A kind of lock that the workloads can use.
pub(crate) trait GuestLock: 'static {
    /// The lock itself.
    type Lock: Lock<Self::Domain>;
    /// The memory that all locks of this kind share.
    type Domain: 'static;
    /// Whether it excludes; the one that does not is the measure of the ideal.
    const EXCLUDES: bool = true;

    /// Lock number `index`, below [`INSTANCES`].
    fn instance(index: usize) -> &'static Self::Lock;
    /// The shared memory.
    fn domain() -> &'static Self::Domain;

    /// Acquires lock number `index`.
    #[inline(always)]
    fn lock(index: usize) -> <Self::Lock as Lock<Self::Domain>>::Token {
        Self::instance(index).lock(Self::domain())
    }

    /// Releases lock number `index`.
    #[inline(always)]
    fn unlock(index: usize, token: <Self::Lock as Lock<Self::Domain>>::Token) {
        Self::instance(index).unlock(Self::domain(), token);
    }
}

/// Declares a kind of lock with its statics.
macro_rules! guest_lock {
    ($name:ident: $lock:ty = $new:expr, $domain_type:ty = $domain:expr $(, excludes = $excludes:literal)?) => {
        pub(crate) enum $name {}

        impl GuestLock for $name {
            type Lock = CachePadded<$lock>;
            type Domain = $domain_type;
            $(const EXCLUDES: bool = $excludes;)?

            #[inline(always)]
            fn instance(index: usize) -> &'static Self::Lock {
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
