//! What can be counted, by slot: the names go into the image, for the VMM to read.
#![expect(unsafe_code, reason = "a section of its own for the names")]

use haltkick_grants::Counter;
use haltkick_hypercalls::LOCK_EVENTS;
use haltkick_locks::Event;

use crate::image::field::padded;

/// Events of the locks, from [`MEMORY_EVENTS`] on those of the memory manager, from [`GRANT_EVENTS`] on what grant
/// tables count.
const EVENT_COUNT: usize = GRANT_EVENTS + Counter::ALL.len();

/// Slot of the memory manager's first event.
pub(crate) const MEMORY_EVENTS: usize = Event::COUNT;

/// Slot of the grant tables' first counter.
pub(crate) const GRANT_EVENTS: usize = MEMORY_EVENTS + haltkick_mm::Event::COUNT;

const fn event_names() -> [[u8; 32]; EVENT_COUNT] {
    let mut names = [[0; 32]; EVENT_COUNT];
    let mut i = 0;
    while i < EVENT_COUNT {
        names[i] = padded(if i < MEMORY_EVENTS {
            Event::NAMES[i]
        } else if i < GRANT_EVENTS {
            haltkick_mm::Event::ALL[i - MEMORY_EVENTS].name()
        } else {
            Counter::ALL[i - GRANT_EVENTS].name()
        });
        i += 1;
    }
    names
}

const _: () = assert!(EVENT_COUNT <= LOCK_EVENTS);

#[used]
#[unsafe(link_section = ".haltkick.events")]
static EVENTS: [[u8; 32]; EVENT_COUNT] = event_names();
