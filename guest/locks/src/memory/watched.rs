//! Atomics that say which address they are about to touch: for a search of all states (`--cfg liveness`, `tests/liveness`).

extern crate std;

use core::sync::atomic::{self as real, Ordering};
use std::sync::OnceLock;

/// Called before every access with its address.
pub type Observer = fn(usize);

static OBSERVER: OnceLock<Observer> = OnceLock::new();

/// Sets the observer, once for the process.
pub fn observe(observer: Observer) {
    OBSERVER.get_or_init(|| observer);
}

fn tell<T>(atomic: &T) {
    if let Some(observer) = OBSERVER.get() {
        observer(core::ptr::from_ref(atomic).addr());
    }
}

/// Declares operations that read and write in one step.
macro_rules! updates {
    ($value:ty: $($operation:ident)+) => {$(
        pub fn $operation(&self, value: $value, order: Ordering) -> $value {
            tell(self);
            self.0.$operation(value, order)
        }
    )+};
}

macro_rules! atomics {
    ($($name:ident: $value:ty;)+) => {$(
        #[doc = concat!("A watched `", stringify!($name), "`.")]
        #[derive(Debug)]
        #[repr(transparent)]
        pub struct $name(real::$name);

        #[allow(dead_code, reason = "not every width needs every operation")]
        impl $name {
            pub const fn new(value: $value) -> Self {
                Self(real::$name::new(value))
            }

            pub fn load(&self, order: Ordering) -> $value {
                tell(self);
                self.0.load(order)
            }

            pub fn store(&self, value: $value, order: Ordering) {
                tell(self);
                self.0.store(value, order);
            }

            pub fn compare_exchange(
                &self,
                from: $value,
                to: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                tell(self);
                self.0.compare_exchange(from, to, success, failure)
            }

            pub fn compare_exchange_weak(
                &self,
                from: $value,
                to: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(from, to, success, failure)
            }

            updates! { $value: swap fetch_add fetch_sub fetch_and fetch_or }
        }
    )+};
}

atomics! {
    AtomicU8: u8;
    AtomicU32: u32;
    AtomicUsize: usize;
}
