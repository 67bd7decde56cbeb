//! Every state that the real code of a lock comes to on two to four CPUs which may be preempted at any access to memory,
//! and lose their patience at any look at the clock.
//!
//! `RUSTFLAGS="--cfg liveness" cargo test --release -p haltkick-locks --test liveness -- --nocapture`
//!
//! Memory is sequentially consistent. What is found:
//! - exclusion, in all of these states;
//! - from each state, for each CPU, a way to its next acquisition without a spurious wake-up;
//! - how often a CPU that queues can be overtaken.

#![cfg(liveness)]

mod explorer;
mod graph;
mod machine;

use haltkick_locks::*;
use haltkick_testing::tests;

use std::{env, fs, path::PathBuf};

use crate::{
    explorer::{FOR_EVER, Graph, Rounds, explore},
    graph::{insists, queues},
    machine::Cpus,
};

const THREE_ONCE: Rounds = [1, 1, 1, 0];
const FOUR_ONCE: Rounds = [1, 1, 1, 1];
/// Both take it again and again.
const TWO_FOR_EVER: Rounds = [FOR_EVER, FOR_EVER, 0, 0];
/// One takes it again and again while one other, or two others, take it once.
const BESIDE_ONE: Rounds = [1, FOR_EVER, 0, 0];
const BESIDE_TWO: Rounds = [1, 1, FOR_EVER, 0];

fn queue_lock<M: Mode>(rounds: Rounds) -> Graph {
    explore(rounds, QSpinDomain::<Cpus, 4, 4>::new, QSpinLock::<M, Whole>::new(), None)
}

fn owner_yield(rounds: Rounds) -> Graph {
    explore(rounds, OwnerYieldDomain::<Cpus, 4>::new, OwnerYield::new(), None)
}

fn gcr(rounds: Rounds) -> Graph {
    explore(rounds, GcrDomain::<Cpus, 4>::new, Gcr::new(), None)
}

fn rqspinlock(rounds: Rounds) -> Graph {
    explore(rounds, RqSpinDomain::<Cpus, 4>::new, RqSpinLock::<Whole>::new(), None)
}

/// The bit of the word that forbids stealing, in the queue spinlocks and where waiters yield to the owner.
const PENDING: u32 = 1 << 8;
const MUST_QUEUE: u32 = 1 << 16;

/// `LIVENESS_DEEPER=1` (CONTRIBUTING.md): also what takes minutes and gigabytes.
fn deeper() -> bool {
    env::var_os("LIVENESS_DEEPER").is_some()
}

fn assert_a_way_forward(lock: fn(Rounds) -> Graph) {
    lock(TWO_FOR_EVER).assert_a_way_forward();
    lock(THREE_ONCE).assert_a_way_forward();
    if deeper() {
        lock(BESIDE_TWO).assert_a_way_forward();
    }
}

tests! {
    every_state_of_the_lock_of_2015_has_a_way_forward: assert_a_way_forward(queue_lock::<V16>);
    from_every_state_of_todays_lock_there_is_a_way_forward: assert_a_way_forward(queue_lock::<Pv>);
    from_every_state_of_the_bounded_lock_there_is_a_way_forward: assert_a_way_forward(queue_lock::<Bounded>);
    every_state_of_the_work_conserving_lock_has_a_way_forward:
        assert_a_way_forward(queue_lock::<WorkConserving>);
    every_state_of_the_owner_yielding_lock_has_a_way_forward: assert_a_way_forward(owner_yield);
    every_state_of_the_restricted_lock_has_a_way_forward: assert_a_way_forward(gcr);
    /// Any wait may end with an error, at any time.
    every_state_of_the_lock_that_can_fail_has_a_way_forward: assert_a_way_forward(rqspinlock);
}

/// A CPU that is sent away asks anew.
#[test]
fn a_waiter_of_the_lock_that_can_fail_is_overtaken() {
    let graph = rqspinlock(BESIDE_ONE);
    let any = graph.overtaking("CPU 0 is overtaken", queues, |_| true);
    assert!(readme("RqSpinLock").starts_with(in_words(any, 1)));
}

/// States that four CPUs reach which take a lock once each, up to `LIVENESS_MOST` of them.
fn visit_four<D: Domain, L: Lock<D>>(domain: fn(Cpus) -> D, lock: fn() -> L) {
    let asked = env::var("LIVENESS_MOST").map(|most| most.parse().expect("a number"));
    explore(FOUR_ONCE, domain, lock(), Some(asked.unwrap_or(100_000)));
}

/// The one lock of which four CPUs do not come to too many states.
#[test]
fn four_cpus_with_the_lock_of_2015() {
    if deeper() {
        queue_lock::<V16>(FOUR_ONCE).assert_a_way_forward();
    } else {
        visit_four(QSpinDomain::<Cpus, 4, 4>::new, QSpinLock::<V16, Whole>::new);
    }
}

tests! {
    four_cpus_with_todays_lock: visit_four(QSpinDomain::<Cpus, 4, 4>::new, QSpinLock::<Pv, Whole>::new);
    four_cpus_with_the_work_conserving_lock:
        visit_four(QSpinDomain::<Cpus, 4, 4>::new, QSpinLock::<WorkConserving, Whole>::new);
    four_cpus_with_the_restricted_lock: visit_four(GcrDomain::<Cpus, 4>::new, Gcr::new);
    four_cpus_with_the_owner_yielding_lock: visit_four(OwnerYieldDomain::<Cpus, 4>::new, OwnerYield::new);
}

/// A head that is preempted while it forbids stealing (D2): no other CPU gets the lock, although it is free.
#[test]
fn a_free_lock_may_wait_for_a_head_that_forbids_stealing() {
    for (lock, bit) in [
        (queue_lock::<Pv> as fn(_) -> _, PENDING),
        (queue_lock::<WorkConserving>, PENDING),
        (owner_yield, MUST_QUEUE),
    ] {
        let graph = lock(BESIDE_ONE);
        let state = graph.free_but_for(0).expect("CPU 0 can be such a head");
        let way = graph.way_to(state);
        println!("free, and nobody gets it but CPU 0:\n{}", graph.tell(&way));
        assert!(way.iter().any(|edge| edge.cpu == 0 && insists(edge)) && graph.word(state) & bit != 0);
    }
}

#[test]
fn who_queues_for_the_lock_of_2015_is_overtaken_by_nobody() {
    // The CPUs that were in the queue before it.
    for (rounds, ahead) in [(BESIDE_ONE, 0), (THREE_ONCE, 1), (BESIDE_TWO, 2)] {
        let graph = queue_lock::<V16>(rounds);
        assert_eq!(graph.overtaking("served before CPU 0", queues, |_| true), Some(ahead));
        assert_eq!(graph.starvation(), None);
    }
    assert!(readme("QSpinLock<V16>").starts_with("never"));
    assert_eq!(page("how often a CPU in the queue is overtaken", "`qspinlock-v16`"), "never");
}

/// Overtaking has no bound, not even if everybody goes on; until the head forbids it, and then as the documents say.
fn assert_overtaking(lock: fn(Rounds) -> Graph, bit: u32, kind: &str, name: &str) {
    for (rounds, others) in [(BESIDE_ONE, 1), (BESIDE_TWO, 2)] {
        if others == 2 && !deeper() {
            continue;
        }
        let graph = lock(rounds);
        let any = graph.overtaking("CPU 0 is overtaken", queues, |_| true);
        let starves = graph.starvation();
        if let Some(starves) = starves {
            println!("from here it starves:\n{}", graph.tell(&graph.way_to(starves)));
        }
        let insists_still = |state| graph.word(state) & bit != 0;
        let insisting = graph.overtaking("although it insists", insists, insists_still);
        let (any, insisting) = (in_words(any, others), in_words(insisting, others));
        let readme = readme(kind);
        assert!(readme.starts_with(any), "{kind} is overtaken {any}; README.md: {readme}");
        let promise = format!("while its head insists, {insisting}");
        assert!(readme.contains(&promise), "{kind}: {promise}; README.md: {readme}");
        assert_eq!(page("how often a CPU in the queue is overtaken", name), any);
        let keeps_running = if starves.is_some() { "without bound" } else { "never" };
        assert_eq!(page("the same if every CPU keeps running", name), keeps_running);
        assert_eq!(page("while its head insists", name), insisting);
    }
}

tests! {
    no_cpu_overtakes_a_spinning_head:
        assert_overtaking(queue_lock::<Pv>, PENDING, "QSpinLock<Pv>", "`qspinlock`, pv");
    no_cpu_overtakes_an_insisting_work_conserving_head:
        assert_overtaking(queue_lock::<WorkConserving>, PENDING, "QSpinLock<WorkConserving>", "`qspinlock-wc`");
    no_cpu_overtakes_an_insisting_head_of_the_owner_yielding_lock:
        assert_overtaking(owner_yield, MUST_QUEUE, "OwnerYield", "`owner-yield`");
}

/// Of `gcr`: the first in the queue sleeps, or is about to; and how often a CPU of the model releases before it lets that one in.
const SLEEPS: u32 = 1 << 8;
const APPROVED: u32 = 1 << 9;
const PROMOTE: u32 = 2;

/// Racing CPUs overtake each other, and the queue. How many sections of others fit between the moment at which the
/// first in the queue is about to sleep and the one at which it is let in, is what the documents state for the real
/// constants.
#[test]
fn the_first_of_a_restricted_queue_is_let_in_within_its_bound() {
    for (rounds, others) in [(BESIDE_ONE, 1), (BESIDE_TWO, 2)] {
        if others == 2 && !deeper() {
            continue;
        }
        let graph = gcr(rounds);
        let any = graph.overtaking("CPU 0 is overtaken", queues, |_| true);
        let asleep = |state| graph.word(state) & (SLEEPS | APPROVED) == SLEEPS;
        let sleeps = |edge: &explorer::Edge| edge.passes(Point::HeadHashed) && asleep(edge.to);
        let until_let_in = graph.overtaking("while it sleeps", sleeps, asleep);
        assert!(until_let_in.is_some_and(|most| most <= others * (PROMOTE - 1)), "{until_let_in:?}");
        let readme = readme("Gcr");
        assert!(readme.starts_with(in_words(any, others)), "README.md: {readme}");
        assert!(readme.contains("at one of 64 releases"), "README.md: {readme}");
        assert_eq!(page("how often a CPU in the queue is overtaken", "`gcr`"), in_words(any, others));
    }
}

// Statements of the README of the locks and of `docs/locks.md` on overtaking, to be compared with the searches' results.

fn read(path: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn cells(row: &str) -> Vec<&str> {
    row.trim_matches('|').split('|').map(str::trim).collect()
}

/// The README's cell on overtaking for a type of lock.
fn readme(kind: &str) -> String {
    let text = read("README.md");
    let (_, table) = text.split_once("| type | overtaken |").expect("the table of what each lock guarantees");
    let mut rows =
        table.lines().take_while(|line| line.starts_with('|') || line.contains("cycles")).map(cells);
    let of_kind = rows.find(|cells| cells[0].contains(&format!("`{kind}`")));
    of_kind.unwrap_or_else(|| panic!("the README has no row for {kind}"))[1].to_owned()
}

/// The cell of `docs/locks.md` in the row that begins so, for a lock by its name on the command line.
fn page(row: &str, lock: &str) -> String {
    let text = read("../../docs/locks.md");
    let mut column = None;
    for line in text.lines().filter(|line| line.starts_with('|')) {
        let cells = cells(line);
        if cells[0].is_empty() {
            column = cells.iter().position(|cell| *cell == lock);
        } else if cells[0].starts_with(row) {
            let column =
                column.unwrap_or_else(|| panic!("the table with \"{row}\" has no column for {lock}"));
            return cells[column].into();
        }
    }
    panic!("docs/locks.md has no row \"{row}\"");
}

/// A bound in the words of both documents, with `others` other CPUs.
fn in_words(most: Option<u32>, others: u32) -> &'static str {
    match most {
        None => "without bound",
        Some(0) => "never",
        Some(most) if most == others => "once by each other CPU",
        Some(most) => panic!("neither document has words for {most} beside {others} CPUs"),
    }
}
