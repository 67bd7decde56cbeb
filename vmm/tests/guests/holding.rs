//! A vCPU that waits for one lock while it holds another: others wait for it, so it counts as a holder.

use std::time::Duration;

use haltkick_vmm::{HowOften, Run, Target};
use libtest_mimic::Trial;
use support::{Check, Settings, apply, check, config, deschedule, named, start, sum, trial};

#[apply(trial)]
fn holders_are_stopped_at_points_of_another_lock() -> Vec<Trial> {
    let points = [
        ("tail-published", "that_queues_for_a_second_lock"),
        ("head-spinning", "that_is_head_of_a_second_lock"),
        ("slow-released", "that_has_released_a_second_lock"),
    ];
    let trial =
        |(point, what)| named(format!("a_holder_{what}_is_stopped_as_a_holder"), move || stopped_at(point));
    points.map(trial).into()
}

/// Each vCPU waits for one lock, as the holder of another one of its own.
fn holding() -> Run {
    let (lock_count, hold) = (config().guests[0].vcpus + 1, Duration::from_micros(5));
    config()
        .workload("selftest-holding")
        .lock_count(lock_count)
        .hold(hold)
        .spin_threshold(Duration::from_micros(2))
}

/// Slices end wherever they do: in the inner queue most of the time.
#[apply(trial)]
fn a_preempted_waiter_that_holds_another_lock_is_a_holder() -> Check {
    for (lock, pv) in [("qspinlock", true), ("qspinlock", false), ("ticket", false), ("tas", false)] {
        let slice = Duration::from_micros(200);
        let outcome = start(&holding().lock(lock).pv(pv).slice(slice))?;
        check(outcome.acquisitions() > 0, || format!("{lock}, pv {pv}: no section was completed"))?;
        let preemptions = outcome.preemptions.ok_or("the VMM knows its own preemptions")?;
        check(preemptions.holder > 0, || format!("{lock}, pv {pv}: {preemptions:?}"))?;
        check(preemptions.waiter == 0 && preemptions.head == 0, || {
            format!("{lock}, pv {pv}: {preemptions:?}")
        })?;
    }
    Ok(())
}

/// At a point that only the inner lock comes to. What the point itself says, waiter, head or neither, is less than that.
fn stopped_at(point: &str) -> Check {
    let chance = HowOften::Probability(0.2);
    let deschedule = deschedule(Target::Random, chance, Duration::from_micros(500), Some(point));
    // It may be passed rarely: another seed and a longer window, until a vCPU was stopped there.
    for seed in 1..=50 {
        let outcome = start(
            &holding()
                .lock("qspinlock-points")
                .deschedule(deschedule.clone())
                .seed(seed)
                .window(Duration::from_millis(40) * seed.min(25) as u32),
        )?;
        let injected = outcome.injected.ok_or("nothing is known of what was injected")?;
        check(injected.holder == sum(&injected), || format!("stopped at {point}: {injected:?}"))?;
        if injected.holder > 0 {
            return Ok(());
        }
    }
    Err(format!("nobody was ever stopped at {point}").into())
}
