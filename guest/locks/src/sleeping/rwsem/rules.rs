//! Overtaking rules of a [`RwSem`](super::RwSem): what changed in Linux between 2018 and today.
//!
//! | | [`Rules2018`] (up to 5.2) | [`RulesToday`] (5.11 and later) |
//! |---|---|---|
//! | a reader, while others sleep | sleeps, even if others read | takes what is read or free, unless readers crowd it |
//! | a reader that finds the list empty | lists itself, and is let in if readers own the lock | looks once more |
//! | a writer, while readers own it | sleeps at once | spins for 10 to 25 us |
//! | a writer in the list | takes a free lock, first or not | takes it if it is the first |
//! | a CPU that has slept for 4 ms | may be overtaken forever | is the next owner |
//! | readers are let in | up to the first writer in the list, however many | past writers, 256 at a time |
//!
//! Two things are today's under either. A writer takes the lock by one exchange, where that of 2018 added its share and
//! took it back, so that others' attempts failed meanwhile; what 2018 did about readers who had failed so (the next
//! writer that listed itself let them in) is not needed then. And an unlock takes the list's lock, where that of 2018
//! left the waking to a spinner if the list's lock was busy.

/// Rules of a [`RwSem`](super::RwSem) in which Linux versions differ.
pub trait RwSemRules: Send + Sync + 'static {
    /// Whether readers overtake sleepers, where that crowds no other CPU out.
    const READERS_STEAL: bool;
    /// Writers spin for a while although readers own the lock.
    const WRITERS_SPIN_ON_READERS: bool;
    /// Whether a CPU that has slept for long is promised the lock. Without it any writer of the list takes the lock
    /// when it is free.
    const PROMISES: bool;
    /// Readers are let in past the writers in the list; else up to the first of those.
    const READERS_PASS_WRITERS: bool;
    /// Most readers that are let in at a time.
    const BATCH: u32;
}

/// Rules of current Linux.
#[derive(Debug)]
pub enum RulesToday {}

/// Rules of Linux 4.16, of spring 2018.
#[derive(Debug)]
pub enum Rules2018 {}

impl RwSemRules for RulesToday {
    const READERS_STEAL: bool = true;
    const WRITERS_SPIN_ON_READERS: bool = true;
    const PROMISES: bool = true;
    const READERS_PASS_WRITERS: bool = true;
    const BATCH: u32 = 256;
}

impl RwSemRules for Rules2018 {
    const READERS_STEAL: bool = false;
    const WRITERS_SPIN_ON_READERS: bool = false;
    const PROMISES: bool = false;
    const READERS_PASS_WRITERS: bool = false;
    const BATCH: u32 = u32::MAX;
}
