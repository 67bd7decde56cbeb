//! How vCPUs start that say when they have: made up, under either scheduler, on one pCPU.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::guest::memory::{LARGE_PAGE, Memory};
use crate::guest::tsc::GuestTsc;
use crate::host::affinity;
use crate::host::clock::Clock;
use crate::host::time::TscRate;
use crate::image::file::Image;
use crate::machine::exits::Exit;
use crate::machine::vcpu::{MadeUpVcpu, Vcpu};
use crate::observe::notes::Notes;
use crate::observe::whereabouts::Where;
use crate::sched::guest_run::GuestRun;
use crate::sched::hints::Watcher;
use crate::sched::shared::Shared;
use crate::sched::starts::Starts;
use crate::sched::{Rules, Sched, Scheduler};

const VCPUS: u32 = 24;
const PATIENCE: Duration = Duration::from_secs(20);

/// Counts of what vCPUs have done so far.
#[derive(Debug, Default)]
struct Seen {
    /// They are in the midst of their start.
    starting: AtomicU32,
    /// The most that were at the same time.
    most_starting: AtomicU32,
    /// They have said that they have started.
    said: AtomicU32,
    /// They have gone on after that.
    went_on: AtomicU32,
    /// The least number that had said so when one went on.
    least_said: AtomicU32,
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
fn vcpu(id: u32, manner: Manner, seen: &Arc<Seen>) -> Vcpu {
    let (seen, mut step) = (Arc::clone(seen), if id == 0 { 0 } else { 1 });
    let run = move || {
        // A thread that runs vCPUs has no leave to sleep of its own accord.
        let began = Instant::now();
        while began.elapsed() < Duration::from_micros(50) {
            std::hint::spin_loop();
        }
        step += 1;
        Ok(match (step, manner) {
            (1, _) => Exit::Booted,
            (2, _) => {
                let starting = seen.starting.fetch_add(1, Ordering::SeqCst) + 1;
                seen.most_starting.fetch_max(starting, Ordering::SeqCst);
                // Out and in again, as if its slice had ended.
                Exit::Interrupted
            }
            (3, Manner::Leaves) => Exit::Left,
            (_, Manner::Silent) => Exit::Yield(None),
            (3, _) => {
                seen.starting.fetch_sub(1, Ordering::SeqCst);
                seen.said.fetch_add(1, Ordering::SeqCst);
                Exit::Started
            }
            _ => {
                if step == 4 {
                    seen.least_said.fetch_min(seen.said.load(Ordering::SeqCst), Ordering::SeqCst);
                    seen.went_on.fetch_add(1, Ordering::SeqCst);
                }
                if manner == Manner::SaysItAgain && step % 2 == 0 { Exit::Started } else { Exit::Yield(None) }
            }
        })
    };
    Vcpu::from(MadeUpVcpu::new(id, run))
}

/// Runs a guest whose last vCPU has this manner until `until` says so. What was seen, whether that came about, and where the vCPUs were.
fn run(sched: Sched, manner: Manner, until: impl Fn(&Seen) -> bool) -> (Arc<Seen>, bool, Vec<Where>) {
    let (notes, clock, watcher) = (Notes::none(), Clock::Host, Watcher::nothing("made up"));
    let memory = Memory::new(LARGE_PAGE * 3, VCPUS, 0, 0).expect("a few pages");
    let (image, tsc) = (Image::embedded(), || GuestTsc::new(TscRate::of_khz(1_000_000), 0));
    let mut guest = GuestRun::new(VCPUS, tsc(), &clock, &watcher, &notes);
    guest.shared = Some(Shared::new(&memory, &image, 1, &tsc(), (true, sched == Sched::Vmm)));
    guest.starts = Starts::said_by(VCPUS);
    let guests = [guest];
    let seen = Arc::new(Seen { least_said: AtomicU32::new(u32::MAX), ..Seen::default() });
    let manner_of = |id| if id + 1 == VCPUS { manner } else { Manner::Plain };
    let vcpus = vec![(0..VCPUS).map(|id| vcpu(id, manner_of(id), &seen)).collect()];
    let cpus = [affinity::allowed_cpus()[0]];
    // No slice ends here, however busy the host is.
    let rules = Rules { sched, slice: Duration::from_secs(100), ..Rules::default() };
    let scheduler = Scheduler::new(rules, &cpus, &guests, vcpus, None);
    let came_about = std::thread::scope(|scope| {
        scheduler.start(scope, &cpus);
        let began = Instant::now();
        while !until(&seen) && began.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        let came_about = until(&seen);
        guests.iter().for_each(GuestRun::stop);
        scheduler.interrupt();
        came_about
    });
    let finished = scheduler.finish();
    assert_eq!(finished.len(), VCPUS as usize, "vCPUs are missing");
    (seen, came_about, finished.iter().map(|vcpu| vcpu.whereabouts.at).collect())
}

fn count(of: &AtomicU32) -> u32 {
    of.load(Ordering::SeqCst)
}

#[test]
fn no_vcpu_works_before_all_have_started() {
    for sched in [Sched::Vmm, Sched::Host] {
        for manner in [Manner::Plain, Manner::SaysItAgain] {
            let (seen, all_went_on, _) = run(sched, manner, |seen| count(&seen.went_on) == VCPUS);
            assert!(all_went_on, "{sched:?}: {seen:?}");
            assert_eq!(count(&seen.least_said), VCPUS, "{sched:?}");
        }
    }
}

#[test]
fn only_a_few_vcpus_start_at_the_same_time() {
    for sched in [Sched::Vmm, Sched::Host] {
        let (seen, all_said, _) = run(sched, Manner::Plain, |seen| count(&seen.said) == VCPUS);
        assert!(all_said && count(&seen.most_starting) <= 2, "{sched:?}: {seen:?}");
    }
}

#[test]
fn a_vcpu_that_leaves_before_it_starts_keeps_no_other_waiting() {
    for sched in [Sched::Vmm, Sched::Host] {
        let (seen, all_went_on, places) =
            run(sched, Manner::Leaves, |seen| count(&seen.went_on) == VCPUS - 1);
        assert!(all_went_on, "{sched:?}: {seen:?}");
        assert_eq!(places.last(), Some(&Where::Left), "{sched:?}");
    }
}

#[test]
fn a_guest_with_a_silent_vcpu_waits_and_ends_when_told() {
    for sched in [Sched::Vmm, Sched::Host] {
        let all_others_said = |seen: &Seen| count(&seen.said) == VCPUS - 1;
        let (seen, came_about, places) = run(sched, Manner::Silent, all_others_said);
        assert!(came_about, "{sched:?}: {seen:?}");
        assert_eq!(count(&seen.went_on), 0, "{sched:?}");
        assert!(places.iter().all(|at| *at != Where::NotStarted), "{sched:?}: {places:?}");
    }
}
