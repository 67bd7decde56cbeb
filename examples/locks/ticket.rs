//! Ticket lock in Rust: first come, first served, on two counters.
#![no_std]

#[path = "../../include/haltkick.rs"]
mod haltkick;

use core::sync::atomic::{AtomicU32, Ordering};

use haltkick::{RawLock, State, VERSION};

pub struct Ticket {
    /// The ticket that the next arrival draws.
    next: AtomicU32,
    /// The ticket now served.
    owner: AtomicU32,
}

impl Ticket {
    #[cold]
    #[inline(never)]
    fn wait_for(&self, mine: u32) {
        haltkick::announce(State::Waiter);
        loop {
            match mine.wrapping_sub(self.owner.load(Ordering::Acquire)) {
                0 => return,
                1 => haltkick::announce(State::Head),
                _ => {}
            }
            haltkick::pause();
        }
    }
}

// SAFETY: a ticket is drawn by one vCPU, and served after all before it. Zeros are a lock whose next ticket is being served.
unsafe impl RawLock for Ticket {
    #[inline]
    fn lock(&self) {
        let mine = self.next.fetch_add(1, Ordering::Relaxed);
        if self.owner.load(Ordering::Acquire) != mine {
            self.wait_for(mine);
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        let owner = self.owner.load(Ordering::Acquire);
        self.next.compare_exchange(owner, owner.wrapping_add(1), Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    #[inline]
    unsafe fn unlock(&self) {
        // Only the holder writes it.
        self.owner.store(self.owner.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }
}

haltkick_lock!(Ticket);

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        haltkick::pause();
    }
}
