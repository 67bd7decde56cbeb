//! Services that a lock needs from the machine.
//!
//! A kernel implements [`Platform`] once. The methods keep the names that kernel people use for them:
//! `wait` is `pv_wait`, `kick` is `pv_kick`, `is_preempted` is `vcpu_is_preempted`. Every call is statically
//! dispatched, so a method with an empty body costs nothing.

use super::{Activity, Event, Point};

/// The CPU, its clock and its hypervisor, as seen by a lock.
///
/// # What the locks rely on
///
/// Exclusion rests on one promise only: [`cpu`](Platform::cpu) names the calling CPU, and the caller is not
/// moved to another CPU between entering `lock` and leaving it (nor, for locks whose token is not `()`,
/// before `unlock` returns), and no other task runs there meanwhile. Progress rests on a second one: [`wait`](Platform::wait) and
/// [`kick`](Platform::kick) never lose a kick. Everything else is a hint or a measurement.
pub trait Platform: Sync {
    /// Index of the calling CPU, below the `CPUS` of every domain that this platform serves.
    fn cpu(&self) -> usize;

    /// One round of a spin loop: the CPU's pause instruction, or a scheduling point of a model checker.
    fn pause(&self);

    /// Monotonic ticks, in the unit of [`spin_threshold`](Platform::spin_threshold).
    fn now(&self) -> u64;

    /// How many ticks the calling CPU has been off its physical CPU, as far as the host says. For statistics alone.
    #[inline(always)]
    fn off_ticks(&self) -> u64 {
        0
    }

    /// How many ticks a paravirtual waiter spins before it sleeps.
    fn spin_threshold(&self) -> u64;

    /// How many rounds it spins instead, each with one [`pause`](Platform::pause); 0: it goes by the clock.
    ///
    /// For comparisons with locks that count, as those of Linux do (2^15 rounds). What is no such spin, a tenure of
    /// `qspinlock-wc` for one, goes by [`spin_threshold`](Platform::spin_threshold) all the same.
    #[inline(always)]
    fn spin_rounds(&self) -> u32 {
        0
    }

    /// How many ticks the head of a queue waits for a lock that can fail (`RqSpinLock`).
    ///
    /// The default is that of Linux: two sections of at most 250 ms each.
    #[inline(always)]
    fn lock_limit(&self) -> u64 {
        self.ticks(500_000_000)
    }

    /// Whether the calling CPU serves a non-maskable interrupt.
    #[inline(always)]
    fn is_in_nmi(&self) -> bool {
        false
    }

    /// `pv_wait`: may put the calling CPU to sleep while `still()` holds.
    ///
    /// Checks `still()` itself before it sleeps, and may return for no reason at all; the caller always looks
    /// again. A [`kick`](Platform::kick) of this CPU that follows that check, or precedes it unconsumed, must
    /// end the sleep or prevent it. With interrupts, the check and the halt must be one step: see case T11 at
    /// [`Point::BeforeSleep`].
    ///
    /// In a non-maskable interrupt it must return at once without looking at the latch; the waiter spins then. An NMI
    /// may have come between the check and the halt of the interrupted wait. If the NMI slept and consumed the one
    /// kick, the interrupted wait would sleep forever (T10). An interrupt could not end the NMI's own sleep either, for
    /// interrupts are off. Other interrupts may sleep, with interrupts off as they found them (T11), if a kick wakes a
    /// CPU in that state (T12).
    fn wait(&self, still: impl Fn() -> bool);

    /// `pv_kick`: ends the sleep of `cpu`; latched for its next [`wait`](Platform::wait) if it does not
    /// sleep.
    fn kick(&self, cpu: usize);

    /// `vcpu_is_preempted`: whether the host has probably taken `cpu` off its physical CPU.
    ///
    /// May be stale in both directions; no lock here depends on it for more than speed.
    fn is_preempted(&self, cpu: usize) -> bool;

    /// Answer that [`is_preempted`](Platform::is_preempted) would give if the lock were allowed to use it. For
    /// statistics alone.
    ///
    /// Only of use where the hint can be switched off and its absence is to be counted.
    #[inline(always)]
    fn is_preempted_for_the_record(&self, cpu: usize) -> bool {
        self.is_preempted(cpu)
    }

    /// How many [ticks](Platform::now) `nanoseconds` are.
    fn ticks(&self, nanoseconds: u64) -> u64;

    /// Whether a vCPU waits for a physical CPU, so that a spinning CPU is in its way. True if unknown.
    #[inline(always)]
    fn is_overcommitted(&self) -> bool {
        true
    }

    /// Gives the rest of the slice to `cpu`, or to a CPU of the host's choice.
    fn yield_to(&self, cpu: Option<usize>);

    /// Whether the calling CPU is in a critical section already: holds another lock, or serves an interrupt. True if unknown.
    ///
    /// A lock that gives up slices does not do so then, for it would make what it is there to prevent, a holder that does not
    /// run.
    #[inline(always)]
    fn is_in_section(&self) -> bool {
        true
    }

    /// The user of a lock has acquired it: one more section that the calling CPU is in.
    ///
    /// Counted by the user, for a lock whose unlock is one store cannot count. Sections nest, and may end in any order.
    #[inline(always)]
    fn section_entered(&self) {}

    /// The user of a lock has released it: one section less.
    #[inline(always)]
    fn section_left(&self) {}

    /// Ticks until the host takes the calling CPU away, as far as it says; `u64::MAX`: it does not say.
    #[inline(always)]
    fn slice_left(&self) -> u64 {
        u64::MAX
    }

    /// How many ticks must be left of a slice for a section to be worth entering.
    #[inline(always)]
    fn slice_margin(&self) -> u64 {
        0
    }

    /// Whether the host is about to take the calling CPU away for another one: too soon for a critical section.
    ///
    /// A lock that looks gives up the rest of the slice instead of losing it with the lock in its hands.
    #[inline(always)]
    fn slice_ends_soon(&self) -> bool {
        let margin = self.slice_margin();
        // The clock last: to read it costs more than an uncontended lock.
        margin != 0 && self.is_overcommitted() && self.slice_left() < margin
    }

    /// Adds `n` to the calling CPU's counter for `event`.
    fn count(&self, event: Event, n: u64);

    /// Tells the host what the calling CPU is doing: a store to shared memory, if anything.
    ///
    /// Locks announce [`Activity::Waiter`] and [`Activity::Head`] from their slow paths, and [`Activity::Other`] when they
    /// have released and are about to kick. They know of one lock; a platform that counts sections tells the host what
    /// comes of both, see [`Activity::among`].
    #[inline(always)]
    fn announce(&self, activity: Activity) {
        _ = activity;
    }

    /// A named place inside a slow path where a test may take the CPU away.
    ///
    /// The default is empty and inlined, so that a measured lock contains nothing of it.
    #[inline(always)]
    fn point(&self, point: Point) {
        _ = point;
    }
}

/// Location of the queue nodes of a domain. Sizes and offsets are in bytes.
///
/// A link names a node of another CPU by a code: (CPU + 1) * `nodes_per_cpu` + its place among them.
///
/// For observers outside the kernel such as a debugger or a hypervisor.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Queues {
    /// Address of CPU 0's first node.
    pub nodes: usize,
    /// From one CPU's nodes, and from one CPU's `in_use`, to the next one's.
    pub cpu_bytes: usize,
    /// From one node of a CPU to its next.
    pub node_bytes: usize,
    /// Nodes of each CPU.
    pub nodes_per_cpu: usize,
    /// Address of CPU 0's word that says which are in use: how many, or for locks that are released in any order, a
    /// mask.
    pub in_use: usize,
    /// Offset of the successor's code in a node.
    pub next: usize,
    /// Offset of the byte in a node that is not 0 once the node is first in its queue.
    pub locked: usize,
    /// Address of the domain's table, 0: it has none.
    pub table: usize,
    /// How many entries it has.
    pub table_entries: usize,
}

impl Queues {
    /// Queues of `nodes` whose links are fields at the offsets `next` and `locked`. All are those of the first CPU.
    pub(crate) fn of<C, N, U>(_: &C, nodes: &[N], in_use: &U, next: usize, locked: usize) -> Self {
        Self {
            nodes: nodes.as_ptr().addr(),
            cpu_bytes: size_of::<C>(),
            node_bytes: size_of::<N>(),
            nodes_per_cpu: nodes.len(),
            in_use: core::ptr::from_ref(in_use).addr(),
            next,
            locked,
            ..Self::default()
        }
    }
}
