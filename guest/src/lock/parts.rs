//! The locks that other structures of this guest are made of: grant tables, queues of reader-writer locks.
//!
//! Not all of the guest's locks will do. Such a structure has locks by the thousand, embedded in it, so it takes
//! those that are small and need no token; and each one is compiled once for each structure.

use haltkick_grants::Kernel;
use haltkick_hypercalls::MAX_VCPUS;
use haltkick_locks::{Native, NoLock, Pv, PvTicket, PvTicketDomain, QSpinDomain, QSpinLock, Tas, Ticket};

use crate::cpu::percpu::{boot, this};
use crate::cpu::time::{iterations, now, work};
use crate::lock::kind::Part;
use crate::lock::platform::Guest;
use crate::lock::registry;

/// Returns the part that this run's structures are made of.
pub(crate) fn part_of_run() -> Part {
    registry::form_of_run().part.expect("the VMM checked that the lock can be a part")
}

/// Declares the kernel that is made of each kind.
macro_rules! parts {
    ($($name:ident: $lock:ty = $new:expr, $domain_type:ty = $domain:expr;)+) => {$(
        pub(crate) enum $name {}

        impl Kernel for $name {
            type Lock = $lock;
            type Domain = $domain_type;

            #[inline(always)]
            fn new_lock() -> $lock {
                $new
            }

            #[inline(always)]
            fn domain() -> &'static $domain_type {
                static DOMAIN: $domain_type = $domain;
                &DOMAIN
            }

            #[inline(always)]
            fn page_table_work() {
                page_table_work();
            }
        }
    )+};
}

type QspinDomain = QSpinDomain<Guest, MAX_VCPUS, MAX_VCPUS>;

parts! {
    OfNothing: NoLock = NoLock::new(), Guest = Guest;
    OfTas: Tas = Tas::new(), Guest = Guest;
    OfTicket: Ticket = Ticket::new(), Guest = Guest;
    OfTicketParavirt: PvTicket = PvTicket::new(), PvTicketDomain<Guest, MAX_VCPUS> = PvTicketDomain::new(Guest);
    OfQspinlockNative: QSpinLock<Native> = QSpinLock::new(), QspinDomain = QSpinDomain::new(Guest);
    OfQspinlockParavirt: QSpinLock<Pv> = QSpinLock::new(), QspinDomain = QSpinDomain::new(Guest);
}

/// `--hold`: what changing a page table costs. A sign of life for the watchdog, too: under a slow lock a request takes
/// seconds.
fn page_table_work() {
    // Relaxed: the VMM looks whether it changes.
    this().activity.since_tsc.store(now(), core::sync::atomic::Ordering::Relaxed);
    let hold = boot().hold_ns;
    if hold != 0 {
        work(iterations(hold));
    }
}

/// Calls `$function::<K>` for the kernel `K` that is made of `$part`; `$without` if that is nothing.
macro_rules! by_part {
    ($part:expr, $function:ident($($argument:expr),*), $without:expr) => {
        match $part {
            $crate::lock::kind::Part::Nothing => $without,
            $crate::lock::kind::Part::Tas => $function::<$crate::lock::parts::OfTas>($($argument),*),
            $crate::lock::kind::Part::Ticket => $function::<$crate::lock::parts::OfTicket>($($argument),*),
            $crate::lock::kind::Part::TicketParavirt => $function::<$crate::lock::parts::OfTicketParavirt>($($argument),*),
            $crate::lock::kind::Part::QspinlockNative => $function::<$crate::lock::parts::OfQspinlockNative>($($argument),*),
            $crate::lock::kind::Part::QspinlockParavirt => $function::<$crate::lock::parts::OfQspinlockParavirt>($($argument),*),
        }
    };
}

pub(crate) use by_part;
