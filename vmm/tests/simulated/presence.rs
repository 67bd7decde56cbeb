//! Guests that come and go.

use std::time::Duration;

use haltkick_vmm::{Presence, Run};
use support::{Settings, simulated, start_guests};

use super::{done, us};

const WINDOW: Duration = us(20_000);

fn two(lock: &str, presence: Option<Presence>) -> Run {
    simulated("skylake-8s", 2, 1).lock(lock).pv(false).slice(us(100)).window(WINDOW).presence(presence)
}

fn between(from_us: u64, until_us: u64) -> Presence {
    Presence { from: us(from_us), until: Some(us(until_us)) }
}

#[test]
fn a_guest_works_between_its_times() {
    let whole = done(&two("none", None)).acquisitions() as f64;
    for (presence, expected) in [
        (between(5_000, 10_000), 0.25),
        (between(0, 15_000), 0.75),
        (Presence { from: us(15_000), until: None }, 0.25),
    ] {
        let found = done(&two("none", Some(presence))).acquisitions() as f64 / whole;
        // It comes and goes by slices.
        assert!((found - expected).abs() < 0.02, "{presence:?}: {found} of the work");
    }
}

#[test]
fn a_guest_has_all_pcpus_while_the_other_is_away() {
    let guest = |name: &str, presence| two("none", presence).name(name);
    let both = guest("whole", None).beside([guest("visitor", Some(between(5_000, 10_000)))]);
    let [whole, visitor] = <[_; 2]>::try_from(start_guests(&both).expect("they run")).expect("two");
    let share = |ended: haltkick_vmm::Ended| {
        let outcome = ended.outcome().expect("an outcome");
        let ran: u64 = outcome.vcpus.iter().filter_map(|vcpu| vcpu.run_ns).sum();
        ran as f64 / (2 * WINDOW.as_nanos()) as f64
    };
    let (whole, visitor) = (share(whole), share(visitor));
    // A quarter of the time is shared.
    assert!((visitor - 0.125).abs() < 0.02 && (whole - 0.875).abs() < 0.03, "{whole} and {visitor}");
}

#[test]
fn a_guest_that_goes_with_its_lock_held_still_ends() {
    let run = two("ticket", Some(between(1_000, 9_000))).hold(us(50)).think(us(1));
    let outcome = done(&run);
    assert!(outcome.acquisitions() > 100, "{}", outcome.acquisitions());
    assert_eq!(outcome.lost_updates, Some(0));
}

#[test]
fn a_watchdog_waits_for_a_guest_that_is_away() {
    let late = Presence { from: us(15_000), until: None };
    assert!(done(&two("none", Some(late)).watchdog(Some(us(2_000)))).acquisitions() > 0);
}
