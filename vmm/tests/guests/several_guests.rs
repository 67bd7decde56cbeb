//! Several guests at once on the same CPUs.

use haltkick_vmm::{Run, RunError, Sched, Shape, ShapeFlags, Share};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::{
    Check, PATIENCE, Settings, apply, check, config, exits, not_nested, start_guests, start_two, trial,
};

#[apply(trial)]
fn two_guests_run_at_once_each_with_its_own_lock_and_workload() -> Check {
    for sched in [Sched::Vmm, Sched::Host] {
        let mix = Shape { work_sections: 500, flags: ShapeFlags::GO_ON, ..Shape::default() };
        let base = config().sched(sched).window(PATIENCE).workload("mixed").shape(mix);
        let mix = Shape { work_sections: 2000, ..Shape::default() };
        let other = base.clone().lock("tas").pv(false).vcpus(3).shape(mix).name("b");
        let ended = start_guests(&base.beside([other]).name("a"))?;
        for (ended, (name, sections, vcpus)) in
            ended.into_iter().zip([("a", 500, config().guests[0].vcpus), ("b", 2000, 3)])
        {
            check(ended.name == name, || format!("{} instead of {name}", ended.name))?;
            let outcome = ended.outcome()?;
            check(outcome.vcpus.len() == vcpus as usize, || format!("{} vCPUs", outcome.vcpus.len()))?;
            check(outcome.acquisitions() == sections, || format!("{name}: {}", outcome.acquisitions()))?;
            check(outcome.lost_updates == Some(0), || format!("{name}: {:?}", outcome.lost_updates))?;
            let waits = exits(&outcome, "pv_wait");
            check(name == "a" || waits == 0, || format!("{name}: {waits} exits of the other guest"))?;
        }
    }
    Ok(())
}

#[apply(trial)]
fn a_guest_that_dies_leaves_the_others_outcome() -> Check {
    for sched in [Sched::Vmm, Sched::Host] {
        // Long enough for the one to have said its last word.
        let base = config().sched(sched).window(config().window * 5);
        let dying = base.clone().workload("selftest-panic").name("b");
        let [a, b] = start_two(&base.beside([dying]).name("a"))?;
        check(a.outcome()?.acquisitions() > 0, || "the other guest did not go on".into())?;
        check(matches!(b.result, Err(RunError::GuestPanic { .. })), || format!("{:?}", b.result))?;
        check(b.explanation.is_some(), || "nobody says why it died".into())?;
    }
    Ok(())
}

#[apply(trial)]
fn shares_are_equal_by_guest_or_by_vcpu() -> Check {
    for share in [Share::Guest, Share::Vcpu] {
        let cpus = config().cpus.len() as u32;
        let base = config().share(share).lock("none").pv(false).vcpus(2 * cpus);
        let small = base.clone().name("small");
        let large = base.vcpus(6 * cpus).beside([small]);
        let ended = start_guests(&large.name("large"))?;
        let mut run = Vec::new();
        for ended in ended {
            run.push(ended.outcome()?.vcpus.iter().filter_map(|vcpu| vcpu.run_ns).sum::<u64>() as f64);
        }
        let of_large = run[0] / (run[0] + run[1]);
        let expected = if share == Share::Guest { 0.5 } else { 0.75 };
        check((of_large - expected).abs() < 0.12, || {
            format!("{share:?}: the large guest has {of_large:.2}")
        })?;
    }
    Ok(())
}

#[apply(trial)]
fn guests_that_do_not_go_together_are_usage_errors() -> Check {
    let base = config().name("a");
    let beside = |other: Run| base.clone().beside([other]);
    for (config, expected) in [
        (beside(base.clone()), "two guests are called `a`"),
        (beside(base.clone().vcpus(1024).name("b")), "1024 at most"),
        (beside(base.clone().lock("nothing").name("b")), "there is no lock"),
    ] {
        match start_guests(&config) {
            Err(RunError::Usage(refused)) if refused.message.contains(expected) => {}
            other => return Err(format!("{expected}: {other:?}").into()),
        }
    }
    Ok(())
}

/// Puts a limit back that a test has lowered.
struct Back(Rlimit);

impl Drop for Back {
    fn drop(&mut self) {
        _ = setrlimit(Resource::Nofile, self.0);
    }
}

#[apply(trial)]
fn guests_get_the_open_files_that_all_of_them_need() -> Check {
    not_nested("so many vCPUs take its emulator minutes, and need nothing of its KVM")?;
    // Files that the VMM keeps free in addition to one for each vCPU.
    const SPARE: u64 = 128;
    const GUESTS: u64 = 8;
    const VCPUS: u64 = 20;
    let before = getrlimit(Resource::Nofile);
    let _back = Back(before);
    // Each guest by itself would fit, all together do not, and the process may have more.
    setrlimit(Resource::Nofile, Rlimit { current: Some(VCPUS + SPARE), ..before })?;
    let base = config().lock("none").pv(false).vcpus(VCPUS as u32);
    let beside = (1..GUESTS).map(|number| base.clone().name(format!("guest {number}"))).collect::<Vec<_>>();
    for ended in start_guests(&base.beside(beside).name("guest 0"))? {
        let name = ended.name.clone();
        let outcome = ended.outcome()?;
        check(outcome.vcpus.len() as u64 == VCPUS, || format!("{name}: {outcome:?}"))?;
    }
    Ok(())
}
