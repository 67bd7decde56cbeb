//! Several guests on one simulated machine, under the VMM's scheduler and under models of hosts'.

use haltkick_vmm::ShapeFlags;
use haltkick_vmm::hosts::{Host, Invalidations, presets};
use support::{Settings, event, exits, found, panics, run_ns, simulated, start_two, us};

use super::*;

/// A second guest runs with the first.
pub(super) fn pair(first: Run, second: Run) -> Run {
    first.name("a").beside([second.name("b")])
}

pub(super) fn outcomes(ended: Vec<Ended>) -> Vec<Outcome> {
    let outcome = |ended: Ended| {
        let name = ended.name.clone();
        ended.outcome().unwrap_or_else(|error| panic!("guest {name}: {error}"))
    };
    ended.into_iter().map(outcome).collect()
}

#[test]
fn two_guests_do_their_own_work_with_their_own_locks() {
    let work = |sections| Shape { work_sections: sections, flags: ShapeFlags::GO_ON, ..Shape::default() };
    let base = small().workload("mixed").think(us(2)).window(Duration::from_secs(60));
    let first = base.clone().form("qspinlock", true).shape(work(500));
    let second = base.form("tas", false).vcpus(3).shape(work(2000));
    let ended = found(&pair(first, second)).guests;
    assert_eq!(ended.iter().map(|ended| ended.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    for (outcome, (vcpus, sections)) in outcomes(ended).iter().zip([(8, 500), (3, 2000)]) {
        assert_eq!((outcome.vcpus.len(), outcome.acquisitions()), (vcpus, sections));
        assert_eq!(
            exits(outcome, "pv_wait") > 0,
            vcpus == 8,
            "exits of the other guest: {:?}",
            outcome.vm_exits
        );
    }
}

#[test]
fn each_guest_serves_its_own_page_faults_and_checks_for_leaks() {
    let memory = |workload: &str, lock: &str| {
        small().workload(workload).form(lock, true).memory_bytes(16 << 20).think(us(0))
    };
    let good = memory("selftest-memory", "per-vma");
    for outcome in outcomes(found(&pair(good.clone(), memory("selftest-memory", "mmap-sem"))).guests) {
        assert!(
            event(&outcome, "pgfault") > 0 && exits(&outcome, "invalidate") > 0,
            "{:?}",
            outcome.vm_exits
        );
    }
    let [leaks, good] = start_two(&pair(memory("selftest-leak", "mmap-sem"), good));
    panics(leaks.result, "1 areas leaked");
    assert_eq!(good.outcome().expect("it has leaked nothing").lost_updates, Some(0));
}

/// A run of `guests` guests with as many vCPUs as there are pCPUs, scheduled as `host` does.
pub(super) fn hosted(host: &str, guests: u64, lock: &str, pv: bool) -> Run {
    let host = presets().iter().find(|preset| preset.name == host).expect("it is built in").host();
    let mut run = simulated("ivybridge-ex-4s", 4, 1).sched(Sched::Host).window(us(40_000)).form(lock, pv);
    run.host = Some(Arc::new(host));
    let guest =
        |index| haltkick_vmm::Guest { name: format!("{index}"), seed: index + 1, ..run.guests[0].clone() };
    run.guests = (0..guests).map(guest).collect();
    run
}

#[test]
fn locks_exclude_and_guests_have_equal_shares_under_every_host() {
    for preset in presets() {
        assert_eq!(preset.host().name, preset.name);
        for (lock, pv) in [("tas", false), ("ticket", false), ("qspinlock", true), ("qspinlock-wc", true)] {
            for outcome in outcomes(found(&hosted(preset.name, 2, lock, pv)).guests) {
                assert!(outcome.acquisitions() > 0, "{lock} under {}", preset.name);
            }
        }
        let run = hosted(preset.name, 3, "none", false);
        let run_ns: Vec<u64> = outcomes(found(&run).guests).iter().map(run_ns).collect();
        let (least, most) = (run_ns.iter().min().unwrap(), run_ns.iter().max().unwrap());
        assert!(most - least < most / 4, "{}: {run_ns:?}", preset.name);
    }
}

#[test]
fn calls_wait_for_vcpus_without_a_pcpu_where_invalidations_do() {
    let mut run = hosted("linux-7.3", 2, "none", false);
    run.guests.iter_mut().for_each(|guest| guest.ours_mut().unwrap().workload = "call-all".into());
    let mut calls = |invalidations| -> u64 {
        run.host = Some(Arc::new(Host { invalidations, ..Host::clone(run.host.as_ref().unwrap()) }));
        outcomes(found(&run).guests).iter().map(Outcome::acquisitions).sum()
    };
    let (waits, pv) = (calls(Invalidations::Wait), calls(Invalidations::Pv));
    assert!(waits > 0 && waits * 4 < pv, "{waits} and {pv} calls");
}
