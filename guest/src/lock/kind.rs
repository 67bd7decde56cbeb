//! Kinds of locks: what the table of calls needs of each, and which can be parts of other structures.

use haltkick_locks::{Domain, RwLock};
use haltkick_mm::Scheme;

use crate::cpu::percpu::{boot, this};
use crate::cpu::time::{iterations, now, work};

pub(crate) trait Kind: 'static {
    /// The lock itself, with readers that share it or do not.
    type Lock: RwLock<Self::Domain> + 'static;
    /// The memory that all locks of this kind share.
    type Domain: Domain + 'static;
    /// Whether it excludes; the one that does not is the measure of the ideal.
    const EXCLUDES: bool = true;
    /// Meaning of a lock's first bytes, for readers of a guest that failed.
    const WORD: u32 = haltkick_hypercalls::WORD_OPAQUE;
    /// Part that structures are made of in a run with this lock.
    const PART: Option<Part> = None;
    /// Whether readers share it.
    const SHARES: bool = false;
    /// How page faults are served in a run with this lock.
    const FAULTS: Option<Serving> = Some(MMAP_SEM);

    fn new() -> Self::Lock;
    /// The shared memory.
    fn domain() -> &'static Self::Domain;
}

/// Whose rules `mmap_sem` has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rules {
    Today,
    Of2018,
}

/// A way to serve page faults: the scheme, and what `mmap_sem` is like.
pub(crate) type Serving = (Scheme, Rules);

/// Setting of a run with any other lock.
pub(crate) const MMAP_SEM: Serving = (Scheme::MmapSem, Rules::Today);

/// From one lock to the next, whatever their kind.
pub(crate) const INSTANCE_BYTES: usize = 256;

/// The kinds of locks that other structures of this guest are made of: grant tables, queues of reader-writer locks. Such a
/// structure has locks by the thousand, embedded in it, so it takes those that are small and need no token; and each one is
/// compiled once for each structure.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// No exclusion at all.
    Nothing,
    Tas,
    Ticket,
    TicketParavirt,
    QspinlockNative,
    QspinlockParavirt,
}

/// State shared by all locks of a kind begins at a page, so that offsets in a page do not depend on its
/// neighbours.
#[repr(align(4096))]
pub(crate) struct Paged<T>(pub(crate) T);

/// Declares a kind of lock with the memory that its locks share, which is also the kernel of structures that are made of such locks;
/// with `readers`, a reader-writer lock and a reference to that memory.
macro_rules! guest_kind {
    ($name:ident: $lock:ty, $domain_type:ty = $domain:expr $(, $constant:ident: $type:ty = $value:expr)*) => {
        $crate::lock::kind::guest_kind! {
            $name: haltkick_grants::Exclusive<$lock> = haltkick_grants::Exclusive(<$lock>::new()),
            $domain_type = {
                static DOMAIN: $crate::lock::kind::Paged<$domain_type> = $crate::lock::kind::Paged($domain);
                &DOMAIN.0
            }
            $(, $constant: $type = $value)*
        }

        impl haltkick_grants::Kernel for $name {
            type Lock = $lock;
            type Domain = $domain_type;

            #[inline(always)]
            fn new_lock() -> $lock {
                <$lock>::new()
            }

            #[inline(always)]
            fn domain() -> &'static $domain_type {
                <Self as $crate::lock::kind::Kind>::domain()
            }

            #[inline(always)]
            fn page_table_work() {
                $crate::lock::kind::page_table_work();
            }
        }
    };
    (readers $name:ident: $lock:ty = $new:expr, $domain_type:ty = $domain:expr $(, $constant:ident: $type:ty = $value:expr)*) => {
        $crate::lock::kind::guest_kind! {
            $name: $lock = $new, $domain_type = $domain, SHARES: bool = true $(, $constant: $type = $value)*
        }
    };
    ($name:ident: $lock:ty = $new:expr, $domain_type:ty = $domain:expr $(, $constant:ident: $type:ty = $value:expr)*) => {
        pub(crate) enum $name {}

        impl $crate::lock::kind::Kind for $name {
            type Lock = $lock;
            type Domain = $domain_type;
            $(const $constant: $type = $value;)*

            #[inline(always)]
            fn new() -> $lock {
                $new
            }

            #[inline(always)]
            fn domain() -> &'static $domain_type {
                $domain
            }
        }
    };
}

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

pub(crate) use {guest_kind, workloads_on_parts};
