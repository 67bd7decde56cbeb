//! Reports of a lock: activities, counted events and named points.
//!
//! Events are what the slow paths count. Those that Linux counts, too, have the names that Linux uses; for what Linux
//! does not count, names of the same kind had to be made up.

/// `named! { pub enum Type { Variant = "name", } }` declares an enum whose variants have names for users: with `ALL`,
/// `COUNT`, `NAMES` and `name`, in the order of the discriminants.
#[doc(hidden)]
#[macro_export]
macro_rules! named {
    ($(#[$attribute:meta])* pub enum $type:ident {
        $($(#[$documentation:meta])* $variant:ident = $name:literal,)+
    }) => {
        $(#[$attribute])*
        pub enum $type {
            $($(#[$documentation])* $variant,)+
        }

        impl $type {
            /// All of them, in the order of their discriminants.
            pub const ALL: [Self; Self::COUNT] = [$(Self::$variant),+];

            /// How many there are.
            pub const COUNT: usize = [$($name),+].len();

            /// The names, indexed by the discriminants.
            pub const NAMES: [&'static str; Self::COUNT] = [$($name),+];

            /// The name for users: in records, tables and experiment files.
            pub const fn name(self) -> &'static str {
                Self::NAMES[self as usize]
            }
        }
    };
}

named! {
    /// One lock event; its discriminant indexes an array of [`Event::COUNT`] counters.
    ///
    /// The order is fixed: new events are appended. Two identities hold when no lock is being taken, and the
    /// tests check them:
    ///
    /// - native queue: acquisitions = fast + `lock_pending` + `lock_slowpath`;
    /// - paravirtual queue: acquisitions = fast + `pv_lock_stealing` + `lock_slowpath`.
    ///
    /// And a kick that ended a wait was sent: `pv_kick_wake` <= `pv_kick_unlock`, `sleep_kick_wake` <= `sleep_kick`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    #[repr(u8)]
    pub enum Event {
        /// Slots probed by inserts into the hash table; by habit reported per `pv_kick_unlock`.
        PvHashHops = "pv_hash_hops",
        /// Kicks sent by an unlock that found a sleeping head, or by a work-conserving head to its successor. Of
        /// spinlocks, as the four that follow: the sleeping locks have events of their own.
        PvKickUnlock = "pv_kick_unlock",
        /// Kicks that could be matched to the return of a wait.
        PvKickWake = "pv_kick_wake",
        /// Time spent inside [`kick`](crate::Platform::kick), to be shown per `pv_kick_unlock`. Counted in ticks; a reader
        /// that shows it under this name has to convert it to nanoseconds, the unit that Linux uses.
        PvLatencyKick = "pv_latency_kick",
        /// Time from a kick to the return of the wait that it ended, to be seen per `pv_kick_wake`. In ticks, as above.
        PvLatencyWake = "pv_latency_wake",
        /// Acquisitions that overtook the queue.
        PvLockStealing = "pv_lock_stealing",
        /// A waiter that was not head woke up and still was not.
        PvSpuriousWakeup = "pv_spurious_wakeup",
        /// The head slept more than once for one acquisition.
        PvWaitAgain = "pv_wait_again",
        /// Sleeps begun before the threshold because the predecessor was not running.
        PvWaitEarly = "pv_wait_early",
        /// Sleeps of a queue head.
        PvWaitHead = "pv_wait_head",
        /// Sleeps of a waiter that was not head.
        PvWaitNode = "pv_wait_node",
        /// Acquisitions through the pending bit.
        LockPending = "lock_pending",
        /// Acquisitions through the queue.
        LockSlowpath = "lock_slowpath",
        /// Queue entries at the second nesting level of a CPU.
        LockUseNode2 = "lock_use_node2",
        /// Queue entries at the third nesting level.
        LockUseNode3 = "lock_use_node3",
        /// Queue entries at the fourth nesting level.
        LockUseNode4 = "lock_use_node4",
        /// All nodes of the CPU were in use: the lock was taken by spinning instead.
        LockNoNode = "lock_no_node",
        /// Waiters that left a spin queue.
        OsqUnqueue = "osq_unqueue",
        /// Looks into a predecessor's node of a spin queue, for whose it is.
        OsqCpuRead = "osq_cpu_read",
        /// Such looks that found the line written to since the last one: it had to come from another CPU.
        OsqCpuReadWritten = "osq_cpu_read_written",
        /// Rounds of spinning on the owner of a sleeping lock.
        OwnerSpin = "owner_spin",
        /// Such rounds while the owner was preempted, whether or not the lock was allowed to know.
        OwnerSpinPreempted = "owner_spin_preempted",
        /// Mutexes taken by spinning.
        MutexOptLock = "mutex_opt_lock",
        /// Spins for a mutex that were given up.
        MutexOptFail = "mutex_opt_fail",
        /// Sleeps for a mutex.
        MutexSleep = "mutex_sleep",
        /// Sleepers woken by the unlock of a mutex.
        MutexWake = "mutex_wake",
        /// Unlocks that named the first sleeper the next owner.
        MutexHandoff = "mutex_handoff",
        /// Sleeps of readers.
        RwsemSleepReader = "rwsem_sleep_reader",
        /// Sleeps of writers.
        RwsemSleepWriter = "rwsem_sleep_writer",
        /// Sleeping readers that were given the lock.
        RwsemWakeReader = "rwsem_wake_reader",
        /// Sleeping writers that were woken to try again.
        RwsemWakeWriter = "rwsem_wake_writer",
        /// Write locks taken by spinning.
        RwsemOptLock = "rwsem_opt_lock",
        /// Spins for a write lock that were given up.
        RwsemOptFail = "rwsem_opt_fail",
        /// Spinning forbidden because readers keep the lock for too long.
        RwsemOptNospin = "rwsem_opt_nospin",
        /// Read locks after a sleep.
        RwsemRlock = "rwsem_rlock",
        /// Read locks that overtook sleepers.
        RwsemRlockSteal = "rwsem_rlock_steal",
        /// Read locks that were free after all when the list was reached.
        RwsemRlockFast = "rwsem_rlock_fast",
        /// Locks promised to a sleeping reader that waited too long.
        RwsemRlockHandoff = "rwsem_rlock_handoff",
        /// Write locks through the list.
        RwsemWlock = "rwsem_wlock",
        /// Locks promised to a sleeping writer that waited too long.
        RwsemWlockHandoff = "rwsem_wlock_handoff",
        /// Sleeps for a futex mutex.
        FutexWait = "futex_wait",
        /// Sleepers of a futex mutex that were woken.
        FutexWake = "futex_wake",
        /// Kicks sent to sleepers of sleeping locks.
        SleepKick = "sleep_kick",
        /// Such kicks that could be matched to the return of a wait.
        SleepKickWake = "sleep_kick_wake",
        /// Ticks spent inside such kicks.
        SleepLatencyKick = "sleep_latency_kick",
        /// Ticks from such a kick to the return of the wait that it ended.
        SleepLatencyWake = "sleep_latency_wake",
        /// Sections of others that began between asking for a lock and having it. Counted by the user of a lock.
        Overtaken = "overtaken",
        /// Most of them in one wait: not a sum, but a maximum. Counted by the user of a lock.
        OvertakenMost = "overtaken_most",
        /// Time on a CPU in spins of waiters that were not head, which ended with the threshold and a sleep. In
        /// ticks, as those that follow; only what was spun before a sleep counts.
        PvLatencySpinNode = "pv_latency_spin_node",
        /// Time on a CPU in spins of waiters that were not head, which ended early because the predecessor was not running.
        PvLatencySpinEarly = "pv_latency_spin_early",
        /// Time on a CPU in spins of queue heads before their first sleep.
        PvLatencySpinHead = "pv_latency_spin_head",
        /// Time on a CPU in spins of queue heads between two sleeps.
        PvLatencySpinAgain = "pv_latency_spin_again",
        /// Time from the beginning of a sleep to its return, after a spin that counts for [`Event::PvLatencySpinNode`].
        PvLatencyHaltNode = "pv_latency_halt_node",
        /// Time of a sleep after a spin that counts for [`Event::PvLatencySpinEarly`].
        PvLatencyHaltEarly = "pv_latency_halt_early",
        /// Time of a sleep after a spin that counts for [`Event::PvLatencySpinHead`].
        PvLatencyHaltHead = "pv_latency_halt_head",
        /// Time of a sleep after a spin that counts for [`Event::PvLatencySpinAgain`].
        PvLatencyHaltAgain = "pv_latency_halt_again",
        /// Acquisitions that failed because the lock did not become free in time.
        LockTimedOut = "lock_timed_out",
        /// Waiters that failed so because the head of their queue gave up.
        LockDissolved = "lock_dissolved",
        /// Acquisitions that failed because the CPU would have waited for itself, or might have.
        LockDeadlock = "lock_deadlock",
    }
}

const _: () = assert!(Event::COUNT <= 64, "a set of events fits a `u64`");

/// Activity of a CPU as seen by the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Activity {
    /// Work that concerns no lock.
    Other = 0,
    /// Owns a lock: is in a section.
    Holder = 1,
    /// Waits for a lock, behind others or in no particular order. Set by the lock.
    Waiter = 2,
    /// Waits for a lock and is the next to be served. Set by the lock.
    Head = 3,
}

impl Activity {
    /// Returns the activity of a CPU that has announced this one and is in `sections` critical sections.
    ///
    /// A CPU that waits for a lock while it holds another one is a holder first, because others wait for it. A CPU that
    /// is about to kick has released a lock that its user still counts.
    #[inline(always)]
    pub const fn among(self, sections: u32) -> Self {
        let still_counted = matches!(self, Self::Other) as u32;
        if sections > still_counted { Self::Holder } else { self }
    }
}

/// Declares the points: of each its name for users, the activity of a CPU that passes it (none: that depends on how the CPU came
/// there), and one line for people who choose a point.
macro_rules! points {
    ($($(#[$reason:meta])* $point:ident = $name:literal $(for $activity:ident)?, $summary:literal;)+) => {
        named! {
            /// A place where a test, or a hypervisor, may deschedule the CPU; see
            /// [`Platform::point`](crate::Platform::point).
            ///
            /// Each names the race that it makes likely; see [`races`](crate::races).
            #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
            #[non_exhaustive]
            #[repr(u8)]
            pub enum Point {
                $(#[doc = $summary] #[doc = ""] $(#[$reason])* $point = $name,)+
            }
        }

        impl Point {
            /// Activity of a CPU that passes this point; `None` if it depends on how the CPU came there.
            ///
            /// Between owning the lock and returning from `lock`, or between releasing it and returning from `unlock`, this is
            /// more than what has been [announced](crate::Platform::announce).
            pub const fn activity(self) -> Option<Activity> {
                // The first of each array is the point's activity, or `None` where none is given.
                [$([$(Some(Activity::$activity),)? None][0]),+][self as usize]
            }

            /// One line for people who choose a point.
            pub const fn summary(self) -> &'static str {
                [$($summary),+][self as usize]
            }
        }
    };
}

points! {
    /// An interrupt here must not claim the same node.
    NodeClaimed = "node-claimed" for Waiter, "a node is claimed and not yet initialised (T6)";
    /// Everything a predecessor may touch must be initialised by now.
    TailPublished = "tail-published" for Waiter,
        "the tail names the node, the predecessor does not know it yet (T5)";
    /// Newcomers must not wait for this CPU without bound.
    PendingSet = "pending-set" for Head, "the pending bit is held while the owner has not left (T7)";
    /// One of the two sides must see the other.
    HaltedPublished = "halted-published" for Waiter,
        "a waiter has published HALTED and not yet looked whether it is head (T1)";
    /// The new head may already have registered itself.
    HandedOver = "handed-over" for Holder,
        "the next node is head, and its state has not been looked at (T1, T2)";
    /// Its CPU may wake by itself, and must not register.
    SuccessorHashed = "successor-hashed" for Holder,
        "the sleeping next head is HASHED, and not yet in the table nor the word SLOW";
    /// The one state that does not heal by itself when the head is descheduled.
    HeadSpinning = "head-spinning" for Head,
        "the head spins with the pending bit set, which forbids stealing (D2)";
    HeadHashed = "head-hashed" for Head, "the head is in the table, and the word is not yet SLOW (T3)";
    /// It must find the entry.
    SlowSeen = "slow-seen" for Holder, "an unlock has found SLOW and not yet searched the table (T3)";
    EntryRemoved = "entry-removed" for Holder,
        "a slow unlock has taken the entry out, and still holds the lock";
    /// The lock's memory may be gone.
    SlowReleased = "slow-released" for Other,
        "a slow unlock has released the lock, and not yet kicked the head (T4)";
    /// A kick from here on must not be lost, nor be taken by an interrupt that waits itself (T10).
    BeforeSleep = "before-sleep", "a waiter is about to halt (T11)";
    /// Its successor's link names it still, and the successor must wait for it to be out of the way.
    Unlinked = "unlinked" for Waiter, "a waiter that gives up is out of its predecessor's link only (O2)";
    /// Later arrivals must not get ahead of it.
    WriterWaits = "writer-waits" for Head, "the first in the queue has announced that it is a writer (T17)";
    /// One of the two must see the other; and while there is a writer, such a reader stands in its way.
    ReaderAnnounced = "reader-announced" for Waiter,
        "a reader has announced itself and not yet looked for a writer";
    /// An NMI must find it there.
    EntryMade = "entry-made" for Waiter, "a lock is in the table of held locks, and not yet asked for (RQ2)";
    EntryStays = "entry-stays" for Other, "a lock is released, and still in the table of held locks (RQ2)";
}
