//! vCPUs that lose their pCPUs, as far as that is known: the preempted flag, who writes it, and whether it says what happened; and the
//! decisions of the host's scheduler, as reported switch by switch, against the kernel's own counts.

use std::time::Duration;

use haltkick_vmm::{
    HowOften, Outcome, PreemptedBy, PreemptedSource, Run, Sched, Target, bpf_can_report_switches,
    bpf_can_write_flags,
};

use support::{Check, Settings, apply, check, config, deschedule, mostly_holding, needs, start, sum, trial};

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

fn host() -> Run {
    config().sched(Sched::Host)
}

/// Runs until no report gets lost, which on a machine that is stopped for a while some do.
fn reported(config: &Run) -> Result<Outcome, Box<dyn std::error::Error>> {
    for _ in 0..10 {
        let outcome = start(config)?;
        if outcome.switches.clone()?.dropped == 0 {
            return Ok(outcome);
        }
    }
    Err("reports got lost in each of ten runs".into())
}

#[apply(trial)]
fn every_preemption_by_the_host_is_counted_as_the_kernel_counts_it() -> Check {
    needs(bpf_can_report_switches())?;
    // Spinning, sleeping and yielding vCPUs.
    for (lock, pv) in [("ticket", false), ("qspinlock", true), ("owner-yield", true)] {
        let vcpus = config().guests[0].vcpus * 2;
        let window = config().window * 3;
        let config = host().vcpus(vcpus).pv(pv).lock(lock).window(window);
        // A thread reads its count a moment after the window has begun and before it has ended. On a host that stops for a
        // while in one of these moments the thread is preempted there, so one run of several has to agree.
        let mut agreed = reports_agree(&reported(&config)?);
        for _ in 0..4 {
            if agreed.is_err() {
                agreed = reports_agree(&reported(&config)?);
            }
        }
        agreed.map_err(|error| format!("{lock}: {}", error.message()))?;
    }
    Ok(())
}

fn reports_agree(outcome: &Outcome) -> Check {
    let mut all = 0;
    for (number, vcpu) in outcome.vcpus.iter().enumerate() {
        let reported = vcpu.switched_out_ready.ok_or("no reports of a vCPU")?;
        // A thread may be preempted just before its switches are reported, or after it has read its count.
        check(reported.abs_diff(vcpu.preemptions) <= 4, || {
            format!("vCPU {number}: {reported} reported, {} counted", vcpu.preemptions)
        })?;
        all += reported;
    }
    let by = outcome.preemptions.ok_or("nothing is known of preemptions")?;
    check(sum(&by) > 0 && sum(&by) <= all, || format!("{by:?}, {all} reported"))?;
    let waits: u64 = outcome.vcpus.iter().filter_map(|vcpu| vcpu.waits).sum();
    // A thread that is to sleep may also have to wait for a page.
    let vcpus = outcome.vcpus.len() as u64;
    check(by.halted <= waits + vcpus, || format!("{by:?}, {waits} sleeps"))
}

#[apply(trial)]
fn the_time_off_by_activity_is_the_time_without_a_pcpu() -> Check {
    needs(bpf_can_report_switches())?;
    // Every vCPU always wants to run: one without a pCPU is off, and as many as there are pCPUs are on.
    let window = config().window * 4;
    let config = host().workload("compute").lock("none").pv(false).window(window);
    let outcome = reported(&config)?;
    let off = outcome.preempted_ns.ok_or("nothing is known of the time off")?;
    let (vcpus, pcpus) = (u64::from(config.guests[0].vcpus), config.cpus.len() as u64);
    let window_ns = outcome.window.as_nanos() as u64;
    // Others on the pCPUs only make it more; a vCPU may be asleep in the host, for a page, for a moment.
    let (least, most) = ((vcpus - pcpus) * window_ns * 9 / 10, vcpus * window_ns);
    check((least..=most).contains(&off.other), || format!("{off:?}, {least} to {most}"))?;
    check(sum(&off) == off.other, || format!("nobody takes a lock: {off:?}"))
}

#[apply(trial)]
fn under_the_host_an_injected_holder_preemption_counts_once_for_all_waiters() -> Check {
    needs(bpf_can_report_switches())?;
    let length = Duration::from_millis(2);
    let deschedule = deschedule(Target::Holder, HowOften::PerSecond(200.0), length, None);
    let window = config().window * 5;
    // A pCPU for everybody: hardly anybody is off but on purpose.
    let vcpus = (config().cpus.len() as u32).max(2);
    let outcome =
        reported(&mostly_holding().sched(Sched::Host).vcpus(vcpus).deschedule(deschedule).window(window))?;
    let injected = outcome.injected.ok_or("nothing is known of what was injected")?;
    let by = outcome.preemptions.ok_or("nothing is known of preemptions")?;
    let lost = outcome.lost_ns.ok_or("nothing is known of what was lost")?;
    let off = outcome.preempted_ns.ok_or("nothing is known of the time off")?;
    check(injected.holder > 0 && by.holder >= injected.holder, || format!("{injected:?}, {by:?}"))?;
    // Sleeping on purpose is many switches and one descheduling: what is beyond it, the kernel has counted as well.
    let unwanted = sum(&by) - sum(&injected);
    let counted: u64 = outcome.vcpus.iter().map(|vcpu| vcpu.preemptions + 4).sum();
    check(unwanted <= counted, || format!("{unwanted} not on purpose, the kernel counts {counted}"))?;
    check(lost.holder > 0 && lost.holder <= off.holder * (outcome.vcpus.len() as u64 - 1), || {
        format!("{lost:?} lost, {off:?} off")
    })
}

#[apply(trial)]
fn without_attribution_no_switch_is_reported() -> Check {
    let outcome = start(&host().attribution(false))?;
    check(outcome.switches.is_err() && outcome.preemptions.is_none(), || format!("{:?}", outcome.switches))?;
    check(outcome.vcpus.iter().all(|vcpu| vcpu.switched_out_ready.is_none()), || {
        "switches were reported all the same".into()
    })
}
