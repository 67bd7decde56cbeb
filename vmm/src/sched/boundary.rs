//! A runner's way from one vCPU to the next when a slice ends: counted, and timed for who looks.
//!
//! The runner, its timer and its signal are real. The vCPUs are made up: each sleeps until its runner is kicked.

use std::cell::Cell;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::guest::memory::{LARGE_PAGE, Memory};
use crate::guest::tsc::GuestTsc;
use crate::host::affinity;
use crate::host::clock::Clock;
use crate::host::counted::{Counted, by_this_thread};
use crate::host::signal;
use crate::host::time::TscRate;
use crate::image::file::Image;
use crate::machine::exits::Exit;
use crate::machine::vcpu::{MadeUpVcpu, Vcpu};
use crate::observe::notes::Notes;
use crate::sched::guest_run::GuestRun;
use crate::sched::hints::Watcher;
use crate::sched::shared::Shared;
use crate::sched::{Rules, Sched, Scheduler, Share};

const VCPUS: u32 = 16;
const SLICE: Duration = Duration::from_micros(500);
/// The first boundaries are not like the others: vCPUs start.
const FIRST: usize = 2 * VCPUS as usize;
const BOUNDARIES: usize = 200;

/// From one vCPU's coming out to the next one's way in.
#[derive(Clone, Copy)]
struct Boundary {
    counted: Counted,
    took: Duration,
}

thread_local! {
    static OUT: Cell<Option<(Counted, Instant)>> = const { Cell::new(None) };
}

/// Boundaries between slices on one pCPU, after the first.
fn boundaries() -> Vec<Boundary> {
    let found = Arc::new(Mutex::new(Vec::<Boundary>::with_capacity(2 * BOUNDARIES)));
    let (notes, clock, watcher) = (Notes::none(), Clock::Host, Watcher::nothing("made up"));
    let memory = Memory::new(LARGE_PAGE * 3, VCPUS, 0, 0).expect("a few pages");
    // All have started: before that slices are shorter.
    memory.control().started.store(VCPUS, std::sync::atomic::Ordering::Relaxed);
    let (image, tsc) = (Image::embedded(), GuestTsc::new(TscRate::of_khz(1_000_000), 0));
    let mut guest =
        GuestRun::new(VCPUS, GuestTsc::new(TscRate::of_khz(1_000_000), 0), &clock, &watcher, &notes);
    guest.shared = Some(Shared::new(&memory, &image, 1, &tsc, (true, true)));
    let guests = [guest];
    let vcpu = |id: u32| {
        let (found, mut booted) = (Arc::clone(&found), id > 0);
        let run = move || {
            let (counted, now) = (by_this_thread(), Instant::now());
            if let Some((before, since)) = OUT.get() {
                let boundary = Boundary { counted: counted - before, took: now - since };
                found.lock().expect("nobody panics with it").push(boundary);
            }
            if !std::mem::replace(&mut booted, true) {
                return Ok(Exit::Booted);
            }
            signal::await_kick(Duration::from_secs(20).as_nanos() as u64);
            OUT.set(Some((by_this_thread(), Instant::now())));
            Ok(Exit::Interrupted)
        };
        Vcpu::from(MadeUpVcpu::new(id, run))
    };
    let vcpus = vec![(0..VCPUS).map(vcpu).collect()];
    let rules = Rules {
        sched: Sched::Vmm,
        share: Share::Vcpu,
        slice: SLICE,
        grace: Duration::ZERO,
        kick_yields: false,
    };
    let cpus = [affinity::allowed_cpus()[0]];
    let scheduler = Scheduler::new(rules, &cpus, &guests, vcpus, None);
    std::thread::scope(|scope| {
        scheduler.start(scope, &cpus);
        let began = Instant::now();
        while found.lock().expect("as above").len() < FIRST + BOUNDARIES
            && began.elapsed() < Duration::from_secs(20)
        {
            std::thread::sleep(Duration::from_millis(10));
        }
        guests.iter().for_each(GuestRun::stop);
        scheduler.interrupt();
    });
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

/// The count that most boundaries have: a late timer costs one of them more.
fn usual(boundaries: &[Boundary], of: impl Fn(Counted) -> u64) -> u64 {
    let mut counts: Vec<_> = boundaries.iter().map(|boundary| of(boundary.counted)).collect();
    counts.sort_unstable();
    counts[counts.len() / 2]
}

#[test]
fn a_slice_boundary_locks_reads_clocks_and_allocates_so_often() {
    let found = boundaries();
    let usual = Counted {
        mutexes: usual(&found, |counted| counted.mutexes),
        clocks: usual(&found, |counted| counted.clocks),
        counters: usual(&found, |counted| counted.counters),
        allocations: usual(&found, |counted| counted.allocations),
    };
    let allocations = found.iter().map(|boundary| boundary.counted.allocations).sum::<u64>();
    let mut took: Vec<_> = found.iter().map(|boundary| boundary.took).collect();
    took.sort_unstable();
    let median = took[took.len() / 2];
    println!("a slice boundary takes {median:?}: {usual:?}; {allocations} allocations in {}", found.len());
    assert_eq!(usual, Counted { mutexes: 1, clocks: 2, counters: 6, allocations: 0 });
}
