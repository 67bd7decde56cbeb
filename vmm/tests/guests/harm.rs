//! Hostile guests, alone and next to an honest one.

use std::time::Duration;

use haltkick_vmm::{Ended, Run, RunError, Sched, Share};
use support::within;
use support::{
    Check, Failed, PATIENCE, Settings, apply, check, config, nested, start_stoppable, start_two, trial,
    unexpected,
};

/// Part of the CPU time that an honest guest may lack of its half in the median run: windows are short, and hosts busy.
const SLACK: f64 = 0.05;

/// The margin is ten seconds and more: the two runs pass it at the same time.
#[apply(trial)]
fn a_guest_that_never_starts_ends_under_both_schedulers() -> Check {
    let never_starts = |sched| {
        let config =
            config().workload("selftest-not-started").sched(sched).watchdog(Duration::from_millis(300));
        match within(PATIENCE, |stop| start_stoppable(&config, stop))? {
            Err(RunError::NoProgress(said)) if said.contains("have begun to work") => Ok(()),
            other => unexpected(other),
        }
    };
    std::thread::scope(|scope| {
        let under_host = scope.spawn(|| never_starts(Sched::Host));
        let under_vmm = never_starts(Sched::Vmm);
        under_host.join().expect("no test panics").and(under_vmm)
    })
}

/// Runs an honest guest, whose vCPUs never sleep, next to one that runs `workload`. Returns how both ended.
fn beside(workload: &str, base: Run) -> Result<[Ended; 2], RunError> {
    let honest = base.lock("tas").pv(false);
    let hostile = honest.clone().workload(workload);
    start_two(&honest.beside([hostile.name("hostile")]).name("honest"))
}

/// Checks the honest guest's result. Returns its share of `window` on `cpus` pCPUs.
fn part_of_unharmed(honest: Ended, window: Duration, cpus: usize) -> Result<f64, Failed> {
    let outcome = honest.outcome()?;
    check(outcome.lost_updates == Some(0), || format!("lost updates: {:?}", outcome.lost_updates))?;
    check(outcome.acquisitions() > 0, || "it did not get anywhere".into())?;
    let run: u64 = outcome.vcpus.iter().filter_map(|vcpu| vcpu.run_ns).sum();
    Ok(run as f64 / (window.as_nanos() as f64 * cpus as f64))
}

/// Runs next to `workload` a few times, and a few times more if the honest guest did not have its share under the VMM's
/// scheduler, which a busy host may prevent now and then. The host's scheduler decides about shares of its own. `look`
/// checks how the other guest ended.
fn unharmed_beside(workload: &str, base: &Run, look: impl Fn(Ended) -> Check) -> Check {
    const RUNS: u64 = 8;
    let base = base.clone().window(config().window * 3);
    let mut parts = Vec::new();
    for seed in 1..=RUNS {
        let [honest, hostile] = beside(workload, base.clone().seed(seed))?;
        parts.push(part_of_unharmed(honest, base.window, base.cpus.len())?);
        look(hostile)?;
        parts.sort_by(f64::total_cmp);
        let had_its_share =
            base.rules.sched == Sched::Host || nested() || parts[parts.len() / 2] > 0.5 - SLACK;
        if seed >= RUNS / 2 && had_its_share {
            return Ok(());
        }
    }
    Err(format!("its parts of the CPU time: {parts:.2?}").into())
}

#[apply(trial)]
fn an_honest_guest_survives_one_that_rings_and_writes_anything(sched: Sched) -> Check {
    unharmed_beside("selftest-harm", &config().sched(sched), |hostile| match hostile.result {
        Err(error @ (RunError::System { .. } | RunError::HostLacks(_))) => {
            Err(format!("a guest has brought about {error}").into())
        }
        _ => Ok(()),
    })
}

/// The run has no trace, and so no ring for one.
#[apply(trial)]
fn an_honest_guest_has_its_share_beside_one_that_writes_nonsense() -> Check {
    unharmed_beside("selftest-nonsense", &config(), |hostile| match hostile.result {
        Ok(_) | Err(RunError::ExclusionViolated(_)) => Ok(()),
        other => unexpected(other),
    })
}

fn did_something(hostile: Ended) -> Check {
    check(hostile.outcome()?.acquisitions() > 0, || "it did nothing".into())
}

#[apply(trial)]
fn an_honest_guest_survives_a_flood_of_invalidations(sched: Sched) -> Check {
    unharmed_beside("selftest-flood", &config().sched(sched), did_something)
}

#[apply(trial)]
fn an_honest_guest_survives_one_that_locks_the_bus(sched: Sched) -> Check {
    unharmed_beside("selftest-split-lock", &config().sched(sched), did_something)
}

#[apply(trial)]
fn an_honest_guest_has_its_share_beside_one_favoured_vcpu() -> Check {
    for (share, pcpus) in [(Share::Vcpu, 1), (Share::Guest, 1), (Share::Vcpu, usize::MAX)] {
        let cpus: Vec<_> = config().cpus.into_iter().take(pcpus).collect();
        let base = config().share(share).vcpus(2 * cpus.len() as u32).cpus(cpus);
        unharmed_beside("selftest-feeder", &base, did_something)?;
    }
    Ok(())
}

#[apply(trial)]
fn an_honest_guest_that_is_done_waits_for_one_that_stands_still() -> Check {
    // Time for the one that hangs to come to that: all its vCPUs begin to work at the same time.
    let honest = config().lock("tas").pv(false).warmup(Duration::from_millis(300));
    // It stands still when the window closes, and is waited for.
    let hang = honest.clone().workload("selftest-hang").watchdog(Duration::from_secs(4));
    let both = honest.beside([hang.name("hang")]).name("honest");
    let [honest, hang] = start_two(&both)?;
    check(honest.outcome()?.acquisitions() > 0, || "it did not get anywhere".into())?;
    match hang.result {
        Err(RunError::NoProgress(_)) => Ok(()),
        other => unexpected(other),
    }
}
