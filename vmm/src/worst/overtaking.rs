//! How often a waiting vCPU is overtaken, in locks that promise a bound: as the search of all states finds it (the README of `guest/locks`).
//!
//! No promise begins at the moment at which a vCPU asks: before it stands in the queue it may be preempted for any time. So a wait
//! counts from the first tick on at which the vCPU stands there for certain.

use std::sync::atomic::Ordering;

use crate::explain::forbids_stealing;
use crate::guest::Activity;
use crate::guest::memory::Memory;
use crate::observe::{Where, Whereabouts};
use crate::run::asked::OurGuest;

/// Ticks at which a vCPU was seen to run in one wait: more time than the way into any queue takes.
const QUEUED_BY: u32 = 20;
/// Sections that may begin although the head forbids to steal: an owner may have had the lock already, and not begun.
const HAD_IT_ALREADY: u64 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Promise {
    /// No vCPU in the queue is overtaken: each other one has at most one turn before it.
    InOrder,
    /// The head may forbid to steal, and is not overtaken while it does.
    WhileHeadInsists,
}

/// Locks with a promise: name, paravirtual form, type in the crate of locks.
const PROMISES: [(&str, bool, &str, Promise); 10] = [
    ("qspinlock", false, "QSpinLock<Native>", Promise::InOrder),
    ("qspinlock-whole", false, "QSpinLock<Native>", Promise::InOrder),
    ("qspinlock-v16", true, "QSpinLock<V16>", Promise::InOrder),
    ("ticket", false, "Ticket", Promise::InOrder),
    ("ticket", true, "PvTicket", Promise::InOrder),
    ("mcs", false, "Mcs", Promise::InOrder),
    ("qspinlock", true, "QSpinLock<Pv>", Promise::WhileHeadInsists),
    ("qspinlock-whole", true, "QSpinLock<Pv>", Promise::WhileHeadInsists),
    ("qspinlock-wc", true, "QSpinLock<WorkConserving>", Promise::WhileHeadInsists),
    ("owner-yield", true, "OwnerYield", Promise::WhileHeadInsists),
];

/// A vCPU at a tick.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// When it asked for the lock that it waits for; 0: it waits for none.
    since_tsc: u64,
    lock: u32,
    place: Whereabouts,
    /// It is the head, and forbids to steal.
    insists: bool,
    /// Sections of the lock that have begun.
    entered: u64,
}

/// A wait, as far as it was seen.
#[derive(Clone, Copy, Debug, Default)]
struct Wait {
    since_tsc: u64,
    lock: u32,
    running_ticks: u32,
    /// Sections that had begun when the promise began.
    from: Option<u64>,
    /// Since when the vCPU has been off its pCPU.
    off_since_ns: Option<u64>,
}

#[derive(Debug)]
pub(super) struct Order {
    promise: Option<Promise>,
    waits: Vec<Wait>,
}

impl Order {
    /// The waits for the lock that `asked` takes.
    pub(super) fn new(asked: OurGuest<'_>) -> Self {
        let (lock, pv) = (asked.ours.lock.as_str(), asked.guest.pv);
        let promise = PROMISES.iter().find(|it| (it.0, it.1) == (lock, pv)).map(|it| it.3);
        Self { promise, waits: vec![Wait::default(); asked.guest.vcpus as usize] }
    }

    /// Looks at a guest that stands still, whose vCPUs are where `places` says. `Some`: the lock broke its promise, in words.
    pub(super) fn look(
        &mut self,
        memory: &Memory,
        locks: u32,
        places: impl FnOnce() -> Vec<Whereabouts>,
    ) -> Option<String> {
        let promise = self.promise?;
        (0..).zip(places()).find_map(|(vcpu, place)| {
            let area = memory.area(vcpu);
            // Relaxed, all: nothing runs while this is read.
            let lock = area.activity.lock.load(Ordering::Relaxed).min(locks - 1);
            let seen = Seen {
                since_tsc: area.activity.awaited_since_tsc.load(Ordering::Relaxed),
                lock,
                place,
                insists: Activity::of(area) == Activity::Head && forbids_stealing(memory, lock, locks),
                entered: memory.oracle(lock).entered.load(Ordering::Relaxed),
            };
            self.wait(promise, vcpu, seen)
        })
    }

    /// A vCPU at the next tick.
    fn wait(&mut self, promise: Promise, vcpu: u32, seen: Seen) -> Option<String> {
        let others = self.waits.len() as u64 - 1;
        let wait = &mut self.waits[vcpu as usize];
        if (wait.since_tsc, wait.lock) != (seen.since_tsc, seen.lock) {
            *wait = Wait { since_tsc: seen.since_tsc, lock: seen.lock, ..Wait::default() };
        }
        if seen.since_tsc == 0 {
            return None;
        }
        let (begins, most, meanwhile) = match promise {
            Promise::InOrder => {
                wait.running_ticks += u32::from(seen.place.at == Where::Running);
                let is_queued = seen.place.at == Where::Asleep || wait.running_ticks >= QUEUED_BY;
                (is_queued, others, "stood in the queue of")
            }
            // A head that is off its pCPU all the time cannot have allowed it in between.
            Promise::WhileHeadInsists => {
                let is_off = matches!(seen.place.at, Where::Preempted(_) | Where::KeptOut(_));
                let off_since_ns = seen.place.since_ns.filter(|_| is_off && seen.insists);
                if off_since_ns.is_none() || off_since_ns != wait.off_since_ns {
                    (wait.off_since_ns, wait.from) = (off_since_ns, None);
                }
                (off_since_ns.is_some(), HAD_IT_ALREADY, "forbade stealing as the head of")
            }
        };
        if begins {
            wait.from.get_or_insert(seen.entered);
        }
        let (begun, lock) = (seen.entered.wrapping_sub(wait.from?), seen.lock);
        let broken = || {
            format!(
                "vCPU {vcpu} {meanwhile} lock {lock} while {begun} sections of others began; at most {most} may"
            )
        };
        (begun > most).then(broken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(vcpus: usize) -> Order {
        Order { promise: None, waits: vec![Wait::default(); vcpus] }
    }

    fn seen(since_tsc: u64, at: Where, entered: u64) -> Seen {
        Seen { since_tsc, lock: 0, place: Whereabouts { at, since_ns: Some(7) }, insists: true, entered }
    }

    #[test]
    fn a_vcpu_in_a_queue_is_passed_once_by_each_other_one() {
        let wait =
            |order: &mut Order, since, at, entered| order.wait(Promise::InOrder, 1, seen(since, at, entered));
        let mut order = order(4);
        // It may not stand there yet.
        assert!((0..20).all(|tick| wait(&mut order, 5, Where::Running, tick * 100).is_none()));
        assert_eq!(wait(&mut order, 5, Where::Running, 1903), None);
        let broken = wait(&mut order, 5, Where::Running, 1904).expect("a fourth one");
        assert_eq!(
            broken,
            "vCPU 1 stood in the queue of lock 0 while 4 sections of others began; at most 3 may"
        );
        // Another wait; a sleeper is in the queue at once.
        assert_eq!(wait(&mut order, 6, Where::Asleep, 2000), None);
        assert_eq!(wait(&mut order, 6, Where::Running, 2003), None);
        assert!(wait(&mut order, 6, Where::Running, 2004).is_some());
        assert_eq!(wait(&mut order, 0, Where::Running, 9000), None);
    }

    #[test]
    fn a_head_that_forbids_stealing_is_not_overtaken_while_off() {
        let off = Where::Preempted(Activity::Head);
        let wait = |order: &mut Order, seen| order.wait(Promise::WhileHeadInsists, 0, seen);
        let mut order = order(4);
        assert_eq!(wait(&mut order, seen(5, off, 10)), None);
        assert_eq!(wait(&mut order, seen(5, off, 11)), None);
        // It has run in between, and may have allowed it.
        assert_eq!(wait(&mut order, seen(5, Where::Running, 20)), None);
        assert_eq!(wait(&mut order, seen(5, off, 30)), None);
        assert_eq!(wait(&mut order, Seen { insists: false, ..seen(5, off, 40) }), None);
        assert_eq!(wait(&mut order, seen(5, off, 50)), None);
        let later = Seen { place: Whereabouts { at: off, since_ns: Some(8) }, ..seen(5, off, 60) };
        assert_eq!(wait(&mut order, later), None);
        assert!(wait(&mut order, Seen { entered: 62, ..later }).is_some());
    }

    #[test]
    fn promises_are_those_of_the_crate_of_locks() {
        let readme = include_str!("../../../guest/locks/README.md");
        for (lock, _, kind, promise) in PROMISES {
            let mut rows = readme.lines().filter(|line| line.starts_with('|') && line.contains(" never"));
            let row =
                rows.find(|line| line.split('|').nth(1).is_some_and(|it| it.contains(&format!("`{kind}`"))));
            let promised =
                row.and_then(|row| row.split('|').nth(2)).unwrap_or_else(|| panic!("no row of {kind}"));
            let begin = match promise {
                Promise::InOrder => " never",
                Promise::WhileHeadInsists => " without bound; while its head insists, never",
            };
            assert!(promised.starts_with(begin), "{lock}: {promised}");
        }
    }
}
