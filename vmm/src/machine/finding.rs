//! A thing that is found out once in a process, or was given to it by who knew.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether any finding was used that was given.
static GIVEN_WAS_USED: AtomicBool = AtomicBool::new(false);

/// A value that is found out once.
#[derive(Debug)]
pub(crate) struct Finding<T>(OnceLock<Found<T>>);

#[derive(Debug)]
struct Found<T> {
    value: T,
    was_given: bool,
}

impl<T> Finding<T> {
    /// A finding that is not known yet.
    pub(crate) const fn unknown() -> Self {
        Self(OnceLock::new())
    }

    /// The value, to go by.
    pub(crate) fn used(&self) -> Option<&T> {
        let found = self.0.get()?;
        if found.was_given {
            // Relaxed: asked for after the run.
            GIVEN_WAS_USED.store(true, Ordering::Relaxed);
        }
        Some(&found.value)
    }

    /// The value, to tell it.
    pub(crate) fn told(&self) -> Option<&T> {
        self.0.get().map(|found| &found.value)
    }

    /// It was found out just now. The first finding stays.
    pub(crate) fn found(&self, value: T) -> &T {
        &self.0.get_or_init(|| Found { value, was_given: false }).value
    }

    /// A caller knows it.
    pub(crate) fn give(&self, value: T) {
        _ = self.0.set(Found { value, was_given: true });
    }
}

/// Whether any finding was used that was given.
pub(crate) fn given_was_used() -> bool {
    GIVEN_WAS_USED.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_stays_as_it_was_first() {
        let (own, given) = (Finding::unknown(), Finding::unknown());
        assert_eq!((own.used(), own.told()), (None, None));
        assert_eq!(*own.found(1), 1);
        own.give(2);
        given.give(3);
        assert_eq!((own.used(), *given.found(4)), (Some(&1), 3));
        assert_eq!((own.told(), given.told()), (Some(&1), Some(&3)));
    }
}
