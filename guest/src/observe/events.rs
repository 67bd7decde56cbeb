//! Events that can be counted, by slot: the names go into the image, for the VMM to read.
#![expect(unsafe_code, reason = "a section of its own for the names")]

use haltkick_grants::Counter;
use haltkick_hypercalls::LOCK_EVENTS;
use haltkick_locks::Event;

use crate::image::field::padded;

/// Events of the locks, from [`MEMORY_EVENTS`] on those of the memory manager, from [`GRANT_EVENTS`] on what grant
/// tables count, from [`INTERRUPT_EVENTS`] on what interrupts have met, from [`FOLDING_EVENTS`] on what folding does; last,
/// [`READERS_INSIDE`].
const EVENT_COUNT: usize = READERS_INSIDE + 1;

/// Slot of the memory manager's first event.
pub(crate) const MEMORY_EVENTS: usize = Event::COUNT;

/// Slot of the grant tables' first counter.
pub(crate) const GRANT_EVENTS: usize = MEMORY_EVENTS + haltkick_mm::Event::COUNT;

/// Slot of the first [`Interrupt`].
pub(crate) const INTERRUPT_EVENTS: usize = GRANT_EVENTS + Counter::COUNT;

/// State of the vCPU at an interrupt.
#[derive(Clone, Copy)]
pub(crate) enum Interrupt {
    /// A vCPU in the slow path of a lock.
    Waiter,
    /// One in a section.
    Holder,
    /// Anything else.
    Other,
}

const INTERRUPT_NAMES: [&str; 3] = ["interrupt_of_waiter", "interrupt_of_holder", "interrupt_of_other"];

/// Slot of the first event of [`Folding`].
const FOLDING_EVENTS: usize = INTERRUPT_EVENTS + INTERRUPT_NAMES.len();

/// An event of a guest that may fold.
#[derive(Clone, Copy)]
pub(crate) enum Folding {
    /// A sample of the governor.
    Samples,
    /// The preferred vCPUs at each sample, summed up.
    Preferred,
    Folds,
    Unfolds,
    /// A task that went to a preferred vCPU, since its own was not.
    Pushed,
    /// One that went to a preferred vCPU with fewer tasks.
    Pulled,
}

const FOLDING_NAMES: [&str; 6] =
    ["fold_samples", "fold_preferred", "folds", "unfolds", "tasks_pushed", "tasks_pulled"];

impl Folding {
    pub(crate) fn slot(self) -> usize {
        FOLDING_EVENTS + self as usize
    }
}

/// Slot of the most readers that were inside at once.
pub(crate) const READERS_INSIDE: usize = FOLDING_EVENTS + FOLDING_NAMES.len();

/// The names of each kind of event, in the order of the slots.
const NAMES: [&[&str]; 6] = [
    &Event::NAMES,
    &haltkick_mm::Event::NAMES,
    &Counter::NAMES,
    &INTERRUPT_NAMES,
    &FOLDING_NAMES,
    &["readers_inside"],
];

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
