//! Events that can be counted, by slot: the names go into the image, for the VMM to read.
#![expect(unsafe_code, reason = "a section of its own for the names")]

use haltkick_grants::Counter;
use haltkick_hypercalls::LOCK_EVENTS;
use haltkick_locks::Event;

use crate::image::padded;

/// Events of the locks, from [`MEMORY_EVENTS`] on those of the memory manager, from [`GRANT_EVENTS`] on what grant
/// tables count, from [`WORKLOAD_EVENTS`] on those of workloads.
const EVENT_COUNT: usize = WORKLOAD_EVENTS + WorkloadEvent::COUNT;

/// Slot of the memory manager's first event.
pub(crate) const MEMORY_EVENTS: usize = Event::COUNT;

/// Slot of the grant tables' first counter.
pub(crate) const GRANT_EVENTS: usize = MEMORY_EVENTS + haltkick_mm::Event::COUNT;

/// Slot of the first [`WorkloadEvent`].
const WORKLOAD_EVENTS: usize = GRANT_EVENTS + Counter::COUNT;

haltkick_locks::named! {
    /// An event that workloads count themselves.
    #[derive(Clone, Copy)]
    pub enum WorkloadEvent {
        /// An interrupt of a vCPU in the slow path of a lock.
        InterruptOfWaiter = "interrupt_of_waiter",
        /// One of a vCPU in a section.
        InterruptOfHolder = "interrupt_of_holder",
        /// Any other.
        InterruptOfOther = "interrupt_of_other",
        /// A sample of the governor of a guest that may fold.
        FoldSamples = "fold_samples",
        /// The preferred vCPUs at each sample, summed up.
        FoldPreferred = "fold_preferred",
        Folds = "folds",
        Unfolds = "unfolds",
        /// A task that went to a preferred vCPU, since its own was not.
        TaskPushed = "tasks_pushed",
        /// One that went to a preferred vCPU with fewer tasks.
        TaskPulled = "tasks_pulled",
        /// The most readers that were inside at once.
        ReadersInside = "readers_inside",
    }
}

impl WorkloadEvent {
    pub(crate) fn slot(self) -> usize {
        WORKLOAD_EVENTS + self as usize
    }
}

/// The names of each kind of event, in the order of the slots.
const NAMES: [&[&str]; 4] =
    [&Event::NAMES, &haltkick_mm::Event::NAMES, &Counter::NAMES, &WorkloadEvent::NAMES];

const fn event_names() -> [[u8; 32]; EVENT_COUNT] {
    let (mut names, mut slot, mut kind) = ([[0; 32]; EVENT_COUNT], 0, 0);
    while kind < NAMES.len() {
        let mut i = 0;
        while i < NAMES[kind].len() {
            names[slot] = padded(NAMES[kind][i]);
            (slot, i) = (slot + 1, i + 1);
        }
        kind += 1;
    }
    names
}

const _: () = assert!(EVENT_COUNT <= LOCK_EVENTS);

#[used]
#[unsafe(link_section = ".haltkick.events")]
static EVENTS: [[u8; 32]; EVENT_COUNT] = event_names();
