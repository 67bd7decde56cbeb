//! When vCPUs' turns on simulated pCPUs begin and end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use haltkick_vmm::machines::Machine;
use haltkick_vmm::{Engine, Found, Image, Instruments, RunError, run};
use support::{Settings, found, simulated};

use super::us;

#[test]
fn changes_of_vcpus_take_what_the_machine_says_and_turns_the_rest() {
    // Two vCPUs that never sleep share a pCPU, so that it goes from one turn straight to the next.
    let config = simulated("ivybridge-ex-4s", 1, 2).lock("tas").pv(false).window(us(40_000));
    let found = found(&config).expect("a run");
    let cpu_ns = found.cpu_time.as_nanos() as u64;
    let outcome = found.outcome().expect("it comes to its end");
    let costs = &config.engine.machine().expect("a machine").costs.guest;
    let changes: u64 = outcome.vcpus.iter().map(|vcpu| vcpu.preemptions).sum();
    assert!(changes > 100, "{changes}");
    let run_ns = outcome.vcpus.iter().filter_map(|vcpu| vcpu.run_ns).sum::<u64>();
    // When the window opens and closes, a change may be under way.
    let edges_ns = 2 * (costs.switch_ps + costs.exit_ps) / 1000;
    assert!(
        cpu_ns.abs_diff(run_ns) < edges_ns,
        "turns began and ended at the same times for both: {cpu_ns}, {run_ns}"
    );
    // Each change takes a fifth more or less, at random.
    let change_ns = (40_000_000 - run_ns) as f64 / changes as f64;
    let expected_ns = (costs.switch_ps + costs.exit_ps / 2) as f64 / 1000.0;
    assert!((change_ns / expected_ns - 1.0).abs() < 0.1, "{change_ns} ns a change, and not {expected_ns}");
}

#[test]
fn a_machine_says_where_vcpus_wake_up() {
    let run = |choice: &str| {
        // Four CPUs of each socket for eight vCPUs, which sleep and wake up.
        let mut config = simulated("ivybridge-ex-4s", 60, 1).lock("futex-mutex").pv(true).think(us(20));
        let machine = config.engine.machine().expect("a machine");
        let text = format!("{}\n[model]\nplacement = \"{choice}\"\n", machine.text);
        config.engine = Engine::Sim(Arc::new(Machine::parse("test", &text).expect("a machine")));
        let pcpus: Vec<u32> = (0..16).map(|cpu| cpu / 4 * 15 + cpu % 4).collect();
        let found = found(&config.vcpus(8).cpus(pcpus).window(us(4000))).expect("a run");
        let outcome = found.outcome().expect("it comes to its end");
        outcome.acquisitions()
    };
    let (last, lowest) = (run("last"), run("lowest"));
    assert_eq!(run("last"), last);
    assert_ne!(last, lowest);
}

#[test]
fn a_run_that_is_to_stop_does_although_its_time_is_virtual() {
    let (image, stop) = (Image::embedded(), AtomicBool::new(false));
    // Simulating this would take too long.
    let config = simulated("ivybridge-ex-4s", 4, 2).window(Duration::from_secs(100_000));
    std::thread::scope(|scope| {
        let under_way =
            scope.spawn(|| run(&config, &image, &Instruments::default(), &stop).and_then(Found::all));
        // By now it is most likely being simulated; if not, it has even less to do.
        std::thread::sleep(Duration::from_millis(300));
        stop.store(true, Ordering::Relaxed);
        assert!(matches!(under_way.join().expect("no panic"), Err(RunError::Interrupted)));
    });
}
