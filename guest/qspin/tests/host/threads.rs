/// Threads as CPUs, from their first lock until their end, without a test at their side: what a program of a host would use.
#[derive(Debug)]
#[allow(unreachable_pub, reason = "examples include this file, and make it public")]
pub struct Threads;

/// Bit `i`: CPU `i` is taken.
static TAKEN: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

/// The number of a thread, which is free again when it ends.
struct Number(usize);

impl Number {
    fn take() -> Self {
        use std::sync::atomic::Ordering::{Acquire, Relaxed};
        // Acquire: pairs with the Release of who had the number before.
        let taken =
            TAKEN.fetch_update(Acquire, Relaxed, |taken| Some(taken | (taken + 1))).expect("always some");
        assert!(taken != u64::MAX, "more than 64 threads");
        Self(taken.trailing_ones() as usize)
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        TAKEN.fetch_and(!(1 << self.0), std::sync::atomic::Ordering::Release);
    }
}

impl haltkick_qspin::Platform for Threads {
    fn cpu(&self) -> usize {
        std::thread_local! { static NUMBER: Number = Number::take(); }
        NUMBER.with(|number| number.0)
    }

    fn pause(&self) {
        std::thread::yield_now();
    }

    fn now(&self) -> u64 {
        0
    }

    fn spin_threshold(&self) -> u64 {
        0
    }

    fn wait(&self, still: impl Fn() -> bool) {
        if still() {
            std::thread::yield_now();
        }
    }

    fn kick(&self, _: usize) {}

    fn is_preempted(&self, _: usize) -> bool {
        false
    }

    fn ticks(&self, nanoseconds: u64) -> u64 {
        nanoseconds
    }

    fn yield_to(&self, _: Option<usize>) {
        std::thread::yield_now();
    }

    fn count(&self, _: haltkick_qspin::Event, _: u64) {}
}

#[allow(unsafe_code, reason = "examples have no lints")]
// SAFETY: a number is one thread's until that ends; threads have no interrupts.
unsafe impl haltkick_qspin::TrustedCpu for Threads {
    fn pin(&self) {}

    fn unpin(&self) {}
}
