//! Guests that fold.

use haltkick_vmm::{Fold, Governor};

use support::{reported, run_ns, start_two};

use super::*;

const QUICK: Governor = Governor { interval: us(2_000), ..Governor::LINUX };

/// Eight vCPUs on four pCPUs, which all have a task.
fn tasks(fold: Fold) -> Run {
    let run = simulated("ivybridge-ex-4s", 4, 2).workload("tasks").fold(fold).slice(us(1_000));
    run.form("tas", false).think(us(10)).window(us(60_000)).warmup(us(60_000)).drain(true)
}

/// vCPUs that did sections in the window.
fn busy(outcome: &Outcome) -> usize {
    outcome.vcpus.iter().filter(|vcpu| vcpu.acquisitions > 0).count()
}

#[test]
fn a_governor_folds_while_time_is_stolen_and_tasks_follow() {
    let of = |config: &Run, names: [&str; 5]| {
        let outcome = done(config);
        (names.map(|name| event(&outcome, name)), busy(&outcome))
    };
    let names = ["fold_samples", "folds", "unfolds", "tasks_pushed", "tasks_pulled"];
    let folding = tasks(Fold::Governor(QUICK));
    let outcome = done(&folding);
    // Eight CPUs have no share between 2 % and 5 %: it goes back and forth between two numbers.
    let mean = event(&outcome, "fold_preferred") as f64 / event(&outcome, "fold_samples") as f64;
    assert!((3.5..=5.5).contains(&mean), "{mean}");
    // Tasks follow: at most one turn each on a vCPU that is not preferred.
    assert!(names.iter().all(|name| event(&outcome, name) > 0), "{:?}", outcome.lock_events);
    // Each of four or five vCPUs has four tasks or more, and one that has none pulls its share and not one.
    let ([_, _, unfolds, _, pulled], _) = of(&folding.clone().tasks(20), names);
    assert!(unfolds > 0 && 2 * pulled > 3 * unfolds, "{pulled} tasks pulled in {unfolds} unfolds");
    // As many vCPUs as there are pCPUs lose no time.
    let ([samples, folds, ..], busy) = of(&folding.vcpus(4), names);
    assert!(samples > 10 && folds == 0 && busy == 4, "{samples} samples, {folds} folds, {busy} busy");
}

#[test]
fn an_oracle_leaves_one_vcpu_for_each_pcpu() {
    let folds = [Fold::Off, Fold::Oracle].into_iter();
    for (fold, number) in folds.flat_map(|fold| [1, 3, 8, 20].map(|number| (fold, number))) {
        let outcome = done(&tasks(fold).tasks(number));
        let vcpus = if fold == Fold::Off { 8 } else { 4 };
        let found = (busy(&outcome), outcome.lost_updates);
        assert_eq!(found, ((number as usize).min(vcpus), Some(0)), "{number} tasks, {fold:?}");
        if number == 8 && fold == Fold::Off {
            let moves = ["folds", "unfolds", "tasks_pushed", "tasks_pulled"];
            assert_eq!(moves.map(|name| event(&outcome, name)), [0; 4]);
        } else if number == 8 {
            assert_eq!(sum(&outcome.preemptions.unwrap()), 0, "none lost its pCPU");
            assert!(reported(&outcome, "queued") > 100, "tasks take turns");
        }
    }
}

#[test]
fn a_guest_that_folds_loses_to_one_that_does_not() {
    let two = |share, folds: [Fold; 2]| {
        let mut run = tasks(folds[0]).vcpus(4).share(share);
        run.guests.push(haltkick_vmm::Guest { name: "other".into(), seed: 2, ..run.guests[0].clone() });
        run.guests[1].ours_mut().unwrap().fold = folds[1];
        let [folder, other] = start_two(&run).map(|ended| run_ns(&ended.outcome().expect("it ends")) as f64);
        folder / (folder + other)
    };
    // Four pCPUs: two vCPUs against four have a third, by vCPU, and half, by guest.
    let by_vcpu = two(Share::Vcpu, [Fold::Oracle, Fold::Off]);
    let by_guest = two(Share::Guest, [Fold::Oracle, Fold::Off]);
    assert!((0.30..0.37).contains(&by_vcpu) && (0.46..0.51).contains(&by_guest), "{by_vcpu}, {by_guest}");
    let both = two(Share::Vcpu, [Fold::Oracle, Fold::Oracle]);
    assert!((0.48..0.52).contains(&both), "{both}");
}
