//! Several guests at once on the same CPUs; hostile guests, alone and next to an honest one.

use std::time::Duration;

use haltkick_vmm::{Run, RunError, Sched, Share};

use libtest_mimic::Trial;
use support::{PATIENCE, Settings, apply, config, each, ms, nested, run_ns, start_two, trial, within};

/// Part of the CPU time that an honest guest may lack of its half in the median run: windows are short, and hosts busy.
const SLACK: f64 = 0.05;

/// The margin is ten seconds and more: the two runs pass it at the same time.
#[apply(trial)]
fn a_guest_that_never_starts_ends_under_both_schedulers() {
    let never_starts = |sched| {
        let config = config().workload("selftest-not-started").sched(sched).watchdog(ms(300));
        match within(PATIENCE, &config) {
            Err(RunError::NoProgress(said)) if said.contains("have begun to work") => {}
            other => panic!("{other:?}"),
        }
    };
    std::thread::scope(|scope| {
        let under_host = scope.spawn(|| never_starts(Sched::Host));
        never_starts(Sched::Vmm);
        under_host.join().expect("it ends");
    })
}

/// Runs an honest guest, whose vCPUs never sleep, next to one with `workload` a few times, and a few times more if the
/// honest guest did not have its share under the VMM's scheduler, which a busy host may prevent now and then. The host's
/// scheduler decides about shares of its own.
fn unharmed_beside(workload: &str, base: &Run) {
    const RUNS: u64 = 8;
    let base = base.clone().window(config().window * 3).form("tas", false);
    let whole_ns = base.window.as_nanos() as f64 * base.cpus.len() as f64;
    let mut parts = Vec::new();
    for seed in 1..=RUNS {
        let honest = base.clone().seed(seed).name("honest");
        let hostile = honest.clone().workload(workload).name("hostile");
        let [honest, hostile] = start_two(&honest.beside([hostile]));
        let outcome = honest.outcome().unwrap();
        assert!(outcome.acquisitions() > 0, "it did not get anywhere");
        parts.push(run_ns(&outcome) as f64 / whole_ns);
        match (workload, hostile.outcome()) {
            (_, Err(error @ (RunError::System { .. } | RunError::HostLacks(_)))) => {
                panic!("a guest has brought about {error}");
            }
            ("selftest-harm", _) | ("selftest-nonsense", Ok(_) | Err(RunError::ExclusionViolated(_))) => {}
            (_, ended) => assert!(ended.unwrap().acquisitions() > 0, "it did nothing"),
        }
        parts.sort_by(f64::total_cmp);
        let had_its_share =
            base.rules.sched == Sched::Host || nested() || parts[parts.len() / 2] > 0.5 - SLACK;
        if seed >= RUNS / 2 && had_its_share {
            return;
        }
    }
    panic!("its parts of the CPU time: {parts:.2?}")
}

/// Guests that ring and write anything, write nonsense where a trace would be, invalidate without end, or lock the bus on and on.
#[apply(trial)]
fn an_honest_guest_survives_each_that_means_harm() -> Vec<Trial> {
    let trials = |workload: &'static str| {
        let title = format!("an_honest_guest_survives_{}", workload.replace('-', "_"));
        each(&title, move |sched| unharmed_beside(&format!("selftest-{workload}"), &config().sched(sched)))
    };
    ["harm", "nonsense", "flood", "split-lock"].into_iter().flat_map(trials).collect()
}

#[apply(trial)]
fn an_honest_guest_has_its_share_beside_one_favoured_vcpu() {
    for (share, pcpus) in [(Share::Vcpu, 1), (Share::Guest, 1), (Share::Vcpu, usize::MAX)] {
        let cpus: Vec<_> = config().cpus.into_iter().take(pcpus).collect();
        unharmed_beside("selftest-feeder", &config().share(share).vcpus(2 * cpus.len() as u32).cpus(cpus));
    }
}

#[apply(trial)]
fn an_honest_guest_that_is_done_waits_for_one_that_stands_still() {
    // Time for the one that hangs to come to that: all its vCPUs begin to work at the same time.
    let honest = config().form("tas", false).warmup(ms(300));
    // It stands still when the window closes, and is waited for.
    let hang = honest.clone().workload("selftest-hang").watchdog(Duration::from_secs(4));
    let both = honest.beside([hang.name("hang")]).name("honest");
    let [honest, hang] = start_two(&both);
    assert!(honest.outcome().unwrap().acquisitions() > 0, "it did not get anywhere");
    assert!(matches!(hang.result, Err(RunError::NoProgress(_))), "{:?}", hang.result);
}
