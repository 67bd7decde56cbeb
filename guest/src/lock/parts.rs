//! The locks that other structures of this guest are made of: grant tables, queues of reader-writer locks.
//!
//! Not all of the guest's locks will do. Such a structure has locks by the thousand, embedded in it, so it takes
//! those that are small and need no token; and each one is compiled once for each structure.

use crate::cpu::percpu::{boot, this};
use crate::cpu::time::{iterations, now, work};

/// `--hold`: what changing a page table costs. A sign of life for the watchdog, too: under a slow lock a request takes
/// seconds.
pub(crate) fn page_table_work() {
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
                use $crate::lock::{kind::Part, locks};

                fn with_parts<$kernel: haltkick_grants::Kernel>() {
                    $run;
                }
                let part = $crate::lock::registry::form_of_run().part;
                match part.expect("the VMM checked that the lock can be a part") {
                    Part::Nothing => $without,
                    Part::Tas => with_parts::<locks::Tas>(),
                    Part::Ticket => with_parts::<locks::Ticket>(),
                    Part::TicketParavirt => with_parts::<locks::TicketParavirt>(),
                    Part::QspinlockNative => with_parts::<locks::QspinlockNative>(),
                    Part::QspinlockParavirt => with_parts::<locks::QspinlockParavirt>(),
                }
            };
        }
    )+};
}

pub(crate) use workloads_on_parts;
