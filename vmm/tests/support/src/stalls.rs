//! A witness of the emulated machine of `just test-nested`, whose CPUs stand still now and then: then a test may fail though
//! nothing is wrong with what it tests. A thread on each CPU beats, and all look at each other's beats.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};

const BEAT: Duration = Duration::from_millis(50);
/// A CPU without a beat for this long stands still: many times what the threads of a test make it wait.
const STILL: Duration = Duration::from_millis(500);

/// Starts to watch, in an emulated machine; the threads end with the process.
pub fn watch() {
    if std::env::var_os("HALTKICK_NESTED").is_none() {
        return;
    }
    let began = Instant::now();
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let beats: Arc<[AtomicU64]> = (0..cpus).map(|_| AtomicU64::new(u64::MAX)).collect();
    for cpu in 0..cpus {
        let beats = Arc::clone(&beats);
        std::thread::spawn(move || {
            let mut set = CpuSet::new();
            set.set(cpu);
            if sched_setaffinity(None, &set).is_ok() {
                beat(cpu, &beats, began);
            }
        });
    }
}

fn beat(cpu: usize, beats: &[AtomicU64], began: Instant) {
    let mut told = vec![0; beats.len()];
    loop {
        let now = began.elapsed().as_millis() as u64;
        for (other, (beat, told)) in beats.iter().zip(&mut told).enumerate() {
            // Relaxed: nothing is read on the strength of it. Before the first beat there is nothing to miss.
            let last = beat.load(Ordering::Relaxed);
            let still = now.saturating_sub(last);
            // Once for each time: by itself when it is over, if no other CPU has seen it.
            if last != *told && Duration::from_millis(still) >= STILL {
                *told = last;
                tell(other, still);
            }
        }
        beats[cpu].store(now, Ordering::Relaxed);
        std::thread::sleep(BEAT);
    }
}

/// In one piece, between the lines of the tests; the suite understands it.
fn tell(cpu: usize, milliseconds: u64) {
    let line = format!(
        "{{ \"type\": \"machine\", \"event\": \"still\", \"cpu\": {cpu}, \"ms\": {milliseconds} }}\n"
    );
    // There is no one to tell if that fails.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
