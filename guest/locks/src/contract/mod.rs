//! The contract between lock, caller and kernel.

mod event;
mod platform;

pub use event::{Activity, Event, Point};
pub use platform::{Platform, Queues};

/// A spinlock whose per-kernel memory is a `D`, its *domain*.
///
/// A lock object is small and knows nothing of the machine. What all locks of one kind share (the
/// [`Platform`](crate::Platform), and per-CPU queue nodes where the kind needs them) lives in the domain, of
/// which a kernel declares one `static` per kind of lock. Kinds that need no memory take the platform itself
/// as their domain.
///
/// All users of one lock must pass the same domain, and `unlock` is only for the CPU that holds the lock. Otherwise
/// there is no mutual exclusion.
pub trait Lock<D>: Sync + Sized {
    /// Value that `lock` passes to the matching `unlock`: `()`, or the queue node in use.
    type Token;

    /// Acquires the lock, waiting as long as it takes.
    fn lock(&self, domain: &D) -> Self::Token;

    /// Acquires the lock if that needs no waiting.
    fn try_lock(&self, domain: &D) -> Option<Self::Token>;

    /// Releases the lock.
    fn unlock(&self, domain: &D, token: Self::Token);
}

/// A reader-writer spinlock; see [`Lock`](crate::Lock) for what a domain `D` is and what callers owe.
///
/// No CPU may take a lock for writing while it holds it in any way, nor for reading while it holds it for writing.
/// Whether a reader may take it for reading once more depends on the kind. Where a waiting writer stops newcomers, that
/// is a deadlock ([`FairRwLock`](crate::FairRwLock)).
pub trait RwLock<D>: Sync + Sized {
    /// Value that `read` passes to the matching `read_unlock`.
    type ReadToken;

    /// Value that `write` passes to the matching `write_unlock`.
    type WriteToken;

    /// Acquires the lock for reading, waiting as long as it takes.
    fn read(&self, domain: &D) -> Self::ReadToken;

    /// Releases what `read` acquired.
    fn read_unlock(&self, domain: &D, token: Self::ReadToken);

    /// Acquires the lock for writing, waiting as long as it takes.
    fn write(&self, domain: &D) -> Self::WriteToken;

    /// Releases what `write` acquired.
    fn write_unlock(&self, domain: &D, token: Self::WriteToken);
}

pub(crate) mod sealed {
    /// Keeps a trait to the protocols and layouts that have been checked.
    pub trait Sealed {}
}

/// Announces `activity` and pauses until `done`.
#[inline(always)]
pub(crate) fn wait_until<P: Platform>(platform: &P, activity: Activity, done: impl Fn() -> bool) {
    platform.announce(activity);
    while !done() {
        platform.pause();
    }
}

/// Announces a waiter, and pauses until `take` has the lock; it tries when `may_be_free`.
#[inline(always)]
pub(crate) fn poll<P: Platform>(platform: &P, may_be_free: impl Fn() -> bool, take: impl Fn() -> bool) {
    platform.announce(Activity::Waiter);
    loop {
        while !may_be_free() {
            platform.pause();
        }
        if take() {
            return;
        }
    }
}

/// A domain of any kind: reader-writer locks pause by its platform, whatever queue they are made of.
pub trait Domain: Sync {
    /// The platform that serves the locks.
    type Platform: Platform;

    /// That platform.
    fn platform(&self) -> &Self::Platform;

    /// Layout of its queues in memory; `None` if they are not in memory or their place is unknown.
    fn queues(&self) -> Option<Queues> {
        None
    }
}

/// Kinds of locks without memory of their own take the platform for a domain.
impl<P: Platform> Domain for P {
    type Platform = P;

    #[inline(always)]
    fn platform(&self) -> &P {
        self
    }
}

/// `domain!(Type<SIZE>, |domain| QUEUES)`: the domain's platform is its field `platform`, and `QUEUES` its layout.
/// With fields the type is declared as well: each field has for each CPU what the field's type calls `new`.
macro_rules! domain {
    ($domain:ident<$($size:ident),+>, |$this:ident| $queues:expr) => {
        impl<P: $crate::Platform, $(const $size: usize),+> $crate::Domain for $domain<P, $($size),+> {
            type Platform = P;

            #[inline(always)]
            fn platform(&self) -> &P {
                &self.platform
            }

            fn queues(&self) -> Option<$crate::Queues> {
                let $this = self;
                Some($queues)
            }
        }
    };
    (
        $(#[$note:meta])*
        $domain:ident<$cpus:ident> { $($field:ident: $each:ident),+ }
        $(assert!($($limit:tt)+);)?
        |$this:ident| $queues:expr
    ) => {
        $(#[$note])*
        #[derive(Debug)]
        pub struct $domain<P, const $cpus: usize> {
            platform: P,
            $($field: [$each; $cpus],)+
        }

        $crate::contract::domain!($domain<$cpus>, |$this| $queues);

        impl<P, const $cpus: usize> $domain<P, $cpus> {
            $crate::memory::const_unless_loom! {
                /// The memory of CPUs of which none waits or holds a lock.
                pub const fn new(platform: P) -> Self {
                    $(const { assert!($($limit)+) };)?
                    Self { platform, $($field: $crate::memory::array![$each::new(); $cpus],)+ }
                }
            }
        }
    };
}

pub(crate) use domain;

/// A platform for tests that never wait.
#[cfg(test)]
pub(crate) mod test_platform {
    use super::{Event, Platform};

    /// One CPU, on which nothing sleeps.
    pub(crate) struct Scripted {
        pub pause: fn(),
        pub now: fn() -> u64,
    }

    /// A platform on which no time passes.
    pub(crate) const IDLE: Scripted = Scripted { pause: || (), now: || 0 };

    impl Platform for Scripted {
        fn cpu(&self) -> usize {
            0
        }

        fn pause(&self) {
            (self.pause)();
        }

        fn now(&self) -> u64 {
            (self.now)()
        }

        fn spin_threshold(&self) -> u64 {
            0
        }

        fn wait(&self, _: impl Fn() -> bool) {}

        fn kick(&self, _: usize) {}

        fn is_preempted(&self, _: usize) -> bool {
            false
        }

        fn ticks(&self, nanoseconds: u64) -> u64 {
            nanoseconds
        }

        fn yield_to(&self, _: Option<usize>) {}

        fn count(&self, _: Event, _: u64) {}
    }
}
