//! Guests under the models of hosts' schedulers.

use std::sync::Arc;

use haltkick_vmm::hosts::{Host, Invalidations, presets};

use super::*;

/// A run of `guests` guests with as many vCPUs as there are pCPUs, scheduled as `host` does.
fn hosted(host: &str, guests: usize, lock: &str, pv: bool) -> Run {
    let host = presets().iter().find(|preset| preset.name == host).expect("it is built in").host();
    let mut run = simulated("ivybridge-ex-4s", 4, 1).sched(Sched::Host).window(us(40_000)).lock(lock).pv(pv);
    run.host = Some(Arc::new(host));
    let first = run.guests[0].clone();
    run.guests = (0..guests)
        .map(|index| haltkick_vmm::Guest {
            name: format!("{index}"),
            seed: index as u64 + 1,
            ..first.clone()
        })
        .collect();
    run
}

/// Outcomes of all guests.
fn outcomes(run: &Run) -> Vec<Outcome> {
    let found = haltkick_vmm::run(run, &Image::embedded(), &Instruments::default(), &AtomicBool::new(false));
    found.expect("it runs").guests.into_iter().map(|guest| guest.outcome().expect("it ends")).collect()
}

#[test]
fn locks_exclude_under_every_host() {
    for preset in presets() {
        for (lock, pv) in [("tas", false), ("ticket", false), ("qspinlock", true), ("qspinlock-wc", true)] {
            for outcome in outcomes(&hosted(preset.name, 2, lock, pv)) {
                let sections: u64 = outcome.vcpus.iter().map(|vcpu| vcpu.acquisitions).sum();
                assert!(sections > 0, "{lock} under {}", preset.name);
                assert_eq!(outcome.lost_updates, Some(0), "{lock} under {}", preset.name);
            }
        }
    }
}

#[test]
fn guests_have_equal_shares_under_every_host() {
    for preset in presets() {
        let run = hosted(preset.name, 3, "none", false);
        let run_ns: Vec<u64> = outcomes(&run)
            .iter()
            .map(|outcome| outcome.vcpus.iter().filter_map(|vcpu| vcpu.run_ns).sum())
            .collect();
        let (least, most) = (run_ns.iter().min().unwrap(), run_ns.iter().max().unwrap());
        assert!(most - least < most / 4, "{}: {run_ns:?}", preset.name);
    }
}

#[test]
fn a_run_under_a_host_depends_on_its_seed_alone() {
    let run = hosted("linux-7.3", 2, "qspinlock", true);
    let sections = |run: &Run| -> Vec<u64> {
        outcomes(run).iter().flat_map(|it| it.vcpus.iter().map(|vcpu| vcpu.acquisitions)).collect()
    };
    assert_eq!(sections(&run), sections(&run));
}

/// Sections, or operations, of all guests of `run` under its host with this change.
fn sections_under(mut run: Run, change: impl FnOnce(&mut Host)) -> u64 {
    let mut host = Host::clone(run.host.as_ref().unwrap());
    change(&mut host);
    run.host = Some(Arc::new(host));
    outcomes(&run).iter().flat_map(|it| it.vcpus.iter().map(|vcpu| vcpu.acquisitions)).sum()
}

#[test]
fn calls_wait_for_vcpus_without_a_pcpu_where_invalidations_do() {
    let mut run = hosted("linux-7.3", 2, "none", false);
    run.guests.iter_mut().for_each(|guest| guest.ours_mut().unwrap().workload = "call-all".into());
    let calls = |invalidations| sections_under(run.clone(), |host| host.invalidations = invalidations);
    let (waits, pv) = (calls(Invalidations::Wait), calls(Invalidations::Pv));
    assert!(waits > 0 && waits * 4 < pv, "{waits} and {pv} calls");
}
