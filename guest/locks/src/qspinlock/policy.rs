//! The paravirtual locks, and in what they differ.

use super::mode::sealed;

/// Differences between the paravirtual locks of different years.
pub trait Policy: sealed::Sealed + 'static {
    /// Newcomers may take a free lock past the queue while its head does not spin.
    const STEALING: bool;

    /// A waiter sleeps at once if its predecessor does.
    const WAIT_EARLY: bool;

    /// Newcomers and woken heads spin for the threshold at most: rules 1 and 2 of [`WorkConserving`].
    const BOUNDED: bool;

    /// Rules 3 to 5 of [`WorkConserving`].
    const WORK_CONSERVING: bool;
}

/// Today's paravirtual lock: queued, but stealing is allowed while the head of the queue sleeps.
#[derive(Debug)]
pub enum Pv {}

impl sealed::Sealed for Pv {}

impl Policy for Pv {
    const STEALING: bool = true;
    const WAIT_EARLY: bool = true;
    const BOUNDED: bool = false;
    const WORK_CONSERVING: bool = false;
}

/// Today's lock without what keeps a physical CPU from working, or makes it work for the lock alone.
///
/// Two spins of today's lock have no bound while the owner is not running. Here they end with the threshold.
/// 1. A newcomer that finds the lock held and the head asleep waits for something to steal, for as long as
///    that takes. While the owner is preempted, every CPU that comes by spends its whole slice there.
/// 2. A head registers once. When it has been woken and a thief was faster, its next sleeps end at once,
///    because the locked byte is not SLOW; it spends its slices on spinning behind that thief, who may be
///    preempted. Here a head may register again once the unlocker has told it, through its node, that its
///    entry is out of the table; that its byte is not SLOW proves nothing, for the owner that registers a
///    sleeping successor publishes HASHED first and marks the byte later (K1, K2).
///
/// Three things it knows from a host that tells, and does without where the host does not:
/// 3. It does not ask for the lock when the slice is about to end ([`Platform::slice_ends_soon`](crate::Platform::slice_ends_soon)), so that
///    owners are hardly ever preempted (I-Spinlock: Teabe et al., EuroSys 2017); unless the CPU holds another lock
///    ([`Platform::is_in_section`](crate::Platform::is_in_section)), whose owner would be the one to lose its CPU.
/// 4. No CPU sleeps unless a vCPU waits for a physical CPU
///    ([`Platform::is_overcommitted`](crate::Platform::is_overcommitted)): to spin costs
///    nothing then, to sleep costs two exits.
/// 5. The head is courteous to an owner that wants the lock back at once; see `courtesy.rs`. Fewer changes of
///    owner are fewer kicks (concurrency restriction: Dice, "Malthusian Locks", EuroSys 2017).
#[derive(Debug)]
pub enum WorkConserving {}

impl sealed::Sealed for WorkConserving {}

impl Policy for WorkConserving {
    const STEALING: bool = true;
    const WAIT_EARLY: bool = true;
    const BOUNDED: bool = true;
    const WORK_CONSERVING: bool = true;
}

/// [`WorkConserving`] with its first two rules alone: every spin is bounded, and nothing is asked of the host.
#[derive(Debug)]
pub enum Bounded {}

impl sealed::Sealed for Bounded {}

impl Policy for Bounded {
    const STEALING: bool = true;
    const WAIT_EARLY: bool = true;
    const BOUNDED: bool = true;
    const WORK_CONSERVING: bool = false;
}

/// The paravirtual lock as first posted in its sixteenth version, in 2015: strictly first come, first served.
#[derive(Debug)]
pub enum V16 {}

impl sealed::Sealed for V16 {}

impl Policy for V16 {
    const STEALING: bool = false;
    const WAIT_EARLY: bool = false;
    const BOUNDED: bool = false;
    const WORK_CONSERVING: bool = false;
}
