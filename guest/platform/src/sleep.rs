//! Sleeping where an interrupt could come between the look and the sleep.

use crate::cpu;

/// A CPU that can sleep until it is kicked.
pub(crate) trait Sleeper {
    /// Turns interrupts off, and says whether they were on.
    fn turn_interrupts_off(&self) -> bool;

    /// Turns interrupts on.
    fn turn_interrupts_on(&self);

    /// Sleeps until a kick, which ends it also if it has come since interrupts were turned off. Turns them on again if they were,
    /// in such a way that what is served then does not come before the sleep.
    fn sleep(&self, interrupts_were_on: bool);
}

/// Wait as [`Platform::wait`](haltkick_qspin::Platform::wait) demands it: one look, and a sleep if it says so,
/// with nothing in between.
pub(crate) fn wait(sleeper: &impl Sleeper, still: impl Fn() -> bool) {
    let were_on = sleeper.turn_interrupts_off();
    if still() {
        sleeper.sleep(were_on);
    } else if were_on {
        sleeper.turn_interrupts_on();
    }
}

/// The calling CPU's interrupts, off; whether they were on.
///
/// # Safety
///
/// At CPL 0.
#[expect(unsafe_code, reason = "a privileged instruction")]
#[inline(always)]
pub(crate) unsafe fn turn_interrupts_off() -> bool {
    let were_on = cpu::interrupts_are_on();
    // SAFETY: the caller's promise.
    unsafe { cpu::turn_interrupts_off() };
    were_on
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::*;

    /// A CPU that waits for a word to change, and is kicked by the CPU that changes it.
    struct Fake {
        /// Wherever interrupts are on, one is served whose handler waits, too, and takes a kick that has come.
        is_interrupted: bool,
        interrupts: Cell<bool>,
        /// KVM latches a kick until the next halt.
        kicked: Cell<bool>,
        changed: Cell<bool>,
        /// How many steps from now the word changes.
        until_change: Cell<u32>,
        sleeps: Cell<u32>,
    }

    impl Fake {
        fn new(is_interrupted: bool, interrupts: bool, until_change: u32) -> Self {
            Self {
                is_interrupted,
                interrupts: Cell::new(interrupts),
                kicked: Cell::new(false),
                changed: Cell::new(false),
                until_change: Cell::new(until_change),
                sleeps: Cell::new(0),
            }
        }

        fn change(&self) {
            self.changed.set(true);
            self.kick();
        }

        fn kick(&self) {
            let is_taken = self.is_interrupted && self.interrupts.get();
            self.kicked.set(!is_taken);
        }

        /// The CPU has done something; others may act before it goes on.
        fn step(&self) {
            match self.until_change.get() {
                0 => {}
                1 => {
                    self.until_change.set(0);
                    self.change();
                }
                steps => self.until_change.set(steps - 1),
            }
        }

        fn until_changed(&self) {
            while !self.changed.get() {
                self.step();
                wait(self, || {
                    let still = !self.changed.get();
                    self.step();
                    still
                });
            }
        }
    }

    impl Sleeper for Fake {
        fn turn_interrupts_off(&self) -> bool {
            let were_on = self.interrupts.replace(false);
            self.step();
            were_on
        }

        fn turn_interrupts_on(&self) {
            self.interrupts.set(true);
            if self.is_interrupted {
                self.kicked.set(false);
            }
        }

        fn sleep(&self, interrupts_were_on: bool) {
            self.sleeps.set(self.sleeps.get() + 1);
            if !self.kicked.get() && !self.changed.get() && self.until_change.get() != 0 {
                self.until_change.set(0);
                self.change();
            }
            assert!(self.kicked.get(), "sleeps for ever: the kick has come before it slept, and is lost");
            self.kicked.set(false);
            if interrupts_were_on {
                self.turn_interrupts_on();
            }
        }
    }

    #[test]
    fn a_kick_ends_the_wait_whenever_it_comes() {
        for is_interrupted in [false, true] {
            for interrupts in [false, true] {
                for until_change in 1..8 {
                    let cpu = Fake::new(is_interrupted, interrupts, until_change);
                    cpu.until_changed();
                    assert_eq!(cpu.interrupts.get(), interrupts, "interrupts are as they were");
                }
            }
        }
    }

    #[test]
    fn a_kick_before_the_wait_is_latched_and_does_no_harm() {
        let cpu = Fake::new(false, false, 8);
        cpu.kick();
        wait(&cpu, || true);
        assert_eq!(cpu.sleeps.get(), 1, "it returns from the sleep at once, for nothing");
        assert!(!cpu.changed.get());
        cpu.until_changed();
        assert!(cpu.changed.get(), "it has looked again, and waited");
    }

    #[test]
    fn who_finds_the_word_changed_does_not_sleep() {
        for interrupts in [false, true] {
            let cpu = Fake::new(false, interrupts, 0);
            wait(&cpu, || false);
            assert_eq!((cpu.sleeps.get(), cpu.interrupts.get()), (0, interrupts));
        }
    }
}
