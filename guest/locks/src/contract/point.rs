//! Named places inside the slow paths where losing the CPU is most likely to hurt.

use super::Activity;

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
