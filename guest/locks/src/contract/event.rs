//! Lock events: what the slow paths count. Those that Linux counts, too, have the names that Linux uses
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
