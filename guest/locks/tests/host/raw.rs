//! The raw mutex of `lock_api`, taken by several CPUs.

use std::sync::LazyLock;
use std::time::Duration;

use haltkick_locks::{Home, Mode, Native, Pv, QSpinDomain, RawQSpinLock};
use haltkick_testing::Cpus;
use lock_api::Mutex;

const CPUS: usize = 4;
const ROUNDS: u64 = 500;

static HOST: LazyLock<Cpus> = LazyLock::new(|| Cpus::new(CPUS, Duration::from_micros(5)));

/// The domain of this file's locks.
struct Here;

#[expect(unsafe_code, reason = "the trait's promise is this test's to give")]
// SAFETY: the static has no other name; a thread of `Cpus` is one CPU for as long as it runs, and nothing interrupts it.
unsafe impl Home for Here {
    type Domain = QSpinDomain<Cpus, CPUS>;

    unsafe fn domain() -> &'static Self::Domain {
        static DOMAIN: LazyLock<QSpinDomain<Cpus, CPUS>> = LazyLock::new(|| QSpinDomain::new(HOST.clone()));
        &DOMAIN
    }
}

fn counts_all<M: Mode>(count: &Mutex<RawQSpinLock<Here, M>, u64>) {
    HOST.run(|_| {
        for _ in 0..ROUNDS {
            match count.try_lock() {
                Some(mut free) => *free += 1,
                None => *count.lock() += 1,
            }
        }
    });
    assert!(!count.is_locked());
    HOST.run_some(1, |_| {
        let all = count.lock();
        assert!(*all == CPUS as u64 * ROUNDS && count.is_locked() && count.try_lock().is_none());
    });
    assert!(!count.is_locked(), "a look at it leaves it as it was");
}

#[test]
fn sections_under_a_raw_mutex_exclude_each_other() {
    counts_all::<Pv>(&Mutex::new(0));
    counts_all::<Native>(&Mutex::new(0));
}
