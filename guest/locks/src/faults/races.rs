//! The races that locks of this kind once had, by the names that the comments of this crate use.
//!
//! T1 to T9, T14 and T18 are settled in the line of a lock that names them, T16 and T17 in the fair reader-writer lock, O1 and
//! O2 in the spin queue. T10 to T12 and T15 are the platform's to settle, and [`Platform::wait`](crate::Platform::wait) says
//! what it owes. T13 cannot occur: no lock changes its form. Each other one has a [`Point`](crate::Point) at which it is likely, or a test.
//!
//! | | what happens in which order | what comes of it |
//! |---|---|---|
//! | T1 | a waiter halts while the owner makes it head, and neither sees the other's store | it sleeps forever |
//! | T2 | the owner that has made a CPU head is preempted; the head registers itself, and then the owner does so too | two entries for one lock |
//! | T3 | an unlock finds SLOW and searches the table with loads from before the entry was there | no entry, so no kick |
//! | T4 | an unlock touches the lock after the store that released it | the memory may belong to another object by then |
//! | T5 | a node is linked, and its initialisation becomes visible afterwards | the handoff is overwritten |
//! | T6 | an interrupt comes between counting a node as taken and using it, and takes the same one | two waiters in one node |
//! | T7 | each time a CPU looks, another CPU is pending | it never leaves the first loop |
//! | T8 | setting a bit is a compare-exchange loop, under contention | the loop never succeeds |
//! | T9 | slow paths nest deeper than there are nodes | a node that does not exist |
//! | T10 | an interrupt that waits consumes the kick of the wait that it interrupted | that wait sleeps forever |
//! | T11 | an interrupt comes between the last check and the halt, and takes the kick with it | the same |
//! | T12 | the kick is an interrupt, and the CPU sleeps with interrupts off | the same |
//! | T13 | a lock changes from its native form to the paravirtual one while it is held | the native unlock forgets a sleeper |
//! | T14 | an unlock finds a lock that is not held, or overwritten | it searches for what cannot be there |
//! | T15 | a kick goes to a CPU that cannot be kicked yet | it is lost |
//! | T16 | a writer polls without acquiring and claims without acquiring | its section begins before the last one has ended |
//! | T17 | a newcomer enters a fair lock between a release and the moment at which the first in the queue sees it | it starves |
//! | T18 | a search by lock finds a node that still names the lock of its last use | a mark in the wrong queue |
//! | P0a | a waiter that woke by itself finds itself HASHED, and does not find that it is head | it goes on as a waiter, and is registered twice |
//! | O1 | the swap of the tail does not publish the node | a successor's link is overwritten |
//! | O2 | a waiter stores its predecessor after the link that lets that one change it | it waits for a node that has left |
//!
//! No error, but what makes today's paravirtual lock slow (docs/locks.md has figures):
//!
//! | | what happens | what comes of it |
//! |---|---|---|
//! | D1 | a head that was woken finds a thief, and has registered once already | it spins for whole slices, for its next sleeps end at once |
//! | D2 | a head is preempted while it forbids stealing | the lock is free and no CPU can take it |
//! | D3 | one waiter sleeps early, and so do all behind it | a kick for each handoff |
//! | D4 | a kick is left from an earlier sleep | the next sleep ends at once |
//!
//! # The four of the paravirtual queue, step by step
//!
//! ```text
//! T1  waiter, P0                       owner, Q8 and K1
//!     state := HALTED                  next.locked := 1
//!     full fence (A)                   full fence (B)
//!     sleep unless locked              state: HALTED -> HASHED, else return
//! ```
//! With both fences, one of them sees the other's store: the waiter does not sleep, or the owner registers it. Without
//! either of them both may look too early, and the waiter is never kicked. The owner's fence has to be explicit, for a
//! compare-exchange that fails orders nothing.
//!
//! ```text
//! T2  owner, K1                        new head
//!     next.locked := 1
//!     (preempted)                      registers itself, publishes its state, sleeps
//!     state: HALTED -> HASHED
//! ```
//! A head publishes HASHED, never HALTED: the owner's exchange fails, and the lock is not registered twice.
//!
//! ```text
//! P0a waiter, P0                       owner, Q8 and K1
//!                                      next.locked := 1
//!                                      fence B
//!     HALTED -> RUNNING fails          state: HALTED -> HASHED
//!     looks at locked, or spins on
//! ```
//! The waiter woke by itself and finds HASHED; it must then find `locked` too. If it did not, it would go on
//! as one that is not head, store HALTED over HASHED, and later register once more. The failed exchange
//! therefore acquires. (On x86 it does so anyway. Loom found this one.)
//!
//! ```text
//! T3  head, P2 and P3                  unlock, U1 and U2
//!     insert into the table            finds SLOW
//!     release (in the swap)            acquire fence
//!     locked byte := SLOW              searches the table
//! ```
