//! Time of simulated vCPUs by place: all of it is counted, and the run is the same as without.

use std::time::Duration;

use haltkick_vmm::{Instruments, Outcome, Profile, Run};
use support::{Settings, run_ns, us, watched};

use super::small;

/// How far a pCPU may have come ahead where the window opens and closes.
const AHEAD_NS: u64 = 20_000;
/// No change of vCPUs takes longer, with the way into the guest.
const CHANGE_NS: u64 = 10_000;

/// The outcome of a run, and its profile if it has one.
fn profiled(config: &Run, profile: Option<Duration>) -> (Outcome, Option<Profile>) {
    let (guest, found) = watched(config, &Instruments { profile, ..Instruments::default() }).expect("a run");
    (guest.outcome().expect("it comes to its end"), found.profile)
}

#[test]
fn a_profile_counts_all_time_and_changes_nothing() {
    for (lock, pv) in [("ticket", false), ("qspinlock", true), ("mutex/packed", true)] {
        let config = small().form(lock, pv).window(us(3000));
        let [(with, profile), (without, _)] =
            [Some(us(1000)), None].map(|profile| profiled(&config, profile));
        assert_eq!(format!("{with:#?}"), format!("{without:#?}"), "{lock}");

        let profile = profile.expect("it was asked for");
        assert_eq!((profile.period_ns, profile.late), (1, 0), "every nanosecond is a sample");
        let of_rows: u64 = profile.rows.iter().map(|row| row.samples).sum();
        assert_eq!(of_rows, profile.samples);
        let run_ns = run_ns(&with);
        // Changes of vCPUs count here, as time of the vCPU that comes, and not there.
        let changes_ns =
            with.vcpus.iter().map(|vcpu| vcpu.preemptions + vcpu.waits.unwrap_or(0)).sum::<u64>() * CHANGE_NS;
        let (least_ns, most_ns) = (run_ns - 4 * AHEAD_NS, run_ns + 4 * AHEAD_NS + changes_ns);
        assert!((least_ns..most_ns).contains(&profile.samples), "{lock}: {} of {run_ns} ns", profile.samples);
        let all_ns = profile.samples + profile.nobody;
        assert!(all_ns.abs_diff(4 * 3_000_000) < 4 * AHEAD_NS, "{lock}: {all_ns} ns on four pCPUs");
    }
}

#[test]
fn a_profile_says_what_vcpus_did_in_and_outside_their_guest() {
    let config = small().form("qspinlock", true).window(us(3000));
    let (outcome, profile) = profiled(&config, Some(us(1000)));
    let profile = profile.expect("it was asked for");
    let samples = |matches: &dyn Fn(&haltkick_vmm::ProfileRow) -> bool| {
        profile.rows.iter().filter(|row| matches(row)).map(|row| row.samples).sum::<u64>()
    };
    let is_work = |row: &haltkick_vmm::ProfileRow| {
        row.inlined.iter().chain(&row.symbol).any(|name| name.contains("work_loop"))
    };
    // Every section of the window was one round of work under the lock, of a microsecond.
    let held_ns = samples(&|row| row.activity == "holder" && is_work(row) && !row.in_vmm) as f64;
    let sections_ns = outcome.acquisitions() as f64 * config.our(0).ours.hold.as_nanos() as f64;
    assert!(
        (held_ns / sections_ns - 1.0).abs() < 0.1,
        "{held_ns} ns of work for {sections_ns} ns of sections"
    );
    assert!(samples(&|row| row.in_vmm) > 0, "slices end by exits");
    assert!(samples(&|row| row.activity == "waiter" || row.activity == "head") > 0, "two vCPUs a pCPU wait");
    // With a vCPU for each pCPU no turn ends: all that the VMM does are exits after which the same one goes on.
    let config = small().form("ticket", false).vcpus(4).window(us(3000));
    let rows = profiled(&config, Some(us(1000))).1.expect("it was asked for").rows;
    let in_vmm_ns: u64 = rows.iter().filter(|row| row.in_vmm).map(|row| row.samples).sum();
    let costs = &config.engine.machine().expect("a machine").costs.guest;
    // Each pCPU's slice ends every 200 us, which is an exit; it takes at least four fifths of what it costs.
    let least_ns = 4 * (3000 / 200 - 1) * (costs.exit_ps + costs.timer_ps) * 4 / 5 / 1000;
    assert!(in_vmm_ns >= least_ns, "{in_vmm_ns} ns of exits, where {least_ns} ns are the least");
}
