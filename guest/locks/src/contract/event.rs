//! Reports of a lock: activities, counted events and named points. Events are what the slow paths count. Those that Linux counts, too, have the names that Linux uses
//! ([`Event::is_in_linux`]); for what Linux does not count, names of the same kind had to be made up.

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
    PvHashHops,
    /// Kicks sent by an unlock that found a sleeping head, or by a work-conserving head to its successor. Of spinlocks, as
    /// the four that follow: the sleeping locks have events of their own.
    PvKickUnlock,
    /// Kicks that could be matched to the return of a wait.
    PvKickWake,
    /// Time spent inside [`kick`](crate::Platform::kick), to be shown per `pv_kick_unlock`. Counted in ticks; a reader
    /// that shows it under this name has to convert it to nanoseconds, the unit that Linux uses.
    PvLatencyKick,
    /// Time from a kick to the return of the wait that it ended, to be seen per `pv_kick_wake`. In ticks, as above.
    PvLatencyWake,
    /// Acquisitions that overtook the queue.
    PvLockStealing,
    /// A waiter that was not head woke up and still was not.
    PvSpuriousWakeup,
    /// The head slept more than once for one acquisition.
    PvWaitAgain,
    /// Sleeps begun before the threshold because the predecessor was not running.
    PvWaitEarly,
    /// Sleeps of a queue head.
    PvWaitHead,
    /// Sleeps of a waiter that was not head.
    PvWaitNode,
    /// Acquisitions through the pending bit.
    LockPending,
    /// Acquisitions through the queue.
    LockSlowpath,
    /// Queue entries at the second nesting level of a CPU.
    LockUseNode2,
    /// Queue entries at the third nesting level.
    LockUseNode3,
    /// Queue entries at the fourth nesting level.
    LockUseNode4,
    /// All nodes of the CPU were in use: the lock was taken by spinning instead.
    LockNoNode,
    /// Waiters that left a spin queue.
    OsqUnqueue,
    /// Looks into a predecessor's node of a spin queue, for whose it is.
    OsqCpuRead,
    /// Such looks that found the line written to since the last one: it had to come from another CPU.
    OsqCpuReadWritten,
    /// Rounds of spinning on the owner of a sleeping lock.
    OwnerSpin,
    /// Such rounds while the owner was preempted, whether or not the lock was allowed to know.
    OwnerSpinPreempted,
    /// Mutexes taken by spinning.
    MutexOptLock,
    /// Spins for a mutex that were given up.
    MutexOptFail,
    /// Sleeps for a mutex.
    MutexSleep,
    /// Sleepers woken by the unlock of a mutex.
    MutexWake,
    /// Unlocks that named the first sleeper the next owner.
    MutexHandoff,
    /// Sleeps of readers.
    RwsemSleepReader,
    /// Sleeps of writers.
    RwsemSleepWriter,
    /// Sleeping readers that were given the lock.
    RwsemWakeReader,
    /// Sleeping writers that were woken to try again.
    RwsemWakeWriter,
    /// Write locks taken by spinning.
    RwsemOptLock,
    /// Spins for a write lock that were given up.
    RwsemOptFail,
    /// Spinning forbidden because readers keep the lock for too long.
    RwsemOptNospin,
    /// Read locks after a sleep.
    RwsemRlock,
    /// Read locks that overtook sleepers.
    RwsemRlockSteal,
    /// Read locks that were free after all when the list was reached.
    RwsemRlockFast,
    /// Locks promised to a sleeping reader that waited too long.
    RwsemRlockHandoff,
    /// Write locks through the list.
    RwsemWlock,
    /// Locks promised to a sleeping writer that waited too long.
    RwsemWlockHandoff,
    /// Sleeps for a futex mutex.
    FutexWait,
    /// Sleepers of a futex mutex that were woken.
    FutexWake,
    /// Kicks sent to sleepers of sleeping locks.
    SleepKick,
    /// Such kicks that could be matched to the return of a wait.
    SleepKickWake,
    /// Ticks spent inside such kicks.
    SleepLatencyKick,
    /// Ticks from such a kick to the return of the wait that it ended.
    SleepLatencyWake,
    /// Sections of others that began between asking for a lock and having it. Counted by the user of a lock.
    Overtaken,
    /// Most of them in one wait: not a sum, but a maximum. Counted by the user of a lock.
    OvertakenMost,
    /// Time on a CPU in spins of waiters that were not head, which ended with the threshold and a sleep. In ticks, as those that
    /// follow; only what was spun before a sleep counts.
    PvLatencySpinNode,
    /// Time on a CPU in spins of waiters that were not head, which ended early because the predecessor was not running.
    PvLatencySpinEarly,
    /// Time on a CPU in spins of queue heads before their first sleep.
    PvLatencySpinHead,
    /// Time on a CPU in spins of queue heads between two sleeps.
    PvLatencySpinAgain,
    /// Time from the beginning of a sleep to its return, after a spin that counts for [`Event::PvLatencySpinNode`].
    PvLatencyHaltNode,
    /// Time of a sleep after a spin that counts for [`Event::PvLatencySpinEarly`].
    PvLatencyHaltEarly,
    /// Time of a sleep after a spin that counts for [`Event::PvLatencySpinHead`].
    PvLatencyHaltHead,
    /// Time of a sleep after a spin that counts for [`Event::PvLatencySpinAgain`].
    PvLatencyHaltAgain,
    /// Acquisitions that failed because the lock did not become free in time.
    LockTimedOut,
    /// Waiters that failed so because the head of their queue gave up.
    LockDissolved,
    /// Acquisitions that failed because the CPU would have waited for itself, or might have.
    LockDeadlock,
}

impl Event {
    /// All events, in the order of their discriminants.
    pub const ALL: [Self; 59] = [
        Self::PvHashHops,
        Self::PvKickUnlock,
        Self::PvKickWake,
        Self::PvLatencyKick,
        Self::PvLatencyWake,
        Self::PvLockStealing,
        Self::PvSpuriousWakeup,
        Self::PvWaitAgain,
        Self::PvWaitEarly,
        Self::PvWaitHead,
        Self::PvWaitNode,
        Self::LockPending,
        Self::LockSlowpath,
        Self::LockUseNode2,
        Self::LockUseNode3,
        Self::LockUseNode4,
        Self::LockNoNode,
        Self::OsqUnqueue,
        Self::OsqCpuRead,
        Self::OsqCpuReadWritten,
        Self::OwnerSpin,
        Self::OwnerSpinPreempted,
        Self::MutexOptLock,
        Self::MutexOptFail,
        Self::MutexSleep,
        Self::MutexWake,
        Self::MutexHandoff,
        Self::RwsemSleepReader,
        Self::RwsemSleepWriter,
        Self::RwsemWakeReader,
        Self::RwsemWakeWriter,
        Self::RwsemOptLock,
        Self::RwsemOptFail,
        Self::RwsemOptNospin,
        Self::RwsemRlock,
        Self::RwsemRlockSteal,
        Self::RwsemRlockFast,
        Self::RwsemRlockHandoff,
        Self::RwsemWlock,
        Self::RwsemWlockHandoff,
        Self::FutexWait,
        Self::FutexWake,
        Self::SleepKick,
        Self::SleepKickWake,
        Self::SleepLatencyKick,
        Self::SleepLatencyWake,
        Self::Overtaken,
        Self::OvertakenMost,
        Self::PvLatencySpinNode,
        Self::PvLatencySpinEarly,
        Self::PvLatencySpinHead,
        Self::PvLatencySpinAgain,
        Self::PvLatencyHaltNode,
        Self::PvLatencyHaltEarly,
        Self::PvLatencyHaltHead,
        Self::PvLatencyHaltAgain,
        Self::LockTimedOut,
        Self::LockDissolved,
        Self::LockDeadlock,
    ];

    /// How many events there are. At most 64, so that a set of events fits a `u64`.
    pub const COUNT: usize = Self::ALL.len();

    /// The names, indexed like the counters.
    pub const NAMES: [&'static str; Self::COUNT] = {
        let mut names = [""; Self::COUNT];
        let mut i = 0;
        while i < Self::COUNT {
            names[i] = Self::ALL[i].name();
            i += 1;
        }
        names
    };

    /// The index of this event's counter.
    #[inline(always)]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Whether Linux counts this event, under this name (v6.19).
    pub const fn is_in_linux(self) -> bool {
        !matches!(
            self,
            Self::OsqUnqueue
                | Self::OsqCpuRead
                | Self::OsqCpuReadWritten
                | Self::OwnerSpin
                | Self::OwnerSpinPreempted
                | Self::MutexOptLock
                | Self::MutexOptFail
                | Self::MutexSleep
                | Self::MutexWake
                | Self::MutexHandoff
                | Self::FutexWait
                | Self::FutexWake
                | Self::SleepKick
                | Self::SleepKickWake
                | Self::SleepLatencyKick
                | Self::SleepLatencyWake
                | Self::Overtaken
                | Self::OvertakenMost
                | Self::PvLatencySpinNode
                | Self::PvLatencySpinEarly
                | Self::PvLatencySpinHead
                | Self::PvLatencySpinAgain
                | Self::PvLatencyHaltNode
                | Self::PvLatencyHaltEarly
                | Self::PvLatencyHaltHead
                | Self::PvLatencyHaltAgain
                | Self::LockTimedOut
                | Self::LockDissolved
                | Self::LockDeadlock
        )
    }

    /// The name under which Linux users know this event, or would if Linux had it.
    ///
    /// Long: it is one table.
    pub const fn name(self) -> &'static str {
        match self {
            Self::PvHashHops => "pv_hash_hops",
            Self::PvKickUnlock => "pv_kick_unlock",
            Self::PvKickWake => "pv_kick_wake",
            Self::PvLatencyKick => "pv_latency_kick",
            Self::PvLatencyWake => "pv_latency_wake",
            Self::PvLockStealing => "pv_lock_stealing",
            Self::PvSpuriousWakeup => "pv_spurious_wakeup",
            Self::PvWaitAgain => "pv_wait_again",
            Self::PvWaitEarly => "pv_wait_early",
            Self::PvWaitHead => "pv_wait_head",
            Self::PvWaitNode => "pv_wait_node",
            Self::LockPending => "lock_pending",
            Self::LockSlowpath => "lock_slowpath",
            Self::LockUseNode2 => "lock_use_node2",
            Self::LockUseNode3 => "lock_use_node3",
            Self::LockUseNode4 => "lock_use_node4",
            Self::LockNoNode => "lock_no_node",
            Self::OsqUnqueue => "osq_unqueue",
            Self::OsqCpuRead => "osq_cpu_read",
            Self::OsqCpuReadWritten => "osq_cpu_read_written",
            Self::OwnerSpin => "owner_spin",
            Self::OwnerSpinPreempted => "owner_spin_preempted",
            Self::MutexOptLock => "mutex_opt_lock",
            Self::MutexOptFail => "mutex_opt_fail",
            Self::MutexSleep => "mutex_sleep",
            Self::MutexWake => "mutex_wake",
            Self::MutexHandoff => "mutex_handoff",
            Self::RwsemSleepReader => "rwsem_sleep_reader",
            Self::RwsemSleepWriter => "rwsem_sleep_writer",
            Self::RwsemWakeReader => "rwsem_wake_reader",
            Self::RwsemWakeWriter => "rwsem_wake_writer",
            Self::RwsemOptLock => "rwsem_opt_lock",
            Self::RwsemOptFail => "rwsem_opt_fail",
            Self::RwsemOptNospin => "rwsem_opt_nospin",
            Self::RwsemRlock => "rwsem_rlock",
            Self::RwsemRlockSteal => "rwsem_rlock_steal",
            Self::RwsemRlockFast => "rwsem_rlock_fast",
            Self::RwsemRlockHandoff => "rwsem_rlock_handoff",
            Self::RwsemWlock => "rwsem_wlock",
            Self::RwsemWlockHandoff => "rwsem_wlock_handoff",
            Self::FutexWait => "futex_wait",
            Self::FutexWake => "futex_wake",
            Self::SleepKick => "sleep_kick",
            Self::SleepKickWake => "sleep_kick_wake",
            Self::SleepLatencyKick => "sleep_latency_kick",
            Self::SleepLatencyWake => "sleep_latency_wake",
            Self::Overtaken => "overtaken",
            Self::OvertakenMost => "overtaken_most",
            Self::PvLatencySpinNode => "pv_latency_spin_node",
            Self::PvLatencySpinEarly => "pv_latency_spin_early",
            Self::PvLatencySpinHead => "pv_latency_spin_head",
            Self::PvLatencySpinAgain => "pv_latency_spin_again",
            Self::PvLatencyHaltNode => "pv_latency_halt_node",
            Self::PvLatencyHaltEarly => "pv_latency_halt_early",
            Self::PvLatencyHaltHead => "pv_latency_halt_head",
            Self::PvLatencyHaltAgain => "pv_latency_halt_again",
            Self::LockTimedOut => "lock_timed_out",
            Self::LockDissolved => "lock_dissolved",
            Self::LockDeadlock => "lock_deadlock",
        }
    }
}

const _: () = {
    assert!(Event::COUNT <= 64);
    let mut i = 0;
    while i < Event::COUNT {
        assert!(Event::ALL[i].index() == i, "ALL is in the order of the discriminants");
        i += 1;
    }
};

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

/// A place where a test, or a hypervisor, may deschedule the CPU; see
/// [`Platform::point`](crate::Platform::point).
///
/// Each names the race that it makes likely; see [`races`](crate::races).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Point {
    /// A node is claimed and not yet initialised. T6: an interrupt here must not claim the same node.
    NodeClaimed,
    /// The tail names this node, and the predecessor does not know yet. T5: everything a predecessor may
    /// touch must be initialised by now.
    TailPublished,
    /// The pending bit is set and the owner has not left. T7: newcomers must not wait for this CPU without
    /// bound.
    PendingSet,
    /// A waiter has published HALTED and not yet looked at its handoff flag. T1: one of the two sides
    /// must see the other.
    HaltedPublished,
    /// The next node has been made head, and its state has not been looked at. T1, and T2: the new head may
    /// already have registered itself.
    HandedOver,
    /// The next node was asleep and has been marked HASHED, and neither the lock word nor the table say so
    /// yet. Its CPU may wake by itself, and must not register.
    SuccessorHashed,
    /// The head spins with the pending bit set, which forbids stealing. The one state that does not heal by
    /// itself when the head is descheduled (D2).
    HeadSpinning,
    /// The head has registered in the hash table, and the lock word does not say so yet. T3.
    HeadHashed,
    /// An unlock has found the lock word SLOW and not yet searched the table. T3: it must find the entry.
    SlowSeen,
    /// A slow unlock has taken the entry out of the table, and the lock is still held.
    EntryRemoved,
    /// A slow unlock has released the lock, and the head is not kicked. T4: the lock's memory may be gone.
    SlowReleased,
    /// A waiter is about to enter [`wait`](crate::Platform::wait). T11: a kick from here on must not be lost, nor be taken
    /// by an interrupt that waits itself (T10).
    BeforeSleep,
    /// A waiter has taken itself out of its predecessor's link and is still in its successor's (the spin queue's A).
    /// O2: that one must wait for it to be out of the way.
    Unlinked,
    /// The first in the queue of a fair reader-writer lock has announced that it is a writer. T17: later arrivals must
    /// not get ahead of it.
    WriterWaits,
    /// A reader has filled its CPU's slot, or added itself to the lock's readers, and not yet looked for a writer. One of the
    /// two must see the other; and while there is a writer, such a reader stands in its way.
    ReaderAnnounced,
    /// A lock is in the CPU's table of held locks, and not yet asked for. RQ2: an NMI must find it there.
    EntryMade,
    /// A lock is released, and still in the CPU's table of held locks. RQ2.
    EntryStays,
}

impl Point {
    /// All points, in the order of their discriminants.
    pub const ALL: [Self; 17] = [
        Self::NodeClaimed,
        Self::TailPublished,
        Self::PendingSet,
        Self::HaltedPublished,
        Self::HandedOver,
        Self::SuccessorHashed,
        Self::HeadSpinning,
        Self::HeadHashed,
        Self::SlowSeen,
        Self::EntryRemoved,
        Self::SlowReleased,
        Self::BeforeSleep,
        Self::Unlinked,
        Self::WriterWaits,
        Self::ReaderAnnounced,
        Self::EntryMade,
        Self::EntryStays,
    ];

    /// The name by which an experiment file refers to this point.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NodeClaimed => "node-claimed",
            Self::TailPublished => "tail-published",
            Self::PendingSet => "pending-set",
            Self::HaltedPublished => "halted-published",
            Self::HandedOver => "handed-over",
            Self::SuccessorHashed => "successor-hashed",
            Self::HeadSpinning => "head-spinning",
            Self::HeadHashed => "head-hashed",
            Self::SlowSeen => "slow-seen",
            Self::EntryRemoved => "entry-removed",
            Self::SlowReleased => "slow-released",
            Self::BeforeSleep => "before-sleep",
            Self::Unlinked => "unlinked",
            Self::WriterWaits => "writer-waits",
            Self::ReaderAnnounced => "reader-announced",
            Self::EntryMade => "entry-made",
            Self::EntryStays => "entry-stays",
        }
    }

    /// Activity of a CPU that passes this point; `None` if it depends on how the CPU came there.
    ///
    /// Between owning the lock and returning from `lock`, or between releasing it and returning from `unlock`, this is
    /// more than what has been [announced](crate::Platform::announce).
    pub const fn activity(self) -> Option<Activity> {
        Some(match self {
            Self::NodeClaimed
            | Self::TailPublished
            | Self::HaltedPublished
            | Self::Unlinked
            | Self::ReaderAnnounced
            | Self::EntryMade => Activity::Waiter,
            Self::PendingSet | Self::HeadSpinning | Self::HeadHashed | Self::WriterWaits => Activity::Head,
            Self::HandedOver | Self::SuccessorHashed | Self::SlowSeen | Self::EntryRemoved => {
                Activity::Holder
            }
            Self::SlowReleased | Self::EntryStays => Activity::Other,
            Self::BeforeSleep => return None,
        })
    }

    /// One line for people who choose a point.
    pub const fn summary(self) -> &'static str {
        match self {
            Self::NodeClaimed => "a node is claimed and not yet initialised (T6)",
            Self::TailPublished => "the tail names the node, the predecessor does not know it yet (T5)",
            Self::PendingSet => "the pending bit is held while the owner has not left (T7)",
            Self::HaltedPublished => {
                "a waiter has published HALTED and not yet looked whether it is head (T1)"
            }
            Self::HandedOver => "the next node is head, and its state has not been looked at (T1, T2)",
            Self::SuccessorHashed => {
                "the sleeping next head is HASHED, and not yet in the table nor the word SLOW"
            }
            Self::HeadSpinning => "the head spins with the pending bit set, which forbids stealing (D2)",
            Self::HeadHashed => "the head is in the table, and the word is not yet SLOW (T3)",
            Self::SlowSeen => "an unlock has found SLOW and not yet searched the table (T3)",
            Self::EntryRemoved => "a slow unlock has taken the entry out, and still holds the lock",
            Self::SlowReleased => "a slow unlock has released the lock, and not yet kicked the head (T4)",
            Self::BeforeSleep => "a waiter is about to halt (T11)",
            Self::Unlinked => "a waiter that gives up is out of its predecessor's link only (O2)",
            Self::WriterWaits => "the first in the queue has announced that it is a writer (T17)",
            Self::ReaderAnnounced => "a reader has announced itself and not yet looked for a writer",
            Self::EntryMade => "a lock is in the table of held locks, and not yet asked for (RQ2)",
            Self::EntryStays => "a lock is released, and still in the table of held locks (RQ2)",
        }
    }
}
