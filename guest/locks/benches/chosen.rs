//! What it costs that a lock looks at run time whether it is native or paravirtual: `lock` and `unlock`, uncontended.
//!
//! Each form in turn, in rounds of a fraction of a second; printed is the median of the rounds, and its ratio to that of the
//! same form without a choice. (Nothing here fails: figures of a busy machine are read by people.)

use std::{hint::black_box, time::Instant};

use haltkick_locks::*;

const ROUNDS: usize = 31;
const PAIRS: u32 = 2_000_000;

choice! {
    NativeHere;
    ParavirtualHere;
}

/// One CPU, which never waits.
struct Alone;

impl Platform for Alone {
    fn cpu(&self) -> usize {
        0
    }

    fn pause(&self) {}

    fn now(&self) -> u64 {
        0
    }

    fn spin_threshold(&self) -> u64 {
        0
    }

    fn wait(&self, _: impl Fn() -> bool) {}

    fn kick(&self, _: usize) {}

    fn is_preempted(&self, _: usize) -> bool {
        false
    }

    fn yield_to(&self, _: Option<usize>) {}

    fn count(&self, _: Event, _: u64) {}
}

static QUEUES: QSpinDomain<Alone, 1> = QSpinDomain::new(Alone);

/// Nanoseconds for one `lock` and one `unlock`.
#[inline(never)]
fn pair<M: Mode>(lock: &CachePadded<QSpinLock<M>>) -> f64 {
    let began = Instant::now();
    for _ in 0..PAIRS {
        let lock = black_box(lock);
        lock.lock(&QUEUES);
        lock.unlock(&QUEUES, ());
    }
    began.elapsed().as_secs_f64() * 1e9 / f64::from(PAIRS)
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() {
    NativeHere::choose(false).expect("the first choice");
    ParavirtualHere::choose(true).expect("the first choice");
    let native = CachePadded::new(QSpinLock::<Native>::new());
    let again = CachePadded::new(QSpinLock::<Native>::new());
    let pv = CachePadded::new(QSpinLock::<Pv>::new());
    let chosen_native = CachePadded::new(QSpinLock::<Chosen<NativeHere>>::new());
    let chosen_pv = CachePadded::new(QSpinLock::<Chosen<ParavirtualHere>>::new());
    let mut times = [const { Vec::new() }; 5];
    for _ in 0..ROUNDS {
        let round = [pair(&native), pair(&again), pair(&chosen_native), pair(&pv), pair(&chosen_pv)];
        times.iter_mut().zip(round).for_each(|(times, time)| times.push(time));
    }
    let [native, again, chosen_native, pv, chosen_pv] = times.each_mut().map(|times| median(times));
    println!("lock and unlock, uncontended   ns    ratio");
    println!("native                      {native:6.2}");
    println!(
        "native, once more           {again:6.2}   {:.3} (to itself: how far to trust the others)",
        again / native
    );
    println!("native, by choice           {chosen_native:6.2}   {:.3}", chosen_native / native);
    println!("paravirtual                 {pv:6.2}");
    println!("paravirtual, by choice      {chosen_pv:6.2}   {:.3}", chosen_pv / pv);
}
