//! Rules in which the locks of this family differ, and how a look at the lock is counted.

use core::{fmt::Debug, marker::PhantomData};

use super::{HEAD_SPINS, SLEEPY, SLEEPY_FACTOR};

/// Rules of one lock of the family. The defaults are those of Linux on powerpc.
pub trait Rules: Debug + 'static {
    /// The lock is the one of powerpc, not `owner-yield`. The module says how they differ.
    const IS_COMPLETE: bool = true;

    /// A CPU that has found the owner preempted marks the lock as sleepy again whenever another owner has wiped the mark.
    const IS_STICKY: bool = false;

    /// A head that leaves the queue kicks its successor, if that is preempted.
    const PRODS_HEAD: bool = false;
}

/// Rules of [`OwnerYield`](super::OwnerYield).
#[derive(Debug)]
pub enum Part {}

impl Rules for Part {
    const IS_COMPLETE: bool = false;
}

/// Rules of [`Powerpc`](super::Powerpc).
#[derive(Debug)]
pub enum Complete {}

impl Rules for Complete {}

/// Looks of one CPU at the lock, in one of its phases.
pub(super) struct Looks<R> {
    made: u32,
    /// In the complete lock: it has found the lock sleepy, or the owner preempted.
    was_sleepy: bool,
    rules: PhantomData<R>,
}

impl<R: Rules> Looks<R> {
    pub(super) fn new() -> Self {
        Self { made: 0, was_sleepy: false, rules: PhantomData }
    }

    /// Whether `most` looks have been made. They are more while the lock is sleepy.
    pub(super) fn are_over(&self, seen: u32, most: u32) -> bool {
        let is_sleepy = seen & SLEEPY != 0 || self.was_sleepy;
        self.made >= if is_sleepy { most * SLEEPY_FACTOR } else { most }
    }

    /// One look found this word, and perhaps its owner preempted.
    pub(super) fn count(&mut self, seen: u32, found_preempted: bool) {
        self.was_sleepy |= R::IS_COMPLETE && (seen & SLEEPY != 0 || found_preempted);
        // A bound, so that a model checker sees few states.
        self.made = (self.made + 1).min(HEAD_SPINS * SLEEPY_FACTOR);
    }

    /// Whether the mark belongs on the lock again.
    pub(super) fn keep_mark(&self) -> bool {
        R::IS_STICKY && self.was_sleepy
    }
}
