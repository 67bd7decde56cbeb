//! The locks that other structures of this guest are made of: grant tables, queues of reader-writer locks.
//!
//! Not all of the guest's locks will do. Such a structure has locks by the thousand, embedded in it, so it takes
//! those that are small and need no token; and each one is compiled once for each structure.

use haltkick_grants::Kernel;
use haltkick_hypercalls::MAX_VCPUS;
use haltkick_locks::{Native, NoLock, Pv, PvTicket, PvTicketDomain, QSpinDomain, QSpinLock, Tas, Ticket};

use crate::cpu::percpu::{boot, this};
use crate::cpu::time::{iterations, now, work};
use crate::lock::platform::Guest;

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

/// Declares workloads on structures whose spinlocks are the lock of the run: what a vCPU does where they are of
/// kernel `$kernel`. Without a lock it does `$without`: the same work, without contention.
macro_rules! workloads_on_parts {
    ($times:tt, $without:expr; $($order:literal $name:literal, $summary:literal, |$kernel:ident| $run:expr;)+) => {$(
        $crate::lock::registry::workload! {
            $order $name, $summary, [CHECKS_AT_REST NEEDS_PARTS IDEAL_IS_LOCK_FREE], $times => || {
                use $crate::lock::{kind::Part, parts};

                fn with_parts<$kernel: haltkick_grants::Kernel>() {
                    $run;
                }
                let part = $crate::lock::registry::form_of_run().part;
                match part.expect("the VMM checked that the lock can be a part") {
                    Part::Nothing => $without,
                    Part::Tas => with_parts::<parts::OfTas>(),
                    Part::Ticket => with_parts::<parts::OfTicket>(),
                    Part::TicketParavirt => with_parts::<parts::OfTicketParavirt>(),
                    Part::QspinlockNative => with_parts::<parts::OfQspinlockNative>(),
                    Part::QspinlockParavirt => with_parts::<parts::OfQspinlockParavirt>(),
                }
            };
        }
    )+};
}

pub(crate) use workloads_on_parts;
