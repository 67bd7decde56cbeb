//! vCPUs that lose their pCPUs, as far as that is known: the preempted flag, who writes it, and whether it says what happened; and the
//! decisions of the host's scheduler, as reported switch by switch, against the kernel's own counts.

use haltkick_vmm::{Outcome, PreemptedBy, PreemptedSource, Run, Sched, VcpuOutcome, bpf_can_report_switches};

use support::{Check, Settings, apply, config, done, ms, skip, sum, trial};

fn looking(sched: Sched) -> Run {
    config().sched(sched).workload("hint-check").form("none", false)
}

#[apply(trial)]
fn the_preempted_hint_says_what_the_books_of_the_vmms_scheduler_say() {
    let hint = done(&looking(Sched::Vmm).window(ms(300))).hint.expect("nobody looked");
    assert!(hint.compared > 0 && hint.samples > hint.compared, "{hint:?}");
    assert!(hint.contradicted == 0 && hint.moved_while_marked == 0, "{hint:?}");
}

#[apply(trial)]
fn a_bpf_program_marks_the_vcpus_that_the_host_preempted() -> Check {
    bpf_can_report_switches().or_else(skip)?;
    let (preempted_by, window) = (PreemptedBy::Bpf, ms(500));
    let outcome = done(&looking(Sched::Host).preempted_by(preempted_by).window(window));
    // The supervisor has seen a flag set, or it would not say so.
    assert_eq!(outcome.preempted_source, Ok(PreemptedSource::Bpf));
    let hint = outcome.hint.expect("nobody looked");
    // Of four or more vCPUs on each pCPU most do not run. Not all of them are marked: but few that are may move.
    assert!(hint.moved_while_marked * 20 <= hint.samples, "{hint:?}");
    assert!(hint.still_while_unmarked * 2 <= hint.samples, "{hint:?}");
    Ok(())
}

#[apply(trial)]
fn without_attribution_nobody_guesses_what_a_vcpu_was_doing(sched: Sched) {
    let outcome = done(&config().sched(sched).attribution(false));
    let nothing = [outcome.preemptions, outcome.preempted_ns, outcome.lost_ns, outcome.injected];
    assert!(nothing.iter().all(Option::is_none), "{nothing:?}");
    assert!(outcome.switches.is_err(), "{:?}", outcome.switches);
    let is_reported = |vcpu: &VcpuOutcome| vcpu.switched_out_ready.is_some();
    assert!(!outcome.vcpus.iter().any(is_reported), "switches were reported all the same");
    let is_preempted = |vcpu: &VcpuOutcome| vcpu.preemptions > 0;
    assert!(sched == Sched::Host || outcome.vcpus.iter().any(is_preempted), "nobody was preempted");
}

/// Runs until no report gets lost, which on a machine that is stopped for a while some do.
fn reported(config: &Run) -> Outcome {
    for _ in 0..10 {
        let outcome = done(config);
        if outcome.switches.clone().unwrap().dropped == 0 {
            return outcome;
        }
    }
    panic!("reports got lost in each of ten runs")
}

#[apply(trial)]
fn every_preemption_by_the_host_is_counted_as_the_kernel_counts_it() -> Check {
    bpf_can_report_switches().or_else(skip)?;
    // Spinning, sleeping and yielding vCPUs.
    for (lock, pv) in [("ticket", false), ("qspinlock", true), ("owner-yield", true)] {
        let vcpus = config().guests[0].vcpus * 2;
        let window = config().window * 3;
        let config = config().sched(Sched::Host).vcpus(vcpus).pv(pv).lock(lock).window(window);
        // A thread reads its count a moment after the window has begun and before it has ended. On a host that stops for a
        // while in one of these moments the thread is preempted there, so one run of several has to agree.
        let seen: Vec<_> =
            (0..5).map(|_| disagreement(&reported(&config))).take_while(Option::is_some).collect();
        assert!(seen.len() < 5, "{lock}: {seen:?}");
    }
    Ok(())
}

/// Difference between the reports of switches and the kernel's counts, if there is one.
fn disagreement(outcome: &Outcome) -> Option<String> {
    let mut all = 0;
    for (number, vcpu) in outcome.vcpus.iter().enumerate() {
        let reported = vcpu.switched_out_ready.expect("reports of a vCPU");
        // A thread may be preempted just before its switches are reported, or after it has read its count.
        if reported.abs_diff(vcpu.preemptions) > 4 {
            return Some(format!("vCPU {number}: {reported} reported, {} counted", vcpu.preemptions));
        }
        all += reported;
    }
    let by = outcome.preemptions.expect("nothing is known of preemptions");
    let waits: u64 = outcome.vcpus.iter().filter_map(|vcpu| vcpu.waits).sum();
    // A thread that is to sleep may also have to wait for a page.
    let agrees = sum(&by) > 0 && sum(&by) <= all && by.halted <= waits + outcome.vcpus.len() as u64;
    (!agrees).then(|| format!("{by:?}, {all} reported, {waits} sleeps"))
}

#[apply(trial)]
fn the_time_off_by_activity_is_the_time_without_a_pcpu() -> Check {
    bpf_can_report_switches().or_else(skip)?;
    // Every vCPU always wants to run: one without a pCPU is off, and as many as there are pCPUs are on.
    let window = config().window * 4;
    let config = config().sched(Sched::Host).workload("compute").form("none", false).window(window);
    let outcome = reported(&config);
    let off = outcome.preempted_ns.expect("nothing is known of the time off");
    let (vcpus, pcpus) = (u64::from(config.guests[0].vcpus), config.cpus.len() as u64);
    let window_ns = outcome.window.as_nanos() as u64;
    // Others on the pCPUs only make it more; a vCPU may be asleep in the host, for a page, for a moment.
    let (least, most) = ((vcpus - pcpus) * window_ns * 9 / 10, vcpus * window_ns);
    assert!((least..=most).contains(&off.other), "{off:?}, {least} to {most}");
    assert_eq!(sum(&off), off.other, "nobody takes a lock: {off:?}");
    Ok(())
}
