//! Laws 1 to 7 and 14, each with its test.

use super::*;
use crate::hosts::presets::presets;

const MS: u64 = 1_000_000;

fn tasks(count: usize) -> Vec<Task> {
    vec![Task { weight: NICE_0, ..Task::default() }; count]
}

fn queue(name: &str, cpus: u32) -> Queue {
    let host = presets().iter().find(|preset| preset.name == name).unwrap().host();
    Queue::new(host.fair, cpus, host.tick_ns())
}

/// A queue on which tasks wait, the first of them running since 0.
fn running(name: &str, count: usize) -> (Queue, Vec<Task>) {
    let (mut queue, mut tasks) = (queue(name, 8), tasks(count));
    (0..count as u32).for_each(|id| queue.place(&mut tasks, id, true));
    assert_eq!(queue.pick(&mut tasks, 0).0, Some(0));
    (queue, tasks)
}

/// Lets slices end at multiples of `step_ns`, and tells who ran when.
fn turns(queue: &mut Queue, tasks: &mut [Task], step_ns: u64, until_ns: u64) -> Vec<(u64, u32)> {
    let mut switches = Vec::new();
    for now_ns in (step_ns..=until_ns).step_by(step_ns as usize) {
        if queue.is_over(tasks, now_ns) {
            let next = queue.pick(tasks, now_ns).0.unwrap();
            switches.push((now_ns, next));
        }
        let mean = queue.mean(tasks);
        let most = queue.slice_ns + step_ns as i64;
        assert!(tasks.iter().all(|task| (task.v - mean).abs() <= most), "law 2 at {now_ns}: {tasks:?}");
    }
    switches
}

#[test]
fn equal_tasks_stay_within_a_slice_and_a_tick_of_the_mean() {
    for name in ["linux-7.3", "linux-6.12", "cfs-2019"] {
        let (mut queue, mut tasks) = running(name, 5);
        let switches = turns(&mut queue, &mut tasks, 4 * MS, 2000 * MS);
        for id in 0..5 {
            let turns = switches.iter().filter(|(_, next)| *next == id).count();
            assert!(turns.abs_diff(switches.len() / 5) <= 1, "{name}: {id} had {turns}");
        }
    }
}

#[test]
fn a_wake_up_inside_a_slice_waits_for_its_end() {
    let (mut queue, mut tasks) = running("linux-7.3", 1);
    tasks.extend(super::tests::tasks(1));
    queue.place(&mut tasks, 1, true);
    assert!(!queue.preempts(&mut tasks, 1, MS));
    assert!(!queue.is_over(&mut tasks, 2 * MS));
    // The slice has 2.8 ms.
    assert_eq!(queue.ends_ns(&tasks, 2 * MS), Some(2 * MS + 8 * MS / 10 + 1));
    assert!(queue.is_over(&mut tasks, 28 * MS / 10 + 1));
    assert_eq!(queue.pick(&mut tasks, 28 * MS / 10 + 1).0, Some(1));
}

#[test]
fn a_hint_is_one_pick_if_its_target_is_eligible() {
    let (mut queue, mut tasks) = running("linux-7.3", 4);
    // All others are eligible; 1 has the earliest deadline.
    queue.hint(3);
    queue.yields(&mut tasks, 0);
    assert_eq!(queue.pick(&mut tasks, 0).0, Some(3));
    queue.yields(&mut tasks, 0);
    assert_eq!(queue.pick(&mut tasks, 0).0, Some(1), "the hint is used up");
    // The one that yielded first has negative lag now.
    assert!(!queue.is_eligible(&tasks, 0));
    queue.hint(0);
    queue.yields(&mut tasks, MS);
    assert_eq!(queue.pick(&mut tasks, MS).0, Some(2));
}

#[test]
fn a_sleeper_in_debt_counts_in_the_mean_until_it_is_picked() {
    let (mut queue, mut tasks) = running("linux-7.3", 3);
    queue.sleep(&mut tasks, 2 * MS);
    let debt = tasks[0].v;
    assert!(tasks[0].is_delayed && debt == 2 * MS as i64);
    assert_eq!(queue.mean(&tasks), debt / 3, "law 2 counts it");
    assert_eq!(queue.runnable(&tasks), 2, "it is not runnable");
    let mut now_ns = 2 * MS;
    let mut gone = Vec::new();
    queue.pick(&mut tasks, now_ns);
    while gone.is_empty() {
        now_ns += 3 * MS;
        assert!(queue.is_over(&mut tasks, now_ns));
        gone = queue.pick(&mut tasks, now_ns).1;
    }
    assert_eq!((gone, tasks[0].is_delayed, tasks[0].lag), (vec![0], false, 0));
    // Without the law it leaves at once.
    let (mut queue, mut tasks) = running("linux-7.3", 3);
    if let Fair::Eevdf(it) = &mut queue.fair {
        it.delayed = false;
    }
    queue.sleep(&mut tasks, 2 * MS);
    assert!(!tasks[0].is_delayed && queue.mean(&tasks) == 0 && tasks[0].lag < 0);
}

#[test]
fn a_wake_up_keeps_the_lag_that_sleep_left() {
    let (mut queue, mut tasks) = running("linux-7.3", 3);
    queue.charge(&mut tasks, MS);
    // 2 goes with a lag of 1/3 ms.
    queue.remove(&mut tasks, 2);
    let lag = tasks[2].lag;
    assert_eq!(lag, (MS / 3) as i64);
    queue.place(&mut tasks, 2, true);
    let kept = queue.mean(&tasks) - tasks[2].v;
    assert!((kept - lag).abs() <= 2, "{kept} of {lag}");
}

#[test]
fn a_yield_forfeits_the_rest_of_the_request() {
    for (name, forfeits) in [("linux-7.3", true), ("linux-6.12", false)] {
        let (mut queue, mut tasks) = running(name, 2);
        let deadline = tasks[0].deadline;
        queue.yields(&mut tasks, 0);
        assert_eq!(tasks[0].v == deadline, forfeits, "{name}");
        assert_eq!(tasks[0].deadline, deadline + queue.slice_ns);
    }
}

#[test]
fn yields_of_a_task_ahead_forfeit_nothing_more() {
    let (mut queue, mut tasks) = running("linux-7.3", 2);
    queue.yields(&mut tasks, 0);
    let (v, deadline) = (tasks[0].v, tasks[0].deadline);
    (0..1_000).for_each(|_| queue.yields(&mut tasks, 0));
    assert_eq!((tasks[0].v, tasks[0].deadline), (v, deadline));
}

#[test]
fn cfs_lets_a_sleeper_preempt_that_is_far_behind() {
    let (mut queue, mut tasks) = running("cfs-2015", 1);
    tasks.extend(super::tests::tasks(1));
    queue.charge(&mut tasks, 100 * MS);
    queue.update_sleeper(&mut tasks, 1);
    queue.place(&mut tasks, 1, true);
    // Half of the latency of 24 ms is its bonus, and the granularity 4 ms.
    assert_eq!(tasks[0].v - tasks[1].v, 12 * MS as i64);
    assert!(queue.preempts(&mut tasks, 1, 100 * MS));
    let (mut queue, mut tasks) = running("cfs-2015", 2);
    assert!(!queue.preempts(&mut tasks, 1, 4 * MS) && queue.preempts(&mut tasks, 1, 4 * MS + 1));
}

#[test]
fn weights_share_time_in_proportion() {
    let (mut queue, mut tasks) = (queue("linux-7.3", 8), tasks(2));
    tasks[1].weight = NICE_0 / 4;
    (0..2).for_each(|id| queue.place(&mut tasks, id, true));
    let (mut had, mut now_ns) = ([0, 0], 0);
    let mut current = queue.pick(&mut tasks, 0).0.unwrap();
    while now_ns < 2000 * MS {
        now_ns += MS;
        had[current as usize] += 1;
        if queue.is_over(&mut tasks, now_ns) {
            current = queue.pick(&mut tasks, now_ns).0.unwrap();
        }
    }
    assert!((1550..1650).contains(&had[0]), "{had:?}");
}

#[test]
fn a_wake_up_behind_a_used_slice_does_not_give_another() {
    // Slices of 3 ms end at ticks of 4 ms.
    let (mut queue, mut tasks) = running("linux-6.12", 2);
    tasks.extend(super::tests::tasks(1));
    queue.charge(&mut tasks, 3 * MS + MS / 2);
    queue.place(&mut tasks, 2, true);
    assert!(queue.is_over(&mut tasks, 4 * MS));
    queue.pick(&mut tasks, 4 * MS);
    assert!(!queue.is_over(&mut tasks, 5 * MS), "the next one has its own");
    // One that was alone goes on with another request.
    let (mut queue, mut tasks) = running("linux-6.12", 1);
    tasks.extend(super::tests::tasks(1));
    queue.charge(&mut tasks, 3 * MS + MS / 2);
    queue.place(&mut tasks, 1, true);
    assert!(!queue.is_over(&mut tasks, 4 * MS));
}
