//! Optimistic spin queue: an MCS queue that a waiter can leave.
//!
//! In a sleeping lock, CPUs that hope to get it soon spin in this queue, one behind the other, and its head alone looks
//! at the lock. A CPU that finds that hope gone leaves the queue and sleeps.
//!
//! ```text
//! tail ------------------------------+        a node: next    the CPU behind, 0 if none is known
//!                                    v                prev    who is in front
//! [head] --next--> [waiter] --next--> [last]          locked  1 when its CPU is head
//!        <--prev--         <--prev--                  cpu     whose node it is
//! ```
//!
//! There is one node for each CPU and no nesting: a CPU queues in task context, with preemption by other tasks off. A
//! node is named by the number CPU + 1, in which 0 is no CPU.
//!
//! # Leaving
//!
//! ```text
//! A  take myself out of prev.next       from here on prev can neither hand over nor leave: it waits for C
//! B  take node.next, or, if I am last,  from here on next can neither hand over nor leave
//!    swap tail back to prev
//! C  next.prev := prev; prev.next := next
//! ```
//!
//! A can fail for two reasons. The predecessor has handed over: then I am head after all. Or it is leaving itself and
//! has got to B: then C gives me another predecessor, with which I try again. `next` is always taken by a
//! compare-exchange, also by `unlock`: the CPU that gets the link out of a node has both ends of it to itself.
//!
//! - O1: the swap of `tail` publishes the node. Otherwise a successor's link may be overwritten by the late
//!   initialisation of `next`, and the queue is never handed on.
//! - O2: `prev` is set before the link that lets the predecessor change it. Otherwise the predecessor's C may be
//!   overwritten, and I wait for, and write to, a node that has left.
//!
//! # The four layouts
//!
//! A waiter whose predecessor's vCPU has been preempted has nothing to hope for. To look, it must know whose
//! node the predecessor's is, and where that is written is all that the [layouts](Layout) differ in:
//!
//! | layout | where a waiter finds it, each round | stores on an uncontended `lock` |
//! |---|---|---|
//! | [`Packed`] | `cpu` in the predecessor's node, on the line that its neighbours write to | next, locked, cpu |
//! | [`Split`] | `cpu` on a line of its own, written once | next, locked |
//! | [`Cached`] | a local copy, read again when `prev` changes | next, locked, cpu |
//! | [`PrevCpu`] | `prev` in its own node says it | none |
//!
//! Links are numbers here, from which the CPU follows; in a kernel they are addresses. The first three layouts
//! read the number from the predecessor's node all the same, as a kernel has to.

use core::marker::PhantomData;

use crate::{
    contract::{Event, Platform, Point, sealed},
    faults::mutant::mutant,
    memory::{AtomicU32, Ordering::*, array, const_unless_loom, fresh},
};

/// Layout of a node: where it names its CPU.
pub trait Layout: sealed::Sealed + Send + Sync + Sized + 'static {
    #[doc(hidden)]
    const KIND: Kind;
}

/// Declares the layouts, and the enum of them that code asks.
macro_rules! layouts {
    ($($(#[$documentation:meta])* $layout:ident)+) => {
        #[doc(hidden)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Kind {
            $($layout,)+
        }

        $($(#[$documentation])*
        #[derive(Debug)]
        pub enum $layout {}

        impl sealed::Sealed for $layout {}

        impl Layout for $layout {
            const KIND: Kind = Kind::$layout;
        })+
    };
}

layouts! {
    /// One line for a node; every waiter polls the line that its predecessor's neighbours write to.
    Packed
    /// `cpu` on a line of its own.
    Split
    /// As packed, but a waiter keeps what it has read.
    Cached
    /// A node says who is in front of it, not whose it is.
    PrevCpu
}

/// An optimistic spin queue.
#[derive(Debug)]
pub struct Osq<L> {
    /// 0: the queue is empty. Otherwise the number of the last node in the queue.
    tail: AtomicU32,
    layout: PhantomData<L>,
}

/// The nodes of all CPUs, which all queues of one kernel share.
#[derive(Debug)]
pub struct OsqNodes<L, const CPUS: usize> {
    nodes: [Node; CPUS],
    layout: PhantomData<L>,
}

/// Two lines, of which only [`Split`] uses the second.
#[derive(Debug)]
#[repr(C, align(128))]
struct Node {
    links: Links,
    apart: Apart,
}

#[derive(Debug)]
#[repr(C, align(64))]
struct Links {
    /// Number of the successor, 0 while none is known. Written by the successor, and by a predecessor of it that
    /// leaves.
    next: AtomicU32,
    /// Number of the predecessor. Written by the node's own CPU, and by a predecessor that leaves.
    prev: AtomicU32,
    /// 1 once this node's CPU is head. Written by the predecessor.
    locked: AtomicU32,
    /// Number of the node.
    cpu: AtomicU32,
}

#[derive(Debug)]
#[repr(C, align(64))]
struct Apart {
    /// Number of the node.
    cpu: AtomicU32,
}

fresh!(Node {
    links: Links {
        next: AtomicU32::new(0),
        prev: AtomicU32::new(0),
        locked: AtomicU32::new(0),
        cpu: AtomicU32::new(0),
    },
    apart: Apart { cpu: AtomicU32::new(0) },
});

impl<L, const CPUS: usize> OsqNodes<L, CPUS> {
    const_unless_loom! {
        /// The nodes of `CPUS` CPUs, none of which queues.
        pub const fn new() -> Self {
            const { assert!(CPUS >= 1 && CPUS < u32::MAX as usize) };
            Self { nodes: array![Node::new(); CPUS], layout: PhantomData }
        }
    }

    fn links(&self, number: u32) -> &Links {
        &self.nodes[number as usize - 1].links
    }
}

/// State that a waiter keeps of its predecessor.
struct Watch {
    /// The predecessor's number.
    prev: u32,
    /// The CPU of that node, plus one, as last read.
    cpu: u32,
    /// The line that `cpu` was read from, as last seen.
    line: [u32; 4],
    reads: u64,
    fetched: u64,
}

fresh!(pub Osq<L: Layout> { tail: AtomicU32::new(0), layout: PhantomData });

impl<L: Layout> Osq<L> {
    /// Whether anybody queues, the head included. A hint.
    pub fn is_occupied(&self) -> bool {
        // Relaxed: a hint.
        self.tail.load(Relaxed) != 0
    }

    /// Queues until the calling CPU is head: `true`. Leaves the queue when the predecessor's vCPU is preempted, or
    /// when `give_up` says so: `false`.
    #[inline]
    pub fn lock<P: Platform, const CPUS: usize>(
        &self,
        nodes: &OsqNodes<L, CPUS>,
        platform: &P,
        give_up: impl Fn() -> bool,
    ) -> bool {
        let me = platform.cpu() as u32 + 1;
        prepare(nodes, me, L::KIND);
        // O1. Release: publishes the node. Acquire: pairs with the release that emptied the queue, or that
        // published the predecessor's node.
        let prev = self.tail.swap(me, mutant!("o1-relaxed-tail": AcqRel => Acquire));
        prev == 0 || self.wait(nodes, platform, me, prev, give_up)
    }

    /// Leaves as head: the next in the queue becomes head, if there is one.
    #[inline]
    pub fn unlock<P: Platform, const CPUS: usize>(&self, nodes: &OsqNodes<L, CPUS>, platform: &P) {
        let me = platform.cpu() as u32 + 1;
        // Release: pairs with the swap of the next to come. Relaxed: the exchange below reads on.
        if self.tail.compare_exchange(me, 0, Release, Relaxed).is_err() {
            self.hand_over(nodes, platform, me);
        }
    }

    #[cold]
    #[inline(never)]
    fn hand_over<P: Platform, const CPUS: usize>(&self, nodes: &OsqNodes<L, CPUS>, platform: &P, me: u32) {
        if let Some(next) = self.await_next(nodes, platform, me, 0) {
            // Release: pairs with the waits in `wait` and A.
            nodes.links(next).locked.store(1, mutant!("osq-relaxed-hand-over": Release => Relaxed));
        }
    }

    #[cold]
    #[inline(never)]
    fn wait<P: Platform, const CPUS: usize>(
        &self,
        nodes: &OsqNodes<L, CPUS>,
        platform: &P,
        me: u32,
        prev: u32,
        give_up: impl Fn() -> bool,
    ) -> bool {
        let links = nodes.links(me);
        platform.point(Point::TailPublished);
        if L::KIND == Kind::PrevCpu {
            // Relaxed: published by the link below.
            links.locked.store(0, Relaxed);
        }
        // O2. Relaxed: published by the link below.
        links.prev.store(prev, Relaxed);
        // Release: pairs with the exchanges that take the link.
        nodes.links(prev).next.store(me, mutant!("o2-relaxed-link": Release => Relaxed));

        let mut watch = Watch::new(prev);
        loop {
            // Acquire: pairs with `hand_over`.
            if links.locked.load(Acquire) != 0 {
                watch.report(platform);
                return true;
            }
            if platform.is_preempted(watch.cpu(nodes, me) as usize - 1) || give_up() {
                break;
            }
            platform.pause();
        }
        watch.report(platform);
        self.leave(nodes, platform, me)
    }

    /// A to C. `true` if it is too late: this CPU has become head.
    fn leave<P: Platform, const CPUS: usize>(
        &self,
        nodes: &OsqNodes<L, CPUS>,
        platform: &P,
        me: u32,
    ) -> bool {
        let links = nodes.links(me);
        // A. Acquire: pairs with the release in C of the CPU that was in between. What it knows of the new
        // predecessor, this CPU then knows too.
        let mut prev = links.prev.load(Acquire);
        // Relaxed, both: taking one's own number out of a link passes nothing on. B or C releases to the CPU that takes
        // its place.
        while nodes.links(prev).next.load(Relaxed) != me
            || nodes.links(prev).next.compare_exchange(me, 0, Relaxed, Relaxed).is_err()
        {
            // Acquire: pairs with `hand_over`.
            if links.locked.load(Acquire) != 0 {
                return true;
            }
            platform.pause();
            // Acquire: as above.
            prev = links.prev.load(Acquire);
        }
        platform.point(Point::Unlinked);
        platform.count(Event::OsqUnqueue, 1);

        // B
        if let Some(next) = self.await_next(nodes, platform, me, prev) {
            // C. Release: pairs with the acquires of `prev`, in A and in `Watch::cpu`.
            nodes.links(next).prev.store(prev, Release);
            // Release: pairs with the exchanges that take the link: the CPU that takes it may write to `next`.
            nodes.links(prev).next.store(next, mutant!("osq-relaxed-relink": Release => Relaxed));
        }
        false
    }

    /// Takes the link to the successor; or, if there is none, makes `before` the last of the queue.
    fn await_next<P: Platform, const CPUS: usize>(
        &self,
        nodes: &OsqNodes<L, CPUS>,
        platform: &P,
        me: u32,
        before: u32,
    ) -> Option<u32> {
        let link = &nodes.links(me).next;
        loop {
            // Relaxed: the exchange validates the value. Acquire: pairs with the link in `wait` or in C.
            let next = link.load(Relaxed);
            let mine = || mutant!("osq-copy-the-link": link.compare_exchange(next, 0, Acquire, Relaxed).is_ok() => true);
            if next != 0 && mine() {
                return Some(next);
            }
            // Release: A comes before the link of the next to swap `tail`. Acquire: what the swap of a node that
            // has left again published. Relaxed load: a hint, and spares the line.
            if self.tail.load(Relaxed) == me
                && self.tail.compare_exchange(me, before, AcqRel, Relaxed).is_ok()
            {
                return None;
            }
            platform.pause();
        }
    }
}

/// Initialises the node of `lock` before other CPUs can see it.
#[inline(always)]
fn prepare<L, const CPUS: usize>(nodes: &OsqNodes<L, CPUS>, me: u32, kind: Kind) {
    let node = &nodes.nodes[me as usize - 1];
    // Relaxed, all: published by the swap of `tail`.
    if kind != Kind::PrevCpu {
        node.links.next.store(0, Relaxed);
        node.links.locked.store(0, Relaxed);
    }
    match kind {
        Kind::Packed | Kind::Cached => node.links.cpu.store(me, Relaxed),
        Kind::Split if node.apart.cpu.load(Relaxed) != me => node.apart.cpu.store(me, Relaxed),
        Kind::Split | Kind::PrevCpu => {}
    }
}

impl Watch {
    fn new(prev: u32) -> Self {
        Self { prev, cpu: 0, line: [0; 4], reads: 0, fetched: 0 }
    }

    /// The number of the node in front of `me`, found in the way of the layout.
    #[inline]
    fn cpu<L: Layout, const CPUS: usize>(&mut self, nodes: &OsqNodes<L, CPUS>, me: u32) -> u32 {
        // Acquire: pairs with C. The new predecessor's `cpu` is then known, too.
        let prev = nodes.links(me).prev.load(Acquire);
        if L::KIND == Kind::PrevCpu {
            return prev;
        }
        let same = prev == self.prev && self.cpu != 0;
        if L::KIND == Kind::Cached && same {
            return self.cpu;
        }
        let node = &nodes.nodes[prev as usize - 1];
        // Relaxed, all: the swap of `tail`, or C, has published the number; the rest is for the count.
        let line = match L::KIND {
            Kind::Split => [0, 0, 0, node.apart.cpu.load(Relaxed)],
            _ => [
                node.links.next.load(Relaxed),
                node.links.prev.load(Relaxed),
                node.links.locked.load(Relaxed),
                node.links.cpu.load(Relaxed),
            ],
        };
        self.reads += 1;
        self.fetched += u64::from(same && line != self.line);
        (self.prev, self.line, self.cpu) = (prev, line, line[3]);
        self.cpu
    }

    fn report<P: Platform>(&self, platform: &P) {
        platform.count(Event::OsqCpuRead, self.reads);
        platform.count(Event::OsqCpuReadWritten, self.fetched);
    }
}
