//! Waiters that are parked end as if they had executed every round, and those that must not be parked are not.

use haltkick_sim::Event;
use haltkick_sim::board::{Happening, Memory, What};
use haltkick_sim::machine::{LongestLoop, Machine, PauseLimits};

use crate::programs::*;
use crate::{Bench, CODE, DATA, DONE, is_out, preset};

/// Number of each CPU, the time of its end, its RAX and its count of instructions.
type Ends = Vec<(u32, u64, u64, u64)>;

/// 128 ticks of 2.5 GHz.
const GAP_PS: u64 = 51_200;
const EXIT_PS: u64 = 500_000;

/// A CPU of the other socket.
const APART: u32 = 20;

/// A waiter of a program, with this argument, and in the other socket one that works and then sets the flag; with parking and without.
fn pair(waiter: &[u8], argument: u64, iterations: u64, parks: bool) -> (Ends, Bench) {
    let machine = preset("cascadelake-2s");
    pair_on(machine, [waiter, work_then_set()], [argument, iterations], APART, parks)
}

fn pair_on(
    machine: Machine,
    [waiter, worker]: [&[u8]; 2],
    [argument, iterations]: [u64; 2],
    slot: u32,
    parks: bool,
) -> (Ends, Bench) {
    let mut bench = Bench::of_machine(1, machine, &[waiter, worker].concat());
    bench.one_by_one(parks);
    bench.start(0, CODE, DATA, argument);
    bench.start(slot, CODE + waiter.len() as u64, DATA, iterations);
    (bench.finish(2), bench)
}

/// Instructions that were executed one by one.
fn executed(bench: &Bench) -> u64 {
    bench.board.executed + bench.board.tried
}

#[test]
fn work_takes_its_time_and_leaves_what_its_multiplications_would() {
    for iterations in [1, 2, 3, 15, 16, 17, 1000] {
        let product = (0..4 * iterations).fold(3_u64, |product, _| product.wrapping_mul(product));
        let (ends, bench) = pair(wait_for_flag(), 0, iterations, true);
        assert_eq!(bench.board.worked_ps, iterations * 6 * bench.machine.costs.instruction_ps);
        // The flag did not become visible before what was stored first.
        assert_eq!((ends[0].2, ends[1].2), (7, product), "{iterations} iterations");
    }
}

#[test]
fn a_parked_waiter_sees_what_its_sibling_wrote_no_earlier() {
    let run = |program: &[u8], parks: bool, iterations: u64| {
        let mut machine = preset("cascadelake-2s");
        // A waiter that is parked leaves the core to its sibling; here that changes nothing.
        machine.costs.busy_sibling_permille = 1000;
        let sibling = machine.topology.siblings(0).next().expect("the core has a second thread");
        pair_on(machine, [wait_for_flag(), program], [0, iterations], sibling, parks).0
    };
    for program in [count_then_set(), count_then_swap()] {
        for iterations in (1..400).chain([1000, 5000]) {
            let (parked, executed) = (run(program, true, iterations), run(program, false, iterations));
            assert_eq!(parked, executed, "{iterations} iterations");
            let [(0, seen_ps, value, _), (_, set_ps, ..)] = parked[..] else { panic!("{parked:?}") };
            assert!(value == 7 && seen_ps + 100_000 > set_ps, "{iterations} iterations: {parked:?}");
        }
    }
}

/// Waiters that count nothing, that count, and whose counters decide anything, once or now and then. Waiters that look at the clock:
/// until the flag, wherever in its round the waiter is, and until its time has come.
#[test]
fn a_parked_waiter_ends_as_one_that_executes_every_round() {
    let (few, some) = ([10, 1000, 20_000], [1, 10, 100, 101, 102, 1000, 5000]);
    let many: Vec<_> = (1..400).step_by(7).chain([1000, 5000, 20_000]).collect();
    let all: Vec<_> = (1..3000).step_by(37).chain([20_000, 50_000]).collect();
    let any = [2000];
    for (name, program, arguments, iterations) in [
        ("wait_for_flag", wait_for_flag(), &any[..], &some[..]),
        ("count", count(), &any, &some),
        ("count_in_32_bits", count_in_32_bits(), &any, &some),
        ("count_up_and_down", count_up_and_down(), &any, &some),
        ("count_to_a_bound", count_to_a_bound(), &any, &few),
        ("count_down_to_zero", count_down_to_zero(), &any, &few),
        ("sum_of_a_counter", sum_of_a_counter(), &any, &few),
        ("count_in_a_byte", count_in_a_byte(), &any, &few),
        ("count_and_begin_anew", count_and_begin_anew(), &any, &many),
        ("count_down_again_and_again", count_down_again_and_again(), &any, &many),
        ("count_with_a_sign", count_with_a_sign(), &any, &many),
        ("count_below_zero", count_below_zero(), &any, &many),
        ("compare_the_lowest_byte", compare_the_lowest_byte(), &any, &many),
        ("ask_for_parity", ask_for_parity(), &any, &many),
        ("branch_on_earlier_flags", branch_on_earlier_flags(), &any, &many),
        ("branch_on_earlier_parity", branch_on_earlier_parity(), &any, &many),
        ("count_beyond_32_bits", count_beyond_32_bits(), &any, &many),
        ("counters_change_places", counters_change_places(), &any, &many),
        ("count_by_a_choice", count_by_a_choice(), &any, &many),
        ("copy_a_count_with_a_bound", copy_a_count_with_a_bound(), &any, &many),
        ("wait_with_patience", wait_with_patience(), &[u64::MAX], &all),
        ("wait_with_patience", wait_with_patience(), &[1, 1000, 50_000, 123_457], &[50_000]),
        ("wait_until", wait_until(), &[10_000, 123_457], &[1_000_000]),
        ("wait_until", wait_until(), &[1_000_000], &[2_000]),
    ] {
        let both = |argument| iterations.iter().map(move |iterations| (argument, *iterations));
        for (argument, iterations) in arguments.iter().copied().flat_map(both) {
            let [parked, executed] = [true, false].map(|parks| pair(program, argument, iterations, parks).0);
            assert_eq!(parked, executed, "{name}, {argument}, {iterations} iterations");
        }
    }
}

#[test]
fn an_alarm_finds_a_parked_waiter_where_an_executing_one_is() {
    const MOST_OF_A_ROUND: u64 = 16;
    for (name, program, argument) in [
        ("count_to_a_bound", count_to_a_bound(), 2000),
        ("count_by_a_choice", count_by_a_choice(), 2000),
        ("wait_with_patience", wait_with_patience(), u64::MAX),
    ] {
        // When the alarm rings, and the instructions until then.
        let rings = |parks: bool, alarm_ps: u64| {
            let mut bench = Bench::new("cascadelake-2s", program);
            bench.one_by_one(parks);
            bench.start(0, CODE, DATA, argument);
            bench.board.set_alarm(0, alarm_ps);
            let rings = bench.board.run(u64::MAX / 2).expect("the alarm");
            assert_eq!(rings.what, What::Alarm, "{name}");
            (rings.at_ps, bench.board.cpu(0).expect("it stands still").instructions)
        };
        for alarm_ps in (10_000_000..11_000_000).step_by(17_000) {
            // Just before one that executes every round has come to the end of an instruction.
            let (end_ps, executed) = rings(false, alarm_ps);
            let (rings_ps, parked) = rings(true, end_ps - 1);
            // Or it executes this round, too.
            let late = if rings_ps < end_ps { 1..=MOST_OF_A_ROUND } else { 0..=0 };
            assert!(late.contains(&executed.wrapping_sub(parked)), "{name}: {parked}, {executed}");
        }
    }
}

#[test]
fn a_parked_waiter_takes_many_rounds_at_once() {
    let executed =
        |program, argument, iterations, parks| executed(&pair(program, argument, iterations, parks).1);
    for (program, argument) in
        [(count(), 2000), (count_in_32_bits(), 2000), (count_up_and_down(), 2000), (wait_until(), 123_457)]
    {
        let executed = executed(program, argument, 1_000_000, true);
        assert!(executed < 500, "as many rounds as there are at once: {executed} instructions");
    }
    for (program, argument, iterations) in [
        (count_and_begin_anew(), 2000, 20_000),
        (count_down_again_and_again(), 2000, 20_000),
        (count_by_a_choice(), 2000, 20_000),
        (wait_with_patience(), u64::MAX, 50_000),
    ] {
        let [parked, executed] = [true, false].map(|parks| executed(program, argument, iterations, parks));
        assert!(parked < executed / 2, "{parked} instructions of {executed}");
    }
}

#[test]
fn a_round_that_stores_between_two_that_are_alike_is_executed() {
    for program in [store_every_second_round(), store_every_eighth_round()] {
        let run = |parks: bool| {
            let mut bench = Bench::new("cascadelake-2s", program);
            bench.board.parks = parks;
            bench.start(0, CODE, DATA, 1000);
            // A trial may find a translation, which then costs nothing: a nanosecond of time in all.
            let [(_, _, rax, instructions)] = bench.finish(1)[..] else { panic!("one CPU") };
            (rax, instructions, bench.word(DATA))
        };
        assert_eq!(run(true), run(false));
    }
}

#[test]
fn a_waiter_that_stores_in_every_round_is_not_parked() {
    let code = [store_and_wait(), take_back_and_look()].concat();
    let mut bench = Bench::new("cascadelake-2s", &code);
    bench.start(0, CODE, DATA, 0);
    bench.start(20, CODE + store_and_wait().len() as u64, DATA, 0);
    assert_eq!(bench.finish(2)[1].2, 1, "it has stored again");
}

#[test]
fn a_waiter_that_leaves_the_guest_in_every_round_is_not_parked() {
    let mut bench = Bench::new("cascadelake-2s", ask_and_wait());
    bench.start(0, CODE, DATA, 0);
    for _ in 0..10 {
        let asks = bench.next(u64::MAX / 2);
        assert!(is_out(asks.what, 0x11), "{asks:?}");
        bench.board.resume(0, asks.at_ps + 1_000_000);
    }
    bench.board.memory_mut().store(DATA, 4, 1);
    bench.board.host_wrote(DATA);
    bench.finish(1);
}

#[test]
fn a_ticket_lock_excludes_and_is_the_same_with_and_without_parking() {
    const EACH: u64 = 40;
    let run = |parks: bool, ahead: bool, cpus: u32| {
        let mut bench = Bench::new("cascadelake-2s", ticket());
        if !ahead {
            bench.board.most_ahead_ps = 0;
        }
        bench.board.parks = parks;
        (0..cpus).for_each(|slot| bench.start(slot, CODE, DATA, EACH));
        let ends = bench.finish(cpus as usize);
        assert_eq!(bench.word(DATA + 128), EACH * u64::from(cpus));
        ends
    };
    for cpus in [1, 2, 5, 30] {
        let (parked, executed) = (run(true, false, cpus), run(false, false, cpus));
        let last = |ends: &[(u32, u64, u64, u64)]| ends.iter().map(|end| end.1).max().unwrap() as f64;
        // With many CPUs some ask for a line at the same moment, and those that were parked in another order.
        if cpus <= 5 {
            assert_eq!(parked, executed, "{cpus} CPUs");
        }
        assert!((last(&parked) / last(&executed) - 1.0).abs() < 0.01, "{cpus} CPUs");
        let ahead = run(true, true, cpus);
        assert_eq!(ahead, run(true, true, cpus), "twice the same");
        let ratio = last(&ahead) / last(&executed);
        assert!((0.85..1.15).contains(&ratio), "{cpus} CPUs: {ratio}");
    }
}

/// A waiter reads the line, loses it, and comes to its PAUSE only then: the owner's next writes tell it nothing. PAUSEs of many lengths bring
/// that about.
#[test]
fn a_waiter_whose_line_went_before_its_pause_is_not_parked() {
    for pause_ps in (40_000..46_000).step_by(250) {
        let mut machine = preset("cascadelake-2s");
        machine.costs.pause_ps = pause_ps;
        let mut bench = Bench::of_machine(1, machine, ticket());
        bench.board.most_ahead_ps = 0;
        (0..30).for_each(|slot| bench.start(slot, CODE, DATA, 40));
        bench.finish(30);
        assert_eq!(bench.word(DATA + 128), 40 * 30, "PAUSE of {pause_ps} ps");
    }
}

/// A waiter of this program with limits that double at each exit, and one that works and then sets the flag: when the waiter's loops
/// exited, and its end.
fn exits(program: &[u8], parks: bool, iterations: u64, longest: fn(u64) -> LongestLoop) -> (Vec<u64>, u64) {
    let code = [program, work_then_set()].concat();
    let mut bench = Bench::new("cascadelake-2s", &code);
    bench.one_by_one(parks);
    let limits = |exits: usize| Some(PauseLimits { gap_ps: GAP_PS, longest: longest(1 << exits) });
    bench.board.limit_pauses(0, limits(0));
    bench.start(0, CODE, DATA, 3_000_000);
    bench.start(20, CODE + program.len() as u64, DATA, iterations);
    let (mut exits, mut end_ps) = (Vec::new(), None);
    while let Some(Happening { cpu, at_ps, what }) = bench.board.run(u64::MAX / 2) {
        match what {
            What::PauseLoop => {
                assert_eq!(cpu, 0);
                exits.push(at_ps);
                bench.board.limit_pauses(0, limits(exits.len()));
                bench.board.resume(0, at_ps + EXIT_PS);
            }
            What::Event(Event::Out { port: DONE, .. }) if cpu == 0 => end_ps = Some(at_ps),
            What::Event(Event::Out { port: DONE, .. }) => {}
            what => panic!("{what:?}"),
        }
    }
    (exits, end_ps.expect("the waiter saw the flag"))
}

#[test]
fn a_parked_waiter_exits_at_the_pause_at_which_it_would_have() {
    let longest: [fn(u64) -> LongestLoop; 2] =
        [|doubled| LongestLoop::Ps(1_638_400 * doubled), |doubled| LongestLoop::Pauses(40 * doubled)];
    for longest in longest {
        for program in [wait_for_flag(), count(), count_to_a_bound()] {
            // Some flags come just before a loop would exit, or just after.
            for iterations in (560..760).step_by(7).chain([10, 3000, 20_000]) {
                let parked = exits(program, true, iterations, longest);
                assert_eq!(parked, exits(program, false, iterations, longest), "{iterations} iterations");
                assert!(iterations < 3000 || !parked.0.is_empty(), "{parked:?}");
                // The doubled limits hold.
                assert!(iterations < 20_000 || parked.0.len() > 2, "{parked:?}");
                assert!(parked.0.windows(3).all(|at| at[2] - at[1] > at[1] - at[0]), "{parked:?}");
            }
        }
    }
}

#[test]
fn an_alarm_finds_a_parked_waiter_before_its_loop_exits() {
    let mut bench = Bench::new("cascadelake-2s", wait_for_flag());
    bench.board.limit_pauses(0, Some(PauseLimits { gap_ps: GAP_PS, longest: LongestLoop::Ps(1_638_400) }));
    bench.start(0, CODE, DATA, 0);
    bench.board.set_alarm(0, 1_500_000);
    let first = bench.board.run(u64::MAX / 2).unwrap();
    assert_eq!((first.what, first.at_ps), (What::Alarm, 1_500_000));
    bench.board.resume(0, 2_000_000);
    let second = bench.board.run(u64::MAX / 2).unwrap();
    assert_eq!(second.what, What::PauseLoop);
    assert!(second.at_ps > 2_000_000 + 1_638_400, "the loop began anew: {second:?}");
}
