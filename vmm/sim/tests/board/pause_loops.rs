//! Exits of pause loops: at the same PAUSE whether the waiter is parked or executes every round.

use haltkick_sim::Event;
use haltkick_sim::board::{Happening, What};
use haltkick_sim::machine::{LongestLoop, PauseLimits};

use crate::programs::*;
use crate::{Bench, CODE, DATA, DONE};

/// 128 ticks of 2.5 GHz.
const GAP_PS: u64 = 51_200;
const EXIT_PS: u64 = 500_000;

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

fn by_time(doubled: u64) -> LongestLoop {
    LongestLoop::Ps(1_638_400 * doubled)
}

fn by_number(doubled: u64) -> LongestLoop {
    LongestLoop::Pauses(40 * doubled)
}

#[test]
fn a_parked_waiter_exits_at_the_pause_at_which_it_would_have() {
    for longest in [by_time, by_number] {
        for program in [wait_for_flag(), count(), count_to_a_bound()] {
            // Some flags come just before a loop would exit, or just after.
            for iterations in (560..760).step_by(7).chain([10, 3000, 20_000]) {
                let parked = exits(program, true, iterations, longest);
                assert_eq!(parked, exits(program, false, iterations, longest), "{iterations} iterations");
                assert!(iterations < 3000 || !parked.0.is_empty(), "{parked:?}");
            }
        }
    }
}

#[test]
fn an_alarm_finds_a_parked_waiter_before_its_loop_exits() {
    let mut bench = Bench::new("cascadelake-2s", wait_for_flag());
    bench.board.limit_pauses(0, Some(PauseLimits { gap_ps: GAP_PS, longest: by_time(1) }));
    bench.start(0, CODE, DATA, 0);
    bench.board.set_alarm(0, 1_500_000);
    let first = bench.board.run(u64::MAX / 2).unwrap();
    assert_eq!((first.what, first.at_ps), (What::Alarm, 1_500_000));
    bench.board.resume(0, 2_000_000);
    let second = bench.board.run(u64::MAX / 2).unwrap();
    assert_eq!(second.what, What::PauseLoop);
    assert!(second.at_ps > 2_000_000 + 1_638_400, "the loop began anew: {second:?}");
}
