//! The preempted flag: who writes it, and whether it says what happened.

use std::time::Duration;

use haltkick_vmm::{PreemptedBy, PreemptedSource, Run, Sched, bpf_can_write_flags};
use support::{Check, Settings, apply, check, config, needs, start, trial};

fn looking(sched: Sched) -> Run {
    config().sched(sched).workload("hint-check").lock("none").pv(false)
}

#[apply(trial)]
fn the_preempted_hint_says_what_the_books_of_the_vmms_scheduler_say() -> Check {
    let window = Duration::from_millis(300);
    let hint = start(&looking(Sched::Vmm).window(window))?.hint.ok_or("nobody looked")?;
    check(hint.compared > 0 && hint.samples > hint.compared, || format!("{hint:?}"))?;
    check(hint.contradicted == 0 && hint.moved_while_marked == 0, || format!("{hint:?}"))
}

#[apply(trial)]
fn a_bpf_program_marks_the_vcpus_that_the_host_preempted() -> Check {
    needs(bpf_can_write_flags())?;
    let (preempted_by, window) = (PreemptedBy::Bpf, Duration::from_millis(500));
    let outcome = start(&looking(Sched::Host).preempted_by(preempted_by).window(window))?;
    // The supervisor has seen a flag set, or it would not say so.
    check(outcome.preempted_source == Ok(PreemptedSource::Bpf), || {
        format!("{:?}", outcome.preempted_source)
    })?;
    let hint = outcome.hint.ok_or("nobody looked")?;
    // Of four or more vCPUs on each pCPU most do not run. Not all of them are marked: but few that are may move.
    check(hint.moved_while_marked * 20 <= hint.samples, || format!("{hint:?}"))?;
    check(hint.still_while_unmarked * 2 <= hint.samples, || format!("{hint:?}"))
}

#[apply(trial)]
fn without_attribution_nobody_guesses_what_a_vcpu_was_doing() -> Check {
    let outcome = start(&config().attribution(false))?;
    let nothing = [outcome.preemptions, outcome.preempted_ns, outcome.lost_ns, outcome.injected];
    check(nothing.iter().all(Option::is_none), || format!("{nothing:?}"))?;
    check(outcome.vcpus.iter().any(|vcpu| vcpu.preemptions > 0), || "nobody was preempted".into())
}

#[apply(trial)]
fn a_vcpu_marked_as_preempted_does_not_run() -> Check {
    let outcome = start(&config().workload("selftest-preempted"))?;
    check(outcome.preempted_source == Ok(PreemptedSource::Vmm), || {
        format!("{:?}", outcome.preempted_source)
    })?;
    // At ratio 4, three of four vCPUs are off at any time: if the flag told nothing, no look would find it set.
    check(outcome.acquisitions() > 0, || "no vCPU was ever seen marked".into())?;
    let preemptions: u64 = outcome.vcpus.iter().map(|vcpu| vcpu.preemptions).sum();
    check(preemptions > 0, || "nobody was preempted".into())
}
