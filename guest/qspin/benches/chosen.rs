//! Cost of asking at run time whether a lock is native or paravirtual, by a byte (`choice!`) and by code that is
//! patched (`patched_choice!`, x86-64): `lock` and `unlock`, uncontended.
//!
//! Each form in turn, in rounds of a fraction of a second; printed is the median of the rounds, and its ratio to that of the
//! same form without a choice. (Nothing here fails: figures of a busy machine are read by people.)

use std::{hint::black_box, time::Instant};

use haltkick_qspin::*;
use haltkick_testing::write_code;

const ROUNDS: usize = 31;
const PAIRS: u32 = 2_000_000;

choice! {
    NativeHere;
    ParavirtualHere;
}
patched_choice! {
    NativeByPatch;
    ParavirtualByPatch;
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

    fn ticks(&self, nanoseconds: u64) -> u64 {
        nanoseconds
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

/// One form of the lock: what it is called, its pair, and what its ratio is to.
type Row = (&'static str, fn() -> f64, Option<usize>);

fn timed<M: Mode>() -> f64 {
    pair(&CachePadded::new(QSpinLock::<M>::new()))
}

const ROWS: [Row; 8] = [
    ("native", timed::<Native>, None),
    ("native, once more", timed::<Native>, Some(0)),
    ("native, by a byte", timed::<Chosen<NativeHere>>, Some(0)),
    ("native, by patched code", timed::<Chosen<NativeByPatch>>, Some(0)),
    ("paravirtual", timed::<Pv>, None),
    ("paravirtual, once more", timed::<Pv>, Some(4)),
    ("paravirtual, by a byte", timed::<Chosen<ParavirtualHere>>, Some(4)),
    ("paravirtual, by patched code", timed::<Chosen<ParavirtualByPatch>>, Some(4)),
];

#[expect(unsafe_code, reason = "code is patched")]
fn main() {
    NativeHere::choose(false).expect("the first choice");
    ParavirtualHere::choose(true).expect("the first choice");
    // SAFETY: there is no other thread, and no lock yet.
    unsafe { ParavirtualByPatch::make_paravirtual(|place, jump| write_code(place, jump)) };
    let mut times = ROWS.map(|_| Vec::new());
    for _ in 0..ROUNDS {
        times.iter_mut().zip(ROWS).for_each(|(times, (_, pair, _))| times.push(pair()));
    }
    let times = times.each_mut().map(|times| median(times));
    println!("{:30}     ns   ratio", "lock and unlock, uncontended");
    for ((name, _, base), time) in ROWS.iter().zip(times) {
        let ratio = base.map(|base| format!("   {:.3}", time / times[base])).unwrap_or_default();
        println!("{name:30} {time:6.2}{ratio}");
    }
    println!("(each over the form compiled in; that form once more says how far to trust the others)");
}
