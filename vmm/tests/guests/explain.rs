//! Guests that die or hang are explained; a profile agrees with what ran.

use std::time::{Duration, Instant};

use haltkick_vmm::{AnyOutcome, Cause, Explanation, Instruments, ProfileRow, Run, RunError, Sched};
use support::{Check, PATIENCE, Settings, apply, config, ms, nested, skip, trial, us, watched};

/// Runs what must fail, and gives what is told of it.
pub(crate) fn explained(config: &Run) -> (RunError, Explanation) {
    let (guest, _) = watched(config, &Instruments::default()).unwrap();
    let error = guest.result.expect_err("it must fail");
    let explanation = guest.explanation.unwrap_or_else(|| panic!("no explanation for: {error}"));
    assert_eq!(explanation.vcpus.len(), config.guests[0].vcpus as usize);
    let grouped: usize = explanation.groups.iter().map(|group| group.vcpus.len()).sum();
    assert_eq!(grouped, config.guests[0].vcpus as usize, "{grouped} vCPUs in groups");
    let text = explanation.to_string();
    let long = text.lines().count();
    assert!(long <= 20 * explanation.groups.len() + 20, "{long} lines:\n{text}");
    (error, explanation)
}

#[apply(trial)]
fn an_exception_is_explained_by_its_instruction() {
    let config = config().workload("selftest-exception").window(PATIENCE);
    let (_, explanation) = explained(&config);
    assert_eq!(explanation.verdict.vcpu, Some(config.guests[0].vcpus - 1), "{:?}", explanation.verdict);
    let at = explanation.groups[0].at.as_ref().expect("no place");
    assert!(at.symbol.as_deref().is_some_and(|name| name.contains("selftest::exception")), "{at:?}");
    let here = at.code.iter().find(|line| line.address == at.address).expect("no code");
    assert!(here.text.starts_with("mov ") && here.text.contains('['), "{here:?}");
    let file = at.frames.iter().find_map(|frame| frame.file.as_deref());
    assert_eq!(file, Some("guest/src/workloads/selftest.rs"), "{:?}", at.frames);
}

/// A large machine's explanation is no longer than a small one's.
#[apply(trial)]
fn a_hang_of_1024_vcpus_is_explained_in_groups() -> Check {
    if nested() {
        return skip("an emulated machine takes minutes to give each of this many vCPUs its turns");
    }
    // Sixteen rounds of all of them: a vCPU that is taken off between unlock and kick is back by then, on a busy host
    // too.
    let (_, explanation) = explained(
        &config().workload("selftest-hang").vcpus(1024).window(PATIENCE).watchdog(Duration::from_secs(8)),
    );
    assert_eq!(explanation.verdict.vcpu, Some(0), "{:?}", explanation.verdict);
    assert!(explanation.groups.len() < 60, "{} groups", explanation.groups.len());
    Ok(())
}

/// Under the VMM's scheduler simulated vCPUs sleep for it.
#[apply(trial)]
fn a_lost_kick_names_who_sleeps_for_it() {
    let config = config().workload("selftest-lost-kick").lock("ticket").sched(Sched::Host);
    let (error, explanation) = explained(&config.window(PATIENCE).watchdog(Duration::from_secs(1)));
    assert!(matches!(error, RunError::NoProgress(_)), "{error}");
    let verdict = &explanation.verdict;
    assert!(verdict.cause == Cause::LostWakeUp && verdict.vcpu.is_some(), "{verdict:?}\n{explanation}");
}

/// Whatever the guest writes, the run ends like one of a guest, and everything that is made of it can be made.
#[apply(trial)]
fn a_guest_that_writes_nonsense_changes_figures_at_most(sched: Sched) {
    let instruments = Instruments { profile: Some(ms(1)), trace: true, ..Instruments::default() };
    let (guest, found) = watched(&config().workload("selftest-nonsense").sched(sched), &instruments).unwrap();
    match guest.result {
        Ok(AnyOutcome::Ours(outcome)) => _ = outcome.acquisitions(),
        Err(RunError::ExclusionViolated(_)) => {
            let explanation = guest.explanation.as_ref().expect("no explanation");
            assert!(!explanation.to_string().is_empty());
        }
        other => panic!("{other:?}"),
    }
    let trace = found.trace.expect("no trace");
    assert!(trace.implausible_sections() > 0, "the guest wrote no nonsense");
    trace.write(std::io::sink()).unwrap();
}

/// Holding takes a quarter of the guest's time: that share of samples must fall there, wherever slices and exits are.
#[apply(trial)]
fn a_profile_has_its_samples_where_the_time_goes() {
    let instruments = Instruments { profile: Some(us(300)), ..Instruments::default() };
    let (mut samples, mut holder, mut work) = (0, 0, 0);
    let start = Instant::now();
    // A busy host takes the thread off its CPU and so takes samples away: as many runs as it needs.
    while samples < 400 && start.elapsed() < PATIENCE {
        let config = config()
            // A vCPU for each pCPU: none waits.
            .vcpus(1)
            .cpus(config().cpus[..1].to_vec())
            .form("tas", false)
            .hold(us(3))
            .think(us(9))
            .window(ms(300));
        let (guest, found) = watched(&config, &instruments).unwrap();
        guest.outcome().unwrap();
        let profile = found.profile.expect("no profile");
        let sum = |those: &dyn Fn(&ProfileRow) -> bool| -> u64 {
            profile.rows.iter().filter(|row| those(row)).map(|row| row.samples).sum()
        };
        samples += profile.samples;
        assert_eq!(sum(&|_| true), profile.samples, "rows do not add up");
        holder += sum(&|row| row.activity == "holder");
        work += sum(&|row| row.symbol.as_deref().is_some_and(|name| name.contains("time::work")));
    }
    // Seven standard deviations of 400 samples.
    let share = holder as f64 / samples as f64;
    assert!((0.10..0.40).contains(&share), "{holder} of {samples} samples in the section");
    assert!(work * 10 > samples * 8, "{work} of {samples} samples in the work loop");
}
