//! The cost of a line, and the order of its owners.

use std::sync::LazyLock;

use super::*;
use crate::machine::{LineCosts, presets};

/// Two sockets of two clusters of two cores with two threads, without jitter.
static MACHINE: LazyLock<Arc<Machine>> = LazyLock::new(|| altered(|_| ()));

/// [`MACHINE`] with a change.
fn altered(change: impl FnOnce(&mut Machine)) -> Arc<Machine> {
    let genoa = presets().iter().find(|preset| preset.name == "genoa-2s").unwrap().text;
    let small = genoa.replace("cores-per-socket = 96", "cores-per-socket = 4");
    let small = small.replace("cores-per-cluster = 8", "cores-per-cluster = 2");
    let mut machine = Machine::parse("small", &small).unwrap();
    machine.model.jitter = 0.0;
    change(&mut machine);
    Arc::new(machine)
}

/// Lines that no CPU has had.
fn fresh() -> Lines {
    Lines::new(Arc::clone(&MACHINE), 4096)
}

fn get(lines: &mut Lines, now_ps: u64, cpu: u32, need: Need) -> u64 {
    let ends_ps = lines.request(now_ps, (cpu, 7, need), false).expect("the line is idle");
    let (served, next) = lines.complete(ends_ps, 7);
    assert_eq!((served.cpu, next), (cpu, None));
    ends_ps - now_ps
}

/// Lines of which CPU 0 has written number 7.
fn written() -> Lines {
    let mut lines = fresh();
    get(&mut lines, 0, 0, Need::Write);
    lines
}

#[test]
fn lines_cost_their_way_and_upgrades_that_of_the_farthest_copy() {
    use Need::{Read, Write};
    let machine = altered(|machine| {
        machine.costs.line.upgrade_socket_permille = 1500;
        machine.costs.line.upgrade_hops_permille = vec![3000];
    });
    let LineCosts { near_ps, socket_ps, ref hops_ps, shared_ps, memory_ps, .. } = machine.costs.line;
    let far_ps = hops_ps[0];
    let cases: [&[(u32, Need, u64)]; 4] = [
        &[(0, Write, memory_ps), (1, Write, near_ps), (2, Write, socket_ps), (4, Write, far_ps)],
        // Its cluster has a copy, and then its socket.
        &[
            (0, Write, memory_ps),
            (4, Read, far_ps),
            (5, Read, shared_ps),
            (6, Read, socket_ps),
            (0, Write, far_ps * 3),
        ],
        &[(0, Write, memory_ps), (1, Read, near_ps), (0, Write, near_ps * 3 / 2)],
        &[(0, Write, memory_ps), (2, Read, socket_ps), (0, Write, socket_ps * 3 / 2)],
    ];
    for steps in cases {
        let mut lines = Lines::new(Arc::clone(&machine), 4096);
        let mut have = Vec::new();
        for (step, &(cpu, need, way_ps)) in steps.iter().enumerate() {
            assert_eq!(get(&mut lines, 0, cpu, need), way_ps, "step {step} of {steps:?}");
            if need == Write {
                have.clear();
            }
            have.push(cpu);
            for cpu in 0..16 {
                let (has, core) = ([Read, Write].map(|need| lines.has(0, cpu, 7, need)), cpu % 8);
                let expected = [have.contains(&core), have == [core]];
                assert_eq!(has, expected, "CPU {cpu}, whose sibling shares, after step {step} of {steps:?}");
            }
            assert_eq!(lines.is_private(7), step == 0, "one CPU alone has had it");
        }
    }
}

#[test]
fn a_thread_gets_what_its_sibling_wrote_once_and_others_nothing() {
    let mut lines = written();
    assert!(!lines.hit(0, 0, 7, Need::Read), "its own");
    assert!(lines.hit(0, 8, 7, Need::Read), "its sibling's");
    assert!(!lines.hit(0, 8, 7, Need::Read), "it has it now");
    assert!(!lines.hit(0, 0, 7, Need::Write));
    assert!(lines.hit(0, 8, 7, Need::Write), "written again");
    assert!(lines.hit(0, 0, 7, Need::Read));
    lines.hit(0, 0, 7, Need::Write);
    get(&mut lines, 0, 1, Need::Read);
    assert!(!lines.hit(0, 1, 7, Need::Read) && lines.is_as_read(1, 7), "it came with the transfer");
    assert!(lines.hit(0, 8, 7, Need::Read), "the sibling of the writer has still to get it");
}

#[test]
fn a_line_is_quiet_until_somebody_else_has_it_and_again_later() {
    let mut lines = fresh();
    let later_ps = (QUIET_TICKS + 2) << State::TICK;
    get(&mut lines, 0, 0, Need::Write);
    assert!(lines.is_quiet(0, 7), "only one CPU has had it");
    get(&mut lines, 0, 4, Need::Write);
    assert!(!lines.is_quiet(later_ps / 2, 7) && lines.is_quiet(later_ps, 7));
    assert!(lines.hit(later_ps, 12, 7, Need::Read), "its sibling looks");
    assert!(!lines.is_quiet(later_ps, 7) && lines.is_quiet(2 * later_ps, 7));
    lines.write_by_host(2 * later_ps, 7);
    assert!(!lines.is_quiet(2 * later_ps, 7) && lines.is_quiet(3 * later_ps, 7));
    lines.watch(5, 7);
    assert!(!lines.is_quiet(3 * later_ps, 7), "a CPU waits for the next write");
    lines.forget(5, 7);
    assert!(lines.is_quiet(3 * later_ps, 7));
    lines.request(3 * later_ps, (1, 7, Need::Read), false);
    assert!(!lines.is_quiet(3 * later_ps, 7), "it is on its way");
    let mut lines = fresh();
    (0..2).for_each(|cpu| _ = get(&mut lines, 0, cpu, Need::Read));
    get(&mut lines, later_ps, 2, Need::Read);
    assert!(lines.is_quiet(later_ps, 7), "a further reader");
    get(&mut lines, later_ps, 3, Need::Write);
    assert!(!lines.is_quiet(later_ps + 1, 7), "a writer");
}

#[test]
fn a_line_is_ones_own_until_another_has_or_watches_it() {
    let mut lines = fresh();
    let hits = |lines: &mut Lines, cpu| lines.hit_own(lines.own(cpu), 7, Need::Write);
    assert!(!hits(&mut lines, 0), "nobody has had it");
    assert!(
        lines.take_fresh(0, 7) && hits(&mut lines, 0) && !hits(&mut lines, 8),
        "its sibling is another CPU"
    );
    lines.watch(5, 7);
    assert!(!hits(&mut lines, 0), "a CPU waits for the next write");
    lines.forget(5, 7);
    assert!(hits(&mut lines, 0));
    lines.request(0, (1, 7, Need::Read), false);
    assert!(!hits(&mut lines, 0), "it is on its way");
    let mut lines = fresh();
    [0, 1, 0].into_iter().for_each(|cpu| _ = get(&mut lines, 0, cpu, Need::Write));
    assert!(lines.has(0, 0, 7, Need::Write) && !hits(&mut lines, 0), "another CPU has had it");
    let mut lines = fresh();
    assert!(lines.take_fresh(0, 7) && hits(&mut lines, 0));
    assert!(lines.hit(0, 8, 7, Need::Read), "its sibling gets what it wrote");
}

/// The order in which CPUs that all wait for one line get it, and when.
fn order(lines: &mut Lines, cpus: &[u32]) -> Vec<(u32, u64)> {
    let mut next = lines.request(0, (cpus[0], 7, Need::Write), false);
    for &cpu in &cpus[1..] {
        assert_eq!(lines.request(0, (cpu, 7, Need::Write), false), None);
    }
    let mut served = Vec::new();
    while let Some(completes_ps) = next {
        let (done, then) = lines.complete(completes_ps, 7);
        served.push((done.cpu, completes_ps));
        next = then;
    }
    served
}

#[test]
fn those_near_the_owner_are_served_first_and_cost_an_occupancy_each() {
    let costs = &MACHINE.costs.line;
    let served = order(&mut fresh(), &[0, 4, 1, 8]);
    let cpus: Vec<u32> = served.iter().map(|served| served.0).collect();
    assert!([[0, 1, 8, 4], [0, 8, 1, 4]].contains(&[cpus[0], cpus[1], cpus[2], cpus[3]]), "{cpus:?}");
    let spacing: Vec<u64> = served.windows(2).map(|pair| pair[1].1 - pair[0].1).collect();
    assert_eq!(spacing[..2], [costs.near_visit_ps().max(MACHINE.costs.rmw_ps); 2]);
    // Its latency began when it asked.
    let far_ps = costs.hops_ps[0] * costs.occupancy_far_permille / 1000;
    assert_eq!(served[3].1, (served[2].1 + far_ps).max(costs.hops_ps[0]));
    // A sibling is spaced like a core of the cluster.
    let machine = altered(|machine| machine.costs.line.occupancy_near_permille = 900);
    let served = order(&mut Lines::new(machine, 4096), &[0, 8]);
    assert_eq!(served[1].1 - served[0].1, costs.near_ps * 9 / 10, "{served:?}");
    // CPUs far away wait for a bounded number of others.
    let machine = altered(|machine| machine.costs.line.grants_in_a_row = 1);
    let served = order(&mut Lines::new(machine, 4096), &[0, 4, 1, 8, 9]);
    assert_eq!(served[2].0, 4, "{served:?}");
}

#[test]
fn who_watches_a_line_is_told_of_the_next_write_by_another() {
    let mut lines = fresh();
    lines.watch(3, 7);
    lines.watch(5, 7);
    lines.watch(3, 7);
    lines.watch(6, 7);
    lines.forget(6, 7);
    assert_eq!(lines.take_watchers(7, 5), [3]);
    assert_eq!(lines.write_by_host(0, 7), [5]);
    assert_eq!(lines.take_watchers(7, 0), []);
    order(&mut lines, &[0, 4, 2, 8, 1, 9, 3, 5]);
    lines.watch(0, 7);
    lines.forget(0, 7);
    let line = lines.peek(7).expect("it was used");
    let kept = (line.watchers.capacity(), line.waiting.clusters.capacity());
    assert_eq!(kept, (0, 0), "a line that no CPU waits for keeps no lists");
}

#[test]
fn transfers_take_a_few_percent_more_or_less_as_the_seed_says() {
    let jitter = 0.05;
    let machine = altered(|machine| machine.model.jitter = jitter);
    let all = |seed| {
        let mut lines = Lines::new(Arc::clone(&machine), 4096);
        lines.seed = seed;
        let one = |turn: u64| get(&mut lines, turn * 1_000_000, turn as u32 % 2, Need::Write);
        (0..1000).map(one).skip(1).collect::<Vec<_>>()
    };
    let (first, near_ps) = (all(1), machine.costs.line.near_ps as f64);
    assert_eq!(all(1), first);
    assert_ne!(all(2), first);
    let shares: Vec<f64> = first.iter().map(|ps| *ps as f64 / near_ps).collect();
    let mean = shares.iter().sum::<f64>() / shares.len() as f64;
    assert!((mean - 1.0).abs() < 0.005, "{mean}");
    let (least, most) = (1.0 - jitter, 1.0 + jitter);
    assert!(shares.iter().all(|share| (least - 0.001..=most + 0.001).contains(share)), "{shares:?}");
    assert!(shares.iter().any(|share| *share < 1.0 - 0.9 * jitter), "some are as short as they may be");
    assert!(shares.iter().any(|share| *share > 1.0 + 0.9 * jitter), "some are as long");
}

#[test]
fn an_owner_goes_on_until_the_request_is_there() {
    let costs = &MACHINE.costs.line;
    for (asks, flight_ps) in
        [(1, 0), (2, costs.socket_ps - costs.near_ps), (4, costs.hops_ps[0] - costs.near_ps)]
    {
        let mut lines = written();
        assert!(lines.request(0, (asks, 7, Need::Write), false).is_some());
        for (at_ps, may) in
            [(0, flight_ps > 0), (flight_ps.saturating_sub(1), flight_ps > 0), (flight_ps, false)]
        {
            assert_eq!(lines.has(at_ps, 0, 7, Need::Write), may, "CPU {asks}, {at_ps} ps");
            assert!(lines.has(at_ps, 0, 7, Need::Read), "it has a copy until the other one has the line");
        }
        let writes =
            std::iter::from_fn(|| lines.has(0, 0, 7, Need::Write).then(|| lines.hit(0, 0, 7, Need::Write)));
        let most = if flight_ps > 0 { costs.grants_in_a_row as usize } else { 0 };
        assert_eq!(writes.take(100).count(), most, "CPU {asks}");
    }
}

#[test]
fn an_owner_goes_on_while_a_way_is_longer_than_near() {
    for asks in [2, 4] {
        let mut lines = written();
        assert!(lines.request(0, (1, 7, Need::Write), false).is_some());
        assert_eq!(lines.request(0, (asks, 7, Need::Write), false), None);
        // The occupancy of the line alone counts: it has waited for longer than its latency.
        let now_ps = 1_000_000;
        let comes_ps = lines.complete(now_ps, 7).1.expect("the next one begins");
        let leaves_ps = comes_ps - MACHINE.costs.line.near_visit_ps();
        assert!(leaves_ps > now_ps, "CPU {asks}: {leaves_ps}");
        for (at_ps, may) in [(now_ps, true), (leaves_ps - 1, true), (leaves_ps, false)] {
            assert_eq!(lines.has(at_ps, 1, 7, Need::Write), may, "CPU {asks}, {at_ps} ps");
        }
    }
}

#[test]
fn a_line_that_somebody_waited_for_leaves_at_once() {
    for need in [Need::Read, Need::Write] {
        let mut lines = fresh();
        assert!(lines.request(0, (0, 7, Need::Write), false).is_some());
        assert_eq!(lines.request(0, (1, 7, need), false), None);
        lines.complete(1_000_000, 7);
        assert!(!lines.has(1_000_000, 0, 7, Need::Write), "{need:?}");
        assert_eq!(lines.has(1_000_000, 0, 7, Need::Read), need == Need::Read, "a reader leaves a copy");
    }
}

#[test]
fn copies_go_to_many_readers_at_once() {
    let costs = &MACHINE.costs.line;
    // The cluster of CPU 0 has copies, then that of CPU 4.
    for (reader, way_ps) in
        [(1, costs.near_ps), (2, costs.socket_ps), (4, costs.hops_ps[0]), (5, costs.near_ps)]
    {
        let mut lines = written();
        get(&mut lines, 0, 1, Need::Read);
        if reader == 5 {
            get(&mut lines, 0, 4, Need::Read);
        }
        assert!(lines.request(0, (8, 7, Need::Read), false).is_some());
        assert_eq!(lines.request(0, (reader, 7, Need::Read), false), None);
        let next = lines.complete(1_000_000, 7).1.expect("it waits");
        assert_eq!(next, 1_000_000 + costs.shared_ps * way_ps / costs.near_ps, "CPU {reader}");
    }
}

#[test]
fn any_that_waits_may_be_next() {
    let seconds = (0..64).map(|seed| {
        let mut lines = fresh();
        lines.seed = seed;
        order(&mut lines, &[0, 1, 8, 9])[1].0
    });
    let mut seconds: Vec<u32> = seconds.collect();
    seconds.sort_unstable();
    seconds.dedup();
    assert_eq!(seconds, [1, 8, 9], "of one cluster");
}

#[test]
fn a_seized_line_is_its_takers_and_public_once_another_had_it() {
    let mut lines = fresh();
    (0..2).for_each(|_| assert_eq!(lines.seize(0, 0, 7), []));
    assert!(lines.is_private(7) && lines.has(0, 0, 7, Need::Write), "one CPU alone");
    for cpu in [4, 4, 0, 0] {
        lines.seize(0, cpu, 7);
        assert!(!lines.is_private(7) && lines.has(0, cpu, 7, Need::Write), "it stays public: {cpu}");
        assert!(!lines.has(0, 4 - cpu, 7, Need::Read), "the other one has lost it: {cpu}");
    }
    assert!(lines.hit(0, 8, 7, Need::Read), "the sibling gets it once");
    assert!(!lines.hit(0, 8, 7, Need::Read));
    lines.seize(0, 0, 7);
    assert!(lines.hit(0, 8, 7, Need::Read), "and once more");
    let mut lines = fresh();
    lines.request(0, (0, 7, Need::Write), false);
    lines.seize(0, 0, 7);
    lines.complete(1_000_000, 7);
    assert!(!lines.is_private(7), "it was on its way");
}

#[test]
fn a_line_that_its_core_asks_for_again_stays_there() {
    let costs = &MACHINE.costs.line;
    let mut lines = fresh();
    (0..2).for_each(|_| _ = get(&mut lines, 0, 0, Need::Write));
    assert!(lines.is_private(7), "one CPU alone");
    assert_eq!(get(&mut lines, 0, 8, Need::Read), costs.sibling_ps);
    assert!(!lines.is_private(7) && lines.has(0, 0, 7, Need::Write), "the core may write it as before");
    get(&mut lines, 0, 8, Need::Write);
    assert!(lines.hit(0, 0, 7, Need::Read), "the sibling wrote it last");
    // A read gets it from memory: it has no writer.
    let mut lines = fresh();
    get(&mut lines, 0, 0, Need::Read);
    assert!(lines.has(0, 0, 7, Need::Write) && !lines.hit(0, 8, 7, Need::Read));
}

#[test]
fn a_host_s_write_takes_a_line_out_of_all_caches() {
    let mut lines = written();
    assert_eq!(lines.write_by_host(0, 7), []);
    assert!(!lines.has(0, 0, 7, Need::Read) && !lines.is_private(7));
    assert!(!lines.take_fresh(0, 7), "somebody has had it");
    assert_eq!(get(&mut lines, 0, 0, Need::Read), MACHINE.costs.line.memory_ps);
    assert!(!lines.hit(0, 8, 7, Need::Read), "no thread wrote it");
}

#[test]
fn the_directory_is_bounded() {
    let lines = fresh();
    assert!(lines.exists(63) && !lines.exists(64), "64 lines in a page");
    let machine = presets().iter().find(|preset| preset.name == "numaconnect-512").unwrap().machine();
    let words = 2 + u64::from(machine.topology.cpus()).div_ceil(64);
    let of_line = size_of::<Line>() as u64 + words * 8;
    let most = |bytes| Lines::most_bytes(bytes, &machine);
    assert_eq!(most(1 << 20) - most(0), (1 << 20) / 64 * of_line);
    assert_eq!(most(1) - most(0), 64 * of_line, "whole chunks");
}

/// The first numbers of the sequence that begins at 0, as published with it.
#[test]
fn random_numbers_are_those_of_splitmix64() {
    assert_eq!(mix(0), 0xe220_a839_7b1d_cdaf);
    assert_eq!(mix(0x9e37_79b9_7f4a_7c15), 0x6e78_9e6a_a1b9_65f4);
}
