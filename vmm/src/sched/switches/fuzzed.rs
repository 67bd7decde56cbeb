//! Reports of switches in any order, of vCPUs that say anything.

use haltkick_fuzzing::{Script, Target, no_seeds};

use super::{Frame, SwitchBooks};
use crate::host::clock::Moment;
use crate::host::switches::Switch;
use crate::host::time::TscRate;
use crate::sched::loss::GuestClock;
use crate::sched::window::WindowTimes;

pub(crate) const TARGET: Target = Target { name: "switches", most_bytes: 1024, seeds: no_seeds, execute };

const VCPUS: u32 = 4;
const LOCKS: u32 = 2;
const WINDOW_NS: [u64; 2] = [1_000, 1_000_000];

/// Any reports, the kernel's times among them: no vCPU is off for longer than the window, or costs each of the others
/// more.
fn execute(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let window = WindowTimes::between(WINDOW_NS[0], WINDOW_NS[1]);
    let clock = GuestClock {
        now: Moment { ns: script.number().wrapping_mul(16), tsc: script.number() },
        rate: TscRate::of_khz(2_000_000),
    };
    let frame = Frame { window: &window, clock, halts_in_kernel: script.byte() & 1 != 0 };
    let mut books = SwitchBooks::new(VCPUS, LOCKS);
    let mut reports = 0;
    while !script.is_over() {
        _ = books.enter(&switch(&mut script), &frame);
        _ = books.preempted(u32::from(script.byte()) % VCPUS);
        reports += 1;
    }
    let switched = books.finish(script.number());
    let longest_ns = (WINDOW_NS[1] - WINDOW_NS[0]) * reports;
    let (off, lost) = (&switched.preempted_ns, &switched.lost_ns);
    for off_ns in [off.holder, off.head, off.waiter, off.halted, off.other] {
        assert!(off_ns <= longest_ns, "{switched:?}");
    }
    for lost_ns in [lost.holder, lost.head, lost.waiter] {
        assert!(lost_ns <= longest_ns * u64::from(VCPUS), "{switched:?}");
    }
}

fn switch(script: &mut Script<'_>) -> Switch {
    Switch {
        at_ns: script.number().wrapping_mul(1_000),
        since_tsc: script.number().wrapping_mul(100),
        entered: script.number(),
        lock_entered: script.number(),
        vcpu: script.number() as u32,
        pcpu: script.number() as u32,
        lock: script.number() as u32,
        lock_owner: script.number() as u32,
        state: script.number() as u32,
        kind: script.number() as u32,
        thread_does: script.number() as u32,
        unused: 0,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn fuzz_switches_in_any_order_cost_no_more_than_the_window() {
        super::TARGET.run();
    }
}
