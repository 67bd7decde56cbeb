//! Guests with a quota of CPU time, and guests that come and go.

use std::time::Duration;

use haltkick_vmm::{Bandwidth, Ended, Outcome, Presence, Quota, Run, Throttled};

use support::{Settings, done, run_ns, simulated, start_two, us};

const WINDOW: Duration = us(20_000);

/// Two vCPUs on two pCPUs that may run for half of the time, a millisecond in all.
const HALF: Bandwidth = Bandwidth { run: us(1000), period: us(1000), burst: Duration::ZERO };

/// A vCPU for each of two pCPUs.
fn two(lock: &str) -> Run {
    simulated("skylake-8s", 2, 1).form(lock, false).slice(us(100)).window(WINDOW)
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
    // A window that begins in a period has up to that much more of its work.
    let window = 4 * WINDOW;
    let two = two("none").window(window);
    let whole = done(&two);
    assert_eq!(whole.throttled, None);
    for (run_us, period_us) in [(1000, 1000), (200, 1000), (3000, 2000)] {
        let quota = Bandwidth { run: us(run_us), period: us(period_us), burst: Duration::ZERO };
        let some = done(&two.clone().quota(Quota::Own(quota)));
        let allowed = run_us as f64 / (2 * period_us) as f64;
        let found = share(&some, &whole);
        // Each portion ends with an exit.
        assert!((0.9..1.02).contains(&(found / allowed)), "{quota:?}: {found}, not {allowed}");
        // Each vCPU is kept once a period, for the rest of it.
        let periods = (window.as_micros() as u64) / period_us;
        let Throttled { times, ns, .. } = throttled(&some);
        assert!(times.abs_diff(2 * periods) <= 4, "{times} times in {periods} periods");
        // But for the time in which its pCPU wakes up from a deep sleep.
        let (kept, idle) = (ns as f64 / (2 * window.as_nanos()) as f64, 1.0 - allowed);
        assert!(kept < idle + 0.02 && kept > idle * 0.8, "{quota:?}: kept for {kept} of the time");
    }
}

#[test]
fn vcpus_that_wait_for_their_turns_share_one_purse() {
    let four = two("none").vcpus(4);
    let (whole, half) = (done(&four), done(&four.clone().quota(Quota::Own(HALF))));
    assert!((share(&half, &whole) - 0.5).abs() < 0.03, "{}", share(&half, &whole));
    let each: Vec<u64> = half.vcpus.iter().filter_map(|vcpu| vcpu.run_ns).collect();
    let (least, most) = (each.iter().min().unwrap(), each.iter().max().unwrap());
    assert!(most - least < 500_000, "{each:?}");
}

#[test]
fn a_holder_that_is_throttled_stops_all_others_of_its_guest() {
    let run = two("ticket").quota(Quota::Own(Bandwidth { run: us(500), ..HALF })).hold(us(20)).think(us(5));
    let Throttled { times, holders, .. } = throttled(&done(&run));
    // A vCPU of two holds the lock nearly always.
    assert!(holders * 5 > times && holders < times, "{holders} of {times}");
    assert_eq!(format!("{:#?}", done(&run)), format!("{:#?}", done(&run)), "twice the same");
}

fn between(from_us: u64, until_us: u64) -> Presence {
    Presence { from: us(from_us), until: Some(us(until_us)) }
}

#[test]
fn a_guest_works_between_its_times() {
    let whole = done(&two("none")).acquisitions() as f64;
    for (presence, expected) in [
        (between(5_000, 10_000), 0.25),
        (between(0, 15_000), 0.75),
        (Presence { from: us(15_000), until: None }, 0.25),
    ] {
        let found = done(&two("none").presence(presence)).acquisitions() as f64 / whole;
        // It comes and goes by slices.
        assert!((found - expected).abs() < 0.02, "{presence:?}: {found} of the work");
    }
}

#[test]
fn a_guest_gets_what_another_one_leaves() {
    for (other, its, wholes) in [
        (two("none").quota(Quota::Own(Bandwidth { run: us(400), ..HALF })), 0.37..0.43, 1.5..2.0),
        // A quarter of the time is shared.
        (two("none").presence(between(5_000, 10_000)), 0.21..0.29, 1.69..1.81),
    ] {
        let ended = start_two(&two("none").name("whole").beside([other.name("other")]));
        let pcpus = |ended: Ended| {
            let outcome = ended.outcome().expect("an outcome");
            run_ns(&outcome) as f64 / WINDOW.as_nanos() as f64
        };
        let [whole, less] = ended.map(pcpus);
        assert!(its.contains(&less) && wholes.contains(&whole), "{whole} and {less} of two pCPUs");
    }
}

#[test]
fn a_guest_that_is_away_ends_and_is_waited_for() {
    // The supervisor looks every 20 ms.
    let away = |presence: Presence| two("none").presence(presence).window(us(100_000)).watchdog(us(2_000));
    let with_its_lock = two("ticket").presence(between(1_000, 9_000)).hold(us(50)).think(us(1));
    let late = Presence { from: us(95_000), until: None };
    for run in [with_its_lock, away(late), away(between(0, 5_000))] {
        assert!(done(&run).acquisitions() > 0, "{:?}", run.guests[0].presence);
    }
}
