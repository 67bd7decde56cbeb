//! Guests that die or hang are explained; profiles and traces agree with what ran.

use std::time::{Duration, Instant};

use haltkick_vmm::{AnyOutcome, Cause, Explanation, Instruments, ProfileRow, Run, RunError, Sched};
use support::{
    Check, Failed, PATIENCE, Settings, apply, check, config, dies_with_its_place, nested, not_nested, trial,
    unexpected, watched,
};

#[apply(trial)]
fn a_panic_and_an_exception_are_reported_with_their_place() -> Check {
    dies_with_its_place(&config().window(PATIENCE))
}

/// Runs what must fail, and gives what is told of it.
pub(crate) fn explained(config: &Run) -> Result<(RunError, Explanation, String), Failed> {
    let (guest, _) = watched(config, &Instruments::default())?;
    let error = guest.result.err().ok_or("the run came to its end")?;
    let explanation = guest.explanation.ok_or_else(|| format!("no explanation for: {error}"))?;
    check(explanation.vcpus.len() == config.guests[0].vcpus as usize, || {
        format!("{} vCPUs", explanation.vcpus.len())
    })?;
    let grouped: usize = explanation.groups.iter().map(|group| group.vcpus.len()).sum();
    check(grouped == config.guests[0].vcpus as usize, || format!("{grouped} vCPUs in groups"))?;
    let text = explanation.to_string();
    let long = text.lines().count();
    check(long <= 20 * explanation.groups.len() + 20, || format!("{long} lines:\n{text}"))?;
    Ok((error, explanation, guest.console))
}

#[apply(trial)]
fn a_panic_is_explained_with_the_console() -> Check {
    let (_, explanation, console) = explained(&config().workload("selftest-panic").window(PATIENCE))?;
    check(explanation.verdict.cause == Cause::Panic && explanation.verdict.vcpu == Some(0), || {
        format!("{:?}", explanation.verdict)
    })?;
    check(console == "selftest-panic: vCPU 0 is about to panic\n", || console)
}

#[apply(trial)]
fn an_exception_is_explained_by_its_instruction() -> Check {
    let config = config().workload("selftest-exception").window(PATIENCE);
    let (_, explanation, _) = explained(&config)?;
    check(explanation.verdict.vcpu == Some(config.guests[0].vcpus - 1), || {
        format!("{:?}", explanation.verdict)
    })?;
    let at = explanation.groups[0].at.as_ref().ok_or("no place")?;
    check(at.symbol.as_deref().is_some_and(|name| name.contains("selftest::exception")), || {
        format!("{at:?}")
    })?;
    let here = at.code.iter().find(|line| line.address == at.address).ok_or("no code")?;
    check(here.text.starts_with("mov ") && here.text.contains('['), || format!("{here:?}"))?;
    let file = at.frames.iter().find_map(|frame| frame.file.as_deref());
    check(file == Some("guest/src/workloads/selftest.rs"), || format!("{:?}", at.frames))
}

#[apply(trial)]
fn a_hang_names_the_holder_and_who_waits_for_how_long() -> Check {
    for sched in [Sched::Vmm, Sched::Host] {
        for (lock, pv) in [("qspinlock", true), ("ticket", false)] {
            let config = config().workload("selftest-hang").sched(sched).lock(lock).pv(pv).window(PATIENCE);
            let (_, explanation, _) = explained(&config)?;
            let verdict = &explanation.verdict;
            check(verdict.cause == Cause::HolderRuns && verdict.vcpu == Some(0), || format!("{verdict:?}"))?;
            let [state] = &explanation.locks[..] else {
                return Err(format!("locks {:?}", explanation.locks).into());
            };
            let word = state.word.as_ref().map_or("", |word| word.meaning.as_str());
            check(word.starts_with("held"), || format!("{lock}: {:?}", state.word))?;
            if pv {
                let queue = state.queue.as_ref().ok_or("no queue")?;
                let (first, last) = (queue.vcpus.first().copied(), queue.vcpus.last());
                check(first.is_some_and(|vcpu| state.heads.contains(&vcpu)) && queue.from_head, || {
                    format!("{queue:?}, {state:?}")
                })?;
                check(last.is_some_and(|vcpu| word.contains(&format!("vCPU {vcpu},"))), || {
                    format!("{queue:?}, {word}")
                })?;
                // A word that says so has an entry, and that one names the head.
                let sleepers = explanation.sleepers.as_ref().ok_or("no census")?;
                let named: Vec<_> = sleepers.entries.iter().map(|entry| (entry.lock, entry.vcpu)).collect();
                let slow = if word.starts_with("held and slow") { vec![(Some(0), first)] } else { vec![] };
                check(named == slow, || format!("{word}: {sleepers:?}"))?;
            }
            check(state.owner == Some(0) && state.heads.len() + state.waiters.len() > 0, || {
                format!("{state:?}")
            })?;
            let longest = explanation.vcpus.iter().filter_map(|vcpu| vcpu.asked_ns).max();
            check(longest > Some(500_000_000), || format!("nobody waits for long: {longest:?}"))?;
        }
    }
    Ok(())
}

/// MCS keeps its owner in the queue, and waiters never leave, so that all must be there, in the order in which they
/// asked.
#[apply(trial)]
fn a_queue_is_told_in_order() -> Check {
    let config = config().workload("selftest-hang").lock("mcs").pv(false).window(PATIENCE);
    let (_, explanation, _) = explained(&config)?;
    let queue = explanation.locks.first().and_then(|lock| lock.queue.clone()).ok_or("no queue")?;
    let waiters = &explanation.locks[0].waiters;
    let mut sorted = queue.vcpus.clone();
    sorted.sort_unstable();
    let mut all = [&[0][..], waiters].concat();
    all.sort_unstable();
    check(queue.from_head && queue.vcpus[0] == 0 && sorted == all, || {
        format!("{queue:?}, waiting: {waiters:?}")
    })
}

/// A large machine's explanation is no longer than a small one's.
#[apply(trial)]
fn a_hang_of_1024_vcpus_is_explained_in_groups() -> Check {
    not_nested("its emulator takes minutes to give each of this many vCPUs its turns")?;
    // Sixteen rounds of all of them: a vCPU that is taken off between unlock and kick is back by then, on a busy host
    // too.
    let (_, explanation, _) = explained(
        &config().workload("selftest-hang").vcpus(1024).window(PATIENCE).watchdog(Duration::from_secs(8)),
    )?;
    check(explanation.verdict.vcpu == Some(0), || format!("{:?}", explanation.verdict))?;
    check(explanation.groups.len() < 60, || format!("{} groups", explanation.groups.len()))
}

#[apply(trial)]
fn a_lost_kick_names_who_sleeps_for_it() -> Check {
    for (lock, sched) in [("qspinlock", Sched::Vmm), ("ticket", Sched::Host)] {
        // In an emulated machine a slice of a millisecond may be over before the vCPU has executed anything.
        let slice = if nested() { Duration::from_millis(10) } else { config().rules.slice };
        let config = config()
            .workload("selftest-lost-kick")
            .lock(lock)
            .sched(sched)
            .slice(slice)
            .window(PATIENCE)
            .watchdog(Duration::from_secs(1));
        let (error, explanation, _) = explained(&config)?;
        check(matches!(error, RunError::NoProgress(_)), || error.to_string())?;
        let verdict = &explanation.verdict;
        check(verdict.cause == Cause::LostWakeUp && verdict.vcpu.is_some(), || {
            format!("{lock} {sched:?}: {verdict:?}\n{explanation}")
        })?;
    }
    Ok(())
}

/// Whatever the guest writes, the run ends like one of a guest, and everything that is made of it can be made.
#[apply(trial)]
fn a_guest_that_writes_nonsense_changes_figures_at_most() -> Check {
    for sched in [Sched::Vmm, Sched::Host] {
        let instruments =
            Instruments { profile: Some(Duration::from_millis(1)), trace: true, ..Instruments::default() };
        let (guest, found) = watched(&config().workload("selftest-nonsense").sched(sched), &instruments)?;
        match guest.result {
            Ok(AnyOutcome::Ours(outcome)) => _ = outcome.acquisitions(),
            Err(RunError::ExclusionViolated(_)) => {
                let explanation = guest.explanation.as_ref().ok_or("no explanation")?;
                check(!explanation.to_string().is_empty(), String::new)?;
            }
            other => return unexpected(other),
        }
        let trace = found.trace.ok_or("no trace")?;
        check(trace.implausible_sections() > 0, || "the guest wrote no nonsense".into())?;
        trace.write(std::io::sink())?;
    }
    Ok(())
}

/// Holding takes a quarter of the guest's time: that share of samples must fall there, wherever slices and exits are.
#[apply(trial)]
fn a_profile_has_its_samples_where_the_time_goes() -> Check {
    let instruments = Instruments { profile: Some(Duration::from_micros(300)), ..Instruments::default() };
    let (mut samples, mut holder, mut work) = (0, 0, 0);
    let start = Instant::now();
    // A busy host takes the thread off its CPU and so takes samples away: as many runs as it needs.
    while samples < 400 && start.elapsed() < PATIENCE {
        let config = config()
            // A vCPU for each pCPU: none waits.
            .vcpus(1)
            .cpus(config().cpus[..1].to_vec())
            .lock("tas")
            .pv(false)
            .hold(Duration::from_micros(3))
            .think(Duration::from_micros(9))
            .window(Duration::from_millis(300));
        let (guest, found) = watched(&config, &instruments)?;
        guest.outcome()?;
        let profile = found.profile.ok_or("no profile")?;
        let sum = |those: &dyn Fn(&ProfileRow) -> bool| -> u64 {
            profile.rows.iter().filter(|row| those(row)).map(|row| row.samples).sum()
        };
        samples += profile.samples;
        check(sum(&|_| true) == profile.samples, || "rows do not add up".into())?;
        holder += sum(&|row| row.activity == "holder");
        work += sum(&|row| row.symbol.as_deref().is_some_and(|name| name.contains("time::work")));
    }
    // Seven standard deviations of 400 samples.
    let share = holder as f64 / samples as f64;
    check((0.10..0.40).contains(&share), || format!("{holder} of {samples} samples in the section"))?;
    check(work * 10 > samples * 8, || format!("{work} of {samples} samples in the work loop"))
}

#[apply(trial)]
fn a_trace_holds_every_section_that_the_guest_counted() -> Check {
    for sched in [Sched::Vmm, Sched::Host] {
        let instruments = Instruments { trace: true, ..Instruments::default() };
        let workload = if sched == Sched::Vmm { "mixed" } else { "critical-section" };
        let config = config().sched(sched).workload(workload);
        let (guest, found) = watched(&config, &instruments)?;
        let outcome = guest.outcome()?;
        let trace = found.trace.ok_or("no trace")?;
        let ((events, _), (sections, dropped)) = (trace.host_events(), trace.guest_sections());
        let lacks_pcpus = trace.missing().iter().any(|missing| missing.contains("pCPU"));
        let unseen = sched == Sched::Host && outcome.switches.is_err();
        check(lacks_pcpus == unseen, || format!("{sched:?}: {:?}", trace.missing()))?;
        check(events > u64::from(config.guests[0].vcpus), || format!("{events} host events"))?;
        check(sections + dropped >= outcome.acquisitions(), || {
            format!("{sections} sections traced, {} counted", outcome.acquisitions())
        })?;
        check(trace.implausible_sections() == 0, || format!("{} implausible", trace.implausible_sections()))?;
        let mut file = Vec::new();
        let bytes = trace.write(&mut file)?;
        check(bytes == file.len() as u64, || format!("{bytes} bytes said, {} written", file.len()))?;
    }
    Ok(())
}
