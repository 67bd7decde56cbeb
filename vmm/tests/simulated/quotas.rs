//! Guests with a quota of CPU time.

use std::time::Duration;

use haltkick_vmm::{Bandwidth, Outcome, Quota, Run, Throttled};
use support::{Settings, simulated, start_guests};

use super::{done, us};

const WINDOW: Duration = us(20_000);

/// Two vCPUs on two pCPUs that may run for half of the time, a millisecond in all.
const HALF: Bandwidth = Bandwidth { run: us(1000), period: us(1000), burst: Duration::ZERO };

fn two(lock: &str, quota: Option<Bandwidth>) -> Run {
    simulated("skylake-8s", 2, 1)
        .lock(lock)
        .pv(false)
        .slice(us(100))
        .window(WINDOW)
        .quota(quota.map(Quota::Own))
}

fn throttled(outcome: &Outcome) -> Throttled {
    outcome.throttled.expect("a guest with a quota")
}

/// Its work over that of `whole`.
fn share(of: &Outcome, whole: &Outcome) -> f64 {
    of.acquisitions() as f64 / whole.acquisitions() as f64
}

#[test]
fn a_guest_does_as_much_work_as_its_quota_allows() {
    let whole = done(&two("none", None));
    assert_eq!(whole.throttled, None);
    for (run_us, period_us) in [(1000, 1000), (200, 1000), (3000, 2000)] {
        let quota = Bandwidth { run: us(run_us), period: us(period_us), burst: Duration::ZERO };
        let some = done(&two("none", Some(quota)));
        let allowed = run_us as f64 / (2 * period_us) as f64;
        let found = share(&some, &whole);
        // Each portion ends with an exit.
        assert!((0.9..1.02).contains(&(found / allowed)), "{quota:?}: {found}, not {allowed}");
        // Each vCPU is kept once a period, for the rest of it.
        let periods = (WINDOW.as_micros() as u64) / period_us;
        let Throttled { times, ns, .. } = throttled(&some);
        assert!(times.abs_diff(2 * periods) <= 4, "{times} times in {periods} periods");
        // But for the time in which its pCPU wakes up from a deep sleep.
        let (kept, idle) = (ns as f64 / (2 * WINDOW.as_nanos()) as f64, 1.0 - allowed);
        assert!(kept < idle + 0.02 && kept > idle * 0.8, "{quota:?}: kept for {kept} of the time");
    }
}

#[test]
fn vcpus_that_wait_for_their_turns_share_one_purse() {
    let four = |quota: Option<Bandwidth>| {
        simulated("skylake-8s", 2, 2)
            .lock("none")
            .pv(false)
            .slice(us(100))
            .window(WINDOW)
            .quota(quota.map(Quota::Own))
    };
    let (whole, half) = (done(&four(None)), done(&four(Some(HALF))));
    assert!((share(&half, &whole) - 0.5).abs() < 0.03, "{}", share(&half, &whole));
    let each: Vec<u64> = half.vcpus.iter().filter_map(|vcpu| vcpu.run_ns).collect();
    let (least, most) = (each.iter().min().unwrap(), each.iter().max().unwrap());
    assert!(most - least < 500_000, "{each:?}");
}

#[test]
fn a_holder_that_is_throttled_stops_all_others_of_its_guest() {
    let run = two("ticket", Some(Bandwidth { run: us(500), ..HALF })).hold(us(20)).think(us(5));
    let Throttled { times, holders, .. } = throttled(&done(&run));
    // A vCPU of two holds the lock nearly always.
    assert!(holders * 5 > times && holders < times, "{holders} of {times}");
    assert_eq!(format!("{:#?}", done(&run)), format!("{:#?}", done(&run)), "twice the same");
}

#[test]
fn a_guest_without_a_quota_gets_what_another_one_leaves() {
    let guest = |name: &str, quota| two("none", quota).name(name);
    let both = guest("whole", None).beside([guest("half", Some(Bandwidth { run: us(400), ..HALF }))]);
    let [whole, less] = <[_; 2]>::try_from(start_guests(&both).expect("they run")).expect("two");
    let run_ns = |ended: haltkick_vmm::Ended| {
        let outcome = ended.outcome().expect("an outcome");
        outcome.vcpus.iter().filter_map(|vcpu| vcpu.run_ns).sum::<u64>() as f64 / WINDOW.as_nanos() as f64
    };
    let (whole, less) = (run_ns(whole), run_ns(less));
    assert!((less - 0.4).abs() < 0.03 && whole > 1.5, "{whole} and {less} of two pCPUs");
}
