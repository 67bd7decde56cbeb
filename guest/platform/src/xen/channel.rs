//! An event channel to sleep at, one for each CPU: masked, so that it is polled and never delivered.
//!
//! An interrupt may find a CPU between its look and its poll, and wait itself, at the same channel. If it took the event that the one
//! below waits for, that one would poll for ever (T10). So waits are counted, and only one that finds no other below it takes an event;
//! it returns then without a poll, for its caller to look again. One that nests leaves the event, polls on it, and returns at once: it
//! spins, until the one below has taken it.

use core::{
    hint::spin_loop,
    sync::atomic::{
        AtomicU32,
        Ordering::{Acquire, Relaxed, Release},
    },
};

/// What a channel needs of Xen.
pub(super) trait Host {
    /// Whether an event was pending on a port; none is, then.
    fn take(&self, port: u32) -> bool;

    /// Sleeps until an event is pending on a port. Returns at once if there is one, and now and then for nothing.
    fn poll(&self, port: u32);

    /// Makes an event pending on a port.
    fn send(&self, port: u32);
}

/// Where a CPU sleeps.
#[derive(Debug)]
pub(super) struct Channel {
    /// 0: none, so that waiters spin.
    port: AtomicU32,
    /// How many waits of this CPU there are, one in an interrupt upon the other.
    waits: AtomicU32,
}

impl Channel {
    pub(super) const fn new() -> Self {
        Self { port: AtomicU32::new(0), waits: AtomicU32::new(0) }
    }

    /// The CPU sleeps at `port` from here on. Release: kicks see a port that is masked.
    pub(super) fn open(&self, port: u32) {
        self.port.store(port, Release);
    }

    /// The CPU spins from here on. At which port it slept before, if at any.
    pub(super) fn close(&self) -> Option<u32> {
        // Relaxed: of the CPU's own.
        Some(self.port.swap(0, Relaxed)).filter(|port| *port != 0)
    }

    /// See [`Platform::wait`](haltkick_locks::Platform::wait). On the channel's own CPU.
    pub(super) fn wait(&self, host: &impl Host, still: impl Fn() -> bool) {
        // Relaxed: of the CPU's own.
        let port = self.port.load(Relaxed);
        if port == 0 {
            spin_loop();
            return;
        }
        // Relaxed: only interrupts of this CPU count here, and each is over before what it interrupted goes on.
        let below = self.waits.load(Relaxed);
        self.waits.store(below + 1, Relaxed);
        let is_kicked = below == 0 && host.take(port);
        // The look comes after the count: an interrupt that took an event before that has left a change for it to see.
        if !is_kicked && still() {
            host.poll(port);
        }
        self.waits.store(below, Relaxed);
    }

    /// Kicks the channel's CPU, or the next wait of it.
    pub(super) fn kick(&self, host: &impl Host) {
        // Acquire: pairs with `open`. A CPU without a port does not sleep (T15).
        let port = self.port.load(Acquire);
        if port != 0 {
            host.send(port);
        }
    }
}

#[cfg(test)]
mod tests {
    use core::cell::{Cell, RefCell};
    use std::{vec, vec::Vec};

    use super::*;

    extern crate std;

    const PORT: u32 = 7;

    /// What others do.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Deed {
        /// Changes the word that a level waits for, and kicks.
        Change(usize),
        /// Kicks for nothing.
        Kick,
        /// Sends an interrupt whose handler waits, one level up.
        Interrupt,
    }

    /// A CPU, Xen, and what others do to them after so many steps.
    struct Fake {
        channel: Channel,
        pending: Cell<bool>,
        changed: [Cell<bool>; 2],
        steps: Cell<u32>,
        deeds: RefCell<Vec<(u32, Deed)>>,
        polls: Cell<u32>,
    }

    impl Fake {
        fn new(deeds: &[(u32, Deed)]) -> Self {
            let channel = Channel::new();
            channel.open(PORT);
            Self {
                channel,
                pending: Cell::new(false),
                changed: [const { Cell::new(false) }; 2],
                steps: Cell::new(0),
                deeds: RefCell::new(deeds.to_vec()),
                polls: Cell::new(0),
            }
        }

        /// The CPU has done something: what is due happens before it goes on.
        fn step(&self) {
            self.steps.set(self.steps.get() + 1);
            loop {
                let is_due = |&(step, _): &(u32, Deed)| step <= self.steps.get();
                let due = self.deeds.borrow().iter().position(is_due);
                let Some(due) = due else { return };
                let (_, deed) = self.deeds.borrow_mut().remove(due);
                self.happens(deed);
            }
        }

        fn happens(&self, deed: Deed) {
            match deed {
                Deed::Change(level) => {
                    self.changed[level].set(true);
                    self.channel.kick(self);
                }
                Deed::Kick => self.channel.kick(self),
                Deed::Interrupt => self.until_changed(1),
            }
        }

        fn until_changed(&self, level: usize) {
            for round in 0.. {
                self.step();
                if self.changed[level].get() {
                    return;
                }
                assert!(round < 100, "level {level} spins for ever");
                self.step();
                self.channel.wait(self, || {
                    let still = !self.changed[level].get();
                    self.step();
                    still
                });
            }
        }
    }

    impl Host for Fake {
        fn take(&self, port: u32) -> bool {
            assert_eq!(port, PORT);
            self.step();
            let was_pending = self.pending.replace(false);
            self.step();
            was_pending
        }

        fn poll(&self, port: u32) {
            assert_eq!(port, PORT);
            self.polls.set(self.polls.get() + 1);
            self.step();
            // It sleeps: time passes until the next thing happens.
            while !self.pending.get() {
                let next = self.deeds.borrow().iter().map(|(step, _)| *step).min();
                let next = next.expect("the CPU sleeps for ever: its kick is lost");
                self.steps.set(self.steps.get().max(next));
                self.step();
            }
        }

        fn send(&self, port: u32) {
            assert_eq!(port, PORT);
            self.pending.set(true);
        }
    }

    #[test]
    fn a_kick_ends_the_wait_whenever_it_comes() {
        for change in 1..12 {
            for kick in 1..12 {
                let cpu = Fake::new(&[(kick, Deed::Kick), (change, Deed::Change(0))]);
                cpu.until_changed(0);
            }
        }
    }

    #[test]
    fn a_kick_is_not_lost_to_an_interrupt_that_waits_too() {
        for interrupt in 1..12 {
            for (outer, inner) in (1..24).flat_map(|outer| (1..24).map(move |inner| (outer, inner))) {
                let deeds =
                    vec![(outer, Deed::Change(0)), (interrupt, Deed::Interrupt), (inner, Deed::Change(1))];
                let cpu = Fake::new(&deeds);
                cpu.until_changed(0);
            }
        }
    }

    #[test]
    fn a_kick_before_the_wait_is_latched_and_taken_once() {
        let cpu = Fake::new(&[]);
        cpu.channel.kick(&cpu);
        cpu.channel.wait(&cpu, || true);
        assert_eq!(
            (cpu.polls.get(), cpu.pending.get()),
            (0, false),
            "it returns for its caller to look again"
        );
        cpu.happens(Deed::Kick);
        cpu.deeds.borrow_mut().push((40, Deed::Change(0)));
        cpu.until_changed(0);
        assert_eq!(cpu.polls.get(), 1, "the kick for nothing has cost one look; then it slept");
    }

    #[test]
    fn a_cpu_without_a_port_spins_and_is_not_kicked() {
        let cpu = Fake::new(&[]);
        assert_eq!(cpu.channel.close(), Some(PORT));
        assert_eq!(cpu.channel.close(), None);
        cpu.channel.kick(&cpu);
        cpu.channel.wait(&cpu, || panic!("who does not sleep need not look"));
        assert!(!cpu.pending.get());
    }
}
