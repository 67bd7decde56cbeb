//! Which vCPUs of a guest have said that they have started, where they say so.
//!
//! The word of each vCPU counts once, and each speaks for itself alone: a guest that says nothing, or says it again, delays no other
//! guest and stops no vCPU of its own for good, since the supervisor ends a run in which vCPUs do not start.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The starts of a guest's vCPUs.
#[derive(Debug, Default)]
pub(crate) struct Starts {
    /// Whether each vCPU has said it. Empty: they do not.
    said: Vec<AtomicBool>,
    /// The number of those that have.
    count: AtomicU32,
}

impl Starts {
    /// Makes the starts of a guest whose `vcpus` vCPUs each say that they have started.
    pub(crate) fn said_by(vcpus: u32) -> Self {
        Self { said: (0..vcpus).map(|_| AtomicBool::new(false)).collect(), count: AtomicU32::new(0) }
    }

    /// Whether vCPUs say it at all.
    pub(crate) fn are_said(&self) -> bool {
        !self.said.is_empty()
    }

    /// `vcpu` says that it has started, or will say nothing more. Whether that is news.
    pub(crate) fn says(&self, vcpu: u32) -> bool {
        let Some(said) = self.said.get(vcpu as usize) else { return false };
        // Relaxed, here and below: a vCPU is on one thread at a time, and the number is a hint.
        let is_news = !said.swap(true, Ordering::Relaxed);
        if is_news {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
        is_news
    }

    /// How many have started.
    pub(crate) fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vcpu_starts_once_however_often_it_says_so() {
        let starts = Starts::said_by(2);
        assert_eq!(
            [1, 1, 0, 2, u32::MAX, 0].map(|vcpu| starts.says(vcpu)),
            [true, false, true, false, false, false]
        );
        assert_eq!(starts.count(), 2);
        let silent = Starts::default();
        assert!(!silent.are_said() && !silent.says(0));
    }
}
