//! Which pCPU a kick wakes: the scheduler, with vCPUs and timers that are made up.

use std::cell::RefCell;

use crate::host::clock::Clock;
use crate::machine::vcpu::{Exit, MadeUpVcpu, Vcpu};
use crate::observe::notes::Observer;
use crate::sched::Rules;
use crate::sched::core::{Bell, Core, Next, Queues, Turn};
use crate::sched::pcpu::Pcpu;
use crate::sched::slice::{SliceTimer, Timer};

use super::Ground;

struct NoTimer;

impl Timer for NoTimer {
    const IS_DEAR: bool = true;

    fn set(&self, _: u64, _: u64) {}
}

/// Notes which pCPUs it was rung for.
#[derive(Default)]
struct Rung(RefCell<Vec<u32>>);

impl Bell for Rung {
    fn ring(&self, pcpu: u32) {
        self.0.borrow_mut().push(pcpu);
    }

    fn ring_all(&self) {}
}

#[test]
fn a_kick_wakes_the_pcpu_that_the_vcpu_ran_on() {
    let ground = Ground::new(Clock::Host);
    let guests = [ground.guest(2)];
    let vcpu = |id| Vcpu::from(MadeUpVcpu::new(id, || Ok(Exit::Interrupted)));
    let core = Core::new(
        Rules::default(),
        (&[0, 1, 2, 3], Queues::PerPcpu),
        &guests,
        vec![vec![vcpu(0), vcpu(1)]],
        None,
        Rung::default(),
    );
    let mut pcpus = [0, 1, 2, 3].map(|number| {
        let observer = Observer::new(&ground.notes, number).expect("there is nothing to observe");
        Pcpu::new(number, None, SliceTimer::new(NoTimer, core.slice_ns), None, observer)
    });
    let mut begins = |number: u32| {
        let Next::Runs(mut task) = core.next(number) else { panic!("both are ready") };
        task.last_pcpu = Some(number);
        core.begin_turn(&mut task, &mut pcpus[number as usize], 1, 1);
        task
    };
    let (mut kicker, sleeper) = (begins(0), begins(2));
    let slept = core.end_turn(sleeper, &mut pcpus[2], Turn::Waits, (1, 2));
    assert!(slept.is_none());
    for idle in [1, 2, 3] {
        assert!(matches!(core.next(idle), Next::Idles(..)), "pCPU {idle} has nothing to run");
    }
    assert!(core.exited(&mut kicker, &mut pcpus[0], Exit::Kick(1)).is_none());
    assert_eq!(*core.bell.0.borrow(), [2]);
    let Next::Runs(woken) = core.next(2) else { panic!("the vCPU is ready") };
    assert_eq!(woken.number(), 1);
}
