//! A bounded queue between producers and consumers, who sleep while it is full or empty.
//!
//! vCPUs with even numbers produce (work for `--think`), those with odd ones consume (the same). The queue is
//! guarded by lock 0; `--hold` is work in addition to pushing or popping. Sleepers are woken by the other side,
//! one for each item. A push or a pop is one operation, `transit` the time that it lay in the queue. By
//! itself a vCPU does both in turn; without a lock each does, with a queue of its own.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, Ordering};

use haltkick_hypercalls::{MAX_VCPUS, WINDOW_CLOSED, WorkloadFlags};
use haltkick_locks::CachePadded;

use crate::cpu::percpu::{boot, control, cpu};
use crate::cpu::time::{now, work};
use crate::image::hot::hot;
use crate::lock::calls::excludes;
use crate::lock::measure::{self, Sections, is_open};
use crate::lock::registry::workload;
use crate::monitor::hypercall;
use crate::observe::histogram::record_between;
use crate::work::choice::Choices;

workload! {
    "120" "bounded-queue", "producers and consumers, which sleep while a queue of 16 is full or empty",
    WorkloadFlags::NOTES_SECTIONS.with(WorkloadFlags::IS_SHAPED), ["wait", "hold", "unlock", "transit"] => run
}

/// Slot of the results' times.
const TRANSIT: usize = 3;
const CAPACITY: usize = 16;

/// Data under the lock.
struct Queue {
    items: [u64; CAPACITY],
    pushed: u64,
    popped: u64,
    /// Sleeping producers and consumers, first come first served: numbers of vCPUs, and how many have come and gone.
    sleepers: [Sleepers; 2],
}

struct Sleepers {
    vcpus: [u16; MAX_VCPUS],
    came: usize,
    went: usize,
}

impl Sleepers {
    const NOBODY: Self = Self { vcpus: [0; MAX_VCPUS], came: 0, went: 0 };

    fn add(&mut self, vcpu: usize) {
        self.vcpus[self.came % MAX_VCPUS] = vcpu as u16;
        self.came += 1;
    }

    fn take(&mut self) -> Option<usize> {
        (self.went < self.came).then(|| {
            self.went += 1;
            usize::from(self.vcpus[(self.went - 1) % MAX_VCPUS])
        })
    }
}

/// Shared by all vCPUs under lock 0.
struct Guarded(UnsafeCell<Queue>);

#[expect(unsafe_code, reason = "a queue that the lock under test guards")]
// SAFETY: `with_queue` takes the lock; a lock that does not exclude is what the oracle is there to find.
unsafe impl Sync for Guarded {}

hot! {
    static QUEUE: Guarded = Guarded(UnsafeCell::new(Queue {
        items: [0; CAPACITY],
        pushed: 0,
        popped: 0,
        sleepers: [Sleepers::NOBODY, Sleepers::NOBODY],
    }));
}

/// Not 0: the vCPU is to sleep.
static ASLEEP: [CachePadded<AtomicU32>; MAX_VCPUS] =
    [const { CachePadded::new(AtomicU32::new(0)) }; MAX_VCPUS];

const PRODUCERS: usize = 0;
const CONSUMERS: usize = 1;

/// Result of a try.
enum Tried {
    /// An item was pushed or popped. It `lay` in the queue from the first time to the second; one vCPU may have to be woken.
    Done { lay: (u64, u64), wakes: Option<usize> },
    /// The queue was full or empty; this vCPU is among the sleepers.
    MustSleep,
}

impl Queue {
    fn push(&mut self) -> Tried {
        if self.pushed - self.popped == CAPACITY as u64 {
            return self.sleep(PRODUCERS);
        }
        let pushed_at = now();
        self.items[self.pushed as usize % CAPACITY] = pushed_at;
        self.pushed += 1;
        Tried::Done { lay: (pushed_at, pushed_at), wakes: self.sleepers[CONSUMERS].take() }
    }

    fn pop(&mut self) -> Tried {
        if self.pushed == self.popped {
            return self.sleep(CONSUMERS);
        }
        let pushed_at = self.items[self.popped as usize % CAPACITY];
        self.popped += 1;
        Tried::Done { lay: (pushed_at, now()), wakes: self.sleepers[PRODUCERS].take() }
    }

    fn sleep(&mut self, side: usize) -> Tried {
        // Relaxed: the vCPU that wakes this one finds it in the queue's list, under the same lock.
        ASLEEP[cpu()].store(1, Ordering::Relaxed);
        self.sleepers[side].add(cpu());
        Tried::MustSleep
    }
}

fn run() {
    let (sections, mut choices) = (Sections::of_this_vcpu(), Choices::of_this_vcpu());
    choices.begin();
    if !excludes() || boot().vcpus == 1 {
        return alone(&sections, &mut choices);
    }
    let produces = cpu().is_multiple_of(2);
    while control().window.load(Ordering::Relaxed) != WINDOW_CLOSED {
        if produces {
            choices.think();
            transfer(&sections, choices.hold(), Queue::push);
        } else {
            let popped = transfer(&sections, choices.hold(), Queue::pop);
            if let Some((pushed_at, popped_at)) = popped.filter(|_| is_open()) {
                record_between(TRANSIT, pushed_at, popped_at.max(pushed_at));
            }
            choices.think();
        }
    }
}

/// Pushes or pops, however long it takes. Returns from when to when the item lay in the queue; `None` if the window has closed before.
#[expect(unsafe_code, reason = "what the lock under test guards")]
fn transfer(sections: &Sections, hold: u64, operation: fn(&mut Queue) -> Tried) -> Option<(u64, u64)> {
    loop {
        let mut tried = Tried::MustSleep;
        let times = sections.exclusive(0, || {
            // SAFETY: under the lock that guards it; no other reference lives.
            tried = operation(unsafe { &mut *QUEUE.0.get() });
            work(hold);
        });
        match tried {
            Tried::Done { lay, wakes } => {
                if let Some(sleeper) = wakes {
                    // Release: pairs with the acquire below, though the lock orders all that matters.
                    ASLEEP[sleeper].store(0, Ordering::Release);
                    hypercall::kick(sleeper as u32);
                }
                if is_open() {
                    measure::count(&times);
                }
                return Some(lay);
            }
            Tried::MustSleep => {
                // The kick is latched if it came first. One that was meant for something else changes nothing.
                while ASLEEP[cpu()].load(Ordering::Acquire) != 0 {
                    hypercall::wait();
                }
                if control().window.load(Ordering::Relaxed) == WINDOW_CLOSED {
                    return None;
                }
            }
        }
    }
}

/// Both in turn: there is no other vCPU, or none is to interfere.
fn alone(sections: &Sections, choices: &mut Choices) {
    while control().window.load(Ordering::Relaxed) != WINDOW_CLOSED {
        for _ in 0..2 {
            choices.think();
            let hold = choices.hold();
            let times = sections.exclusive(0, || work(hold));
            if is_open() {
                measure::count(&times);
            }
        }
    }
}
