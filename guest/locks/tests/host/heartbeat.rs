//! Tests of the hint that CPUs which spin give each other.

use haltkick_locks::*;

use crate::support::Cpus;

#[test]
fn a_cpu_runs_while_it_has_paused_or_begun_to_wait_lately() {
    let hour = 3_600_000_000_000;
    let beats = Heartbeat::<Cpus, 2>::new(Cpus::impatient(2), hour);
    let preempted = || [0, 1].map(|cpu| Platform::is_preempted(&beats, cpu));
    assert_eq!(preempted(), [true, true], "neither has done anything");
    Cpus::become_cpu(0);
    Platform::announce(&beats, Activity::Waiter);
    assert_eq!(preempted(), [false, true]);
    Cpus::become_cpu(1);
    Platform::pause(&beats);
    assert_eq!(preempted(), [false, false]);
}

#[test]
fn a_cpu_is_preempted_when_its_last_beat_is_old() {
    let beats = Heartbeat::<Cpus, 1>::new(Cpus::impatient(1), 0);
    Cpus::become_cpu(0);
    Platform::pause(&beats);
    assert!(Platform::is_preempted(&beats, 0));
}
