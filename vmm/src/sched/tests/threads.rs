//! vCPUs that are made up, on the threads of either scheduler: how they start, what a slice boundary costs, and what one that fails
//! takes with it.

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::guest::memory::{LARGE_PAGE, Memory};
use crate::host::allocator::counted::by_this_thread;
use crate::host::clock::Clock;
use crate::host::{cpus, signal};
use crate::machine::vcpu::{Exit, Vcpu};
use crate::observe::Where;
use crate::sched::guest_run::GuestRun;
use crate::sched::starts::Starts;
use crate::sched::{Rules, Sched, Scheduler, on_threads};

use super::Ground;

const PATIENCE: Duration = Duration::from_secs(20);

/// Runs `vcpus` of `guests` on one pCPU until `until` has seen enough. The scheduler afterwards, and whether that came about.
fn run_until<'a>(
    rules: Rules,
    guests: &'a [GuestRun<'a>],
    vcpus: Vec<Vec<Vcpu>>,
    until: impl Fn(&dyn Scheduler) -> bool,
) -> (Box<dyn Scheduler + 'a>, bool) {
    let cpus = [cpus::allowed_cpus()[0]];
    let scheduler = on_threads(rules, &cpus, guests, vcpus, None);
    let came_about = std::thread::scope(|scope| {
        scheduler.start(scope, &cpus);
        let began = Instant::now();
        while !until(&*scheduler) && began.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        let came_about = until(&*scheduler);
        guests.iter().for_each(GuestRun::stop);
        scheduler.interrupt();
        came_about
    });
    (scheduler, came_about)
}

/// Keeps its CPU busy: a thread that runs vCPUs has no leave to sleep of its own accord.
fn spin(time: Duration) {
    let began = Instant::now();
    while began.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// vCPUs that say when they have started.
const STARTING: u32 = 24;

/// Counts of what vCPUs that start have done so far.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// They are in the midst of their start.
    starting: u32,
    /// The most that were at the same time.
    most_starting: u32,
    said: u32,
    /// They have gone on after that.
    went_on: u32,
    /// The least number that had said so when one went on.
    least_said: u32,
}

/// How a vCPU starts.
#[derive(Clone, Copy, PartialEq)]
enum Manner {
    /// In several turns, and says so once.
    Plain,
    /// It says so again and again.
    SaysItAgain,
    /// It never does.
    Silent,
    /// It leaves instead.
    Leaves,
}

/// The vCPU `id`: number 0 boots first, each takes a moment to start.
fn vcpu(id: u32, manner: Manner, seen: &Arc<Mutex<Seen>>) -> Vcpu {
    let (seen, mut step) = (Arc::clone(seen), if id == 0 { 0 } else { 1 });
    let run = move || {
        spin(Duration::from_micros(50));
        step += 1;
        let mut seen = seen.lock().expect("nobody panics with it");
        Ok(match (step, manner) {
            (1, _) => Exit::Booted,
            (2, _) => {
                seen.starting += 1;
                seen.most_starting = seen.most_starting.max(seen.starting);
                // Out and in again, as if its slice had ended.
                Exit::Interrupted
            }
            (3, Manner::Leaves) => Exit::Left,
            (_, Manner::Silent) => Exit::Yield(None),
            (3, _) => {
                seen.starting -= 1;
                seen.said += 1;
                Exit::Started
            }
            _ => {
                if step == 4 {
                    seen.least_said = seen.least_said.min(seen.said);
                    seen.went_on += 1;
                }
                if manner == Manner::SaysItAgain && step % 2 == 0 { Exit::Started } else { Exit::Yield(None) }
            }
        })
    };
    Vcpu::new(id, run)
}

/// Runs a guest whose last vCPU has this manner until `until` says so. What was seen, whether that came about, and where the vCPUs were.
fn start(sched: Sched, manner: Manner, until: impl Fn(Seen) -> bool) -> (Seen, bool, Vec<Where>) {
    let ground = Ground::new(Clock::Host);
    let memory = Memory::new(LARGE_PAGE * 3, STARTING, 0, 0).expect("a few pages");
    let mut guest = ground.guest_of_our_own(&memory, sched == Sched::Vmm);
    guest.starts = Starts::said_by(STARTING);
    let guests = [guest];
    let seen = Arc::new(Mutex::new(Seen { least_said: u32::MAX, ..Seen::default() }));
    let manner_of = |id| if id + 1 == STARTING { manner } else { Manner::Plain };
    let vcpus = vec![(0..STARTING).map(|id| vcpu(id, manner_of(id), &seen)).collect()];
    // No slice ends here, however busy the host is.
    let rules = Rules { sched, slice: Duration::from_secs(100), ..Rules::default() };
    let look = || *seen.lock().expect("as above");
    let (scheduler, came_about) = run_until(rules, &guests, vcpus, |_| until(look()));
    let finished = scheduler.finish();
    assert_eq!(finished.len(), STARTING as usize, "vCPUs are missing");
    (look(), came_about, finished.iter().map(|vcpu| vcpu.whereabouts.at).collect())
}

#[test]
fn few_vcpus_start_at_a_time_and_none_works_before_all_have() {
    for sched in [Sched::Vmm, Sched::Host] {
        // One that leaves before it starts keeps no other waiting. It counts as starting for good.
        for (manner, all, most) in [
            (Manner::Plain, STARTING, 2),
            (Manner::SaysItAgain, STARTING, 2),
            (Manner::Leaves, STARTING - 1, 3),
        ] {
            let (seen, all_went_on, places) = start(sched, manner, |seen| seen.went_on == all);
            assert!(all_went_on && seen.most_starting <= most, "{sched:?}: {seen:?}");
            assert_eq!(seen.least_said, all, "{sched:?}");
            assert!(manner != Manner::Leaves || places.last() == Some(&Where::Left), "{sched:?}");
        }
    }
}

#[test]
fn a_guest_with_a_silent_vcpu_waits_and_ends_when_told() {
    for sched in [Sched::Vmm, Sched::Host] {
        let all_others_said = |seen: Seen| seen.said == STARTING - 1;
        let (seen, came_about, places) = start(sched, Manner::Silent, all_others_said);
        assert!(came_about, "{sched:?}: {seen:?}");
        assert_eq!(seen.went_on, 0, "{sched:?}");
        assert!(places.iter().all(|at| *at != Where::NotStarted), "{sched:?}: {places:?}");
        // Most wait for their turns to start.
        start(sched, Manner::Silent, |_| true);
    }
}

const VCPUS: u32 = 16;
const SLICE: Duration = Duration::from_micros(500);
/// The first boundaries are not like the others: vCPUs start.
const FIRST: usize = 2 * VCPUS as usize;
const BOUNDARIES: usize = 200;

thread_local! {
    static OUT: Cell<Option<([u64; 4], Instant)>> = const { Cell::new(None) };
}

/// Boundaries between slices on one pCPU, after the first: a runner's way from one vCPU to the next, counted, and timed for who looks.
/// The runner, its timer and its signal are real. Each vCPU sleeps until its runner is kicked.
fn boundaries() -> Vec<([u64; 4], Duration)> {
    let found = Arc::new(Mutex::new(Vec::with_capacity(2 * BOUNDARIES)));
    let ground = Ground::new(Clock::Host);
    let memory = Memory::new(LARGE_PAGE * 3, VCPUS, 0, 0).expect("a few pages");
    // All have started: before that slices are shorter.
    memory.control().started.store(VCPUS, Ordering::Relaxed);
    let guests = [ground.guest_of_our_own(&memory, true)];
    let vcpu = |id: u32| {
        let (found, mut booted) = (Arc::clone(&found), id > 0);
        let run = move || {
            let (counted, now) = (by_this_thread(), Instant::now());
            if let Some((before, since)) = OUT.get() {
                let counted = std::array::from_fn(|one| counted[one] - before[one]);
                found.lock().expect("nobody panics with it").push((counted, now - since));
            }
            if !std::mem::replace(&mut booted, true) {
                return Ok(Exit::Booted);
            }
            signal::await_kick(PATIENCE.as_nanos() as u64);
            OUT.set(Some((by_this_thread(), Instant::now())));
            Ok(Exit::Interrupted)
        };
        Vcpu::new(id, run)
    };
    let vcpus = vec![(0..VCPUS).map(vcpu).collect()];
    let rules = Rules { slice: SLICE, ..Rules::default() };
    let enough = || found.lock().expect("as above").len() >= FIRST + BOUNDARIES;
    run_until(rules, &guests, vcpus, |_| enough());
    let mut found = std::mem::take(&mut *found.lock().expect("as above"));
    found.drain(..FIRST.min(found.len()));
    assert!(
        found.len() >= BOUNDARIES / 2,
        "only {} slices have ended: {:?}",
        found.len(),
        guests[0].take_failure()
    );
    found
}

#[test]
fn a_slice_boundary_locks_reads_clocks_and_allocates_so_often() {
    let found = boundaries();
    // Medians: a late timer costs one of the boundaries more.
    let usual: [u64; 4] = std::array::from_fn(|one| {
        let mut counts: Vec<_> = found.iter().map(|(counted, _)| counted[one]).collect();
        counts.sort_unstable();
        counts[counts.len() / 2]
    });
    let allocations = found.iter().map(|(counted, _)| counted[3]).sum::<u64>();
    let mut took: Vec<_> = found.iter().map(|(_, took)| *took).collect();
    took.sort_unstable();
    let (median, number) = (took[took.len() / 2], found.len());
    println!("a slice boundary takes {median:?}: {usual:?}; {allocations} allocations in {number}");
    assert_eq!(usual, [1, 2, 6, 0], "mutexes, readings of clocks and of the counter, allocations");
}

#[test]
fn a_vcpu_that_cannot_run_ends_only_its_own_guest() {
    for sched in [Sched::Vmm, Sched::Host] {
        let ground = Ground::new(Clock::Host);
        let guest = |index: usize| {
            let mut guest = ground.guest(1);
            (guest.index, guest.first_vcpu) = (index, index as u32);
            guest
        };
        let guests = [guest(0), guest(1)];
        let runs = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&runs);
        let good = move || {
            counted.fetch_add(1, Ordering::Relaxed);
            spin(Duration::from_micros(100));
            Ok(Exit::Yield(None))
        };
        let bad = || Err(io::Error::from_raw_os_error(libc::EFAULT));
        let vcpus = vec![vec![Vcpu::new(0, good)], vec![Vcpu::new(0, bad)]];
        let enough = |scheduler: &dyn Scheduler| {
            guests[1].failed() && runs.load(Ordering::Relaxed) > 100 && !scheduler.is_broken()
        };
        let (_, seen) = run_until(Rules { sched, ..Rules::default() }, &guests, vcpus, enough);
        let failures: Vec<_> = guests.iter().map(GuestRun::take_failure).collect();
        assert!(seen, "{sched:?}: the other guest does not go on: {failures:?}");
        assert!(failures[0].is_none(), "{sched:?}: {failures:?}");
        let failure = failures[1].as_ref().expect("it failed").to_string();
        assert!(failure.contains("run vCPU 0 at 0x1000") && failure.contains("os error 14"), "{failure}");
    }
}
