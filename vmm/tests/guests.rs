//! Real guests on /dev/kvm. Tests assert what must hold however noisy the host is; speed is for `just bench-*`.

use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use haltkick_hypercalls::SERVES_FAULTS;
use haltkick_vmm::{
    ByActivity, Cause, Deschedule, Ended, Engine, Explanation, HowOften, Image, Instruments, MAX_LOCKS, Mix,
    Outcome, PreemptedBy, PreemptedSource, ProfileRow, PvBackend, Readings, Ring, RunConfig, RunError, Sched,
    Share, Target, allowed_cpus, bpf_can_write_flags, probe, run, run_guests, run_with_readings,
};
use libtest_mimic::{Arguments, Failed, Trial};

/// How long a slow host may take over what a test waits for and then ends at once.
const PATIENCE: Duration = Duration::from_secs(60);

type Check = Result<(), Failed>;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // A guest takes all pCPUs: tests in parallel would only measure each other.
    arguments.test_threads.get_or_insert(1);
    let unusable = probe().err();
    if let Some(reason) = &unusable {
        eprintln!("guests are skipped, not tested: {reason}");
    }
    let skip = unusable.is_some();
    let mut trials = trials();
    trials.push(Trial::test("a_back_end_in_the_kernel_is_refused_where_it_cannot_be", in_kernel_refused));
    if skip {
        trials = trials.into_iter().map(|trial| trial.with_ignored_flag(true)).collect();
    }
    if let Ok(probe) = probe() {
        for (backend, works) in
            [(PvBackend::Kvm, probe.kick_by_hypercall), (PvBackend::Ipi, probe.kick_by_interrupt)]
        {
            trials.extend(in_kernel_trials(backend, works));
        }
    }
    if let Some(shard) = std::env::var_os("HALTKICK_SHARD") {
        let (shard, shards) =
            parse_shard(&shard.to_string_lossy()).expect("HALTKICK_SHARD is N/OF, as in 1/8");
        let mut index = 0..;
        trials.retain(|_| index.next().is_some_and(|index: usize| index % shards == shard - 1));
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// `2/8`: every eighth test from the second on, so that a suite can go through several short-lived machines.
fn parse_shard(text: &str) -> Option<(usize, usize)> {
    let (shard, shards) = text.split_once('/')?;
    let (shard, shards) = (shard.parse().ok()?, shards.parse().ok()?);
    (1..=shards).contains(&shard).then_some((shard, shards))
}

fn trials() -> Vec<Trial> {
    let mut trials = vec![
        Trial::test("a_single_vcpu_boots_in_either_ring", boots_in_either_ring),
        Trial::test("a_guest_of_1024_vcpus_runs_every_one_of_them", runs_1024_vcpus),
        Trial::test("a_kick_before_the_wait_is_latched_under_the_vmms_scheduler", || latch(Sched::Vmm)),
        Trial::test("a_kick_before_the_wait_is_latched_under_the_hosts_scheduler", || latch(Sched::Host)),
        Trial::test("a_vcpu_marked_as_preempted_does_not_run", marked_vcpus_do_not_run),
        Trial::test("the_books_balance_under_the_vmms_scheduler", books_balance),
        Trial::test("a_panic_names_message_file_and_line", panic_is_reported),
        Trial::test("an_exception_names_vector_address_and_place", exception_is_reported),
        Trial::test("page_faults_are_served_refused_and_forgotten_in_either_ring", page_faults),
        Trial::test("memory_is_mapped_shared_and_given_back_under_every_scheme", memory_selftest),
        Trial::test("page_faults_are_counted_by_how_they_were_served", fault_workloads),
        Trial::test("memory_that_runs_out_is_counted_by_name_and_the_run_goes_on", out_of_memory),
        Trial::test("cached_translations_are_dropped_under_either_scheduler", invalidations),
        Trial::test("an_endless_loop_ends_under_the_watchdog_in_both_schedulers", watchdog_ends_a_hang),
        Trial::test("a_panic_is_explained_with_the_console", explain_a_panic),
        Trial::test("an_exception_is_explained_by_its_instruction", explain_an_exception),
        Trial::test("a_hang_names_the_holder_and_who_waits_for_how_long", explain_a_hang),
        // An emulator takes minutes to give each of so many vCPUs its turns.
        Trial::test("a_hang_of_1024_vcpus_is_explained_in_groups", explain_1024_vcpus)
            .with_ignored_flag(std::env::var_os("HALTKICK_NESTED").is_some()),
        Trial::test("a_lost_kick_names_who_sleeps_for_it", explain_a_lost_kick),
        Trial::test("a_guest_that_writes_nonsense_changes_figures_at_most", nonsense_changes_figures_at_most),
        Trial::test("a_profile_has_its_samples_where_the_time_goes", profile_is_fair),
        Trial::test("a_trace_holds_every_section_that_the_guest_counted", trace_agrees_with_the_guest),
        Trial::test("a_section_without_a_lock_violates_exclusion", exclusion_is_checked),
        Trial::test("a_request_to_stop_ends_the_run_at_once", stop_request),
        Trial::test("a_given_work_rate_is_used_and_a_measured_one_is_reported", work_rate),
        Trial::test("a_fixed_amount_of_work_is_done_to_the_last_section_and_no_further", fixed_work),
        Trial::test("nested_and_long_sections_exclude_too", nested_sections),
        Trial::test("two_guests_run_at_once_each_with_its_own_lock_and_workload", two_guests),
        Trial::test("a_guest_that_dies_leaves_the_others_outcome", a_guest_dies),
        Trial::test("shares_are_equal_by_guest_or_by_vcpu", shares),
        Trial::test("guests_that_do_not_go_together_are_usage_errors", guests_that_clash),
        Trial::test("several_locks_share_the_sections", several_locks),
        Trial::test("slow_paths_nest_and_the_fifth_level_falls_back_in_both_layouts", nested_slow_paths),
        Trial::test("a_token_goes_round_by_kick_and_wait", hand_off),
        Trial::test("unpatched_sites_serve_every_form_as_patched_ones_do", unpatched_sites),
        Trial::test("a_run_tells_what_an_uncontended_pair_costs_in_every_form", pair_costs),
        Trial::test("copied_blocks_are_whole_under_locks_with_and_without_readers", copies_are_whole),
        Trial::test("the_compute_control_takes_no_lock", compute_takes_no_lock),
        Trial::test("settings_that_make_no_sense_are_usage_errors", usage_errors),
        Trial::test("heads_waiters_and_anyone_can_be_descheduled_on_purpose", other_targets),
        Trial::test("a_vcpu_descheduled_on_purpose_is_marked_and_does_not_run", injected_vcpus_do_not_run),
        Trial::test("with_a_grace_no_slice_ends_in_a_section_that_the_grace_suffices_for", grace),
        Trial::test("a_vcpu_that_always_claims_to_hold_a_lock_gets_no_more_than_its_share", liar),
        Trial::test("a_directed_yield_runs_exactly_the_vcpu_that_it_names", directed_yields),
        Trial::test("a_kick_hands_its_pcpu_to_the_vcpu_that_it_wakes_if_asked_to", kick_yields),
        Trial::test("a_lock_that_minds_the_end_of_the_slice_gives_the_rest_of_it_back", minds_the_slice),
        Trial::test(
            "the_preempted_hint_says_what_the_books_of_the_vmms_scheduler_say",
            hints_agree_with_books,
        ),
        Trial::test("without_attribution_nobody_guesses_what_a_vcpu_was_doing", no_attribution),
    ];
    let no_bpf = bpf_can_write_flags().err();
    if let Some(reason) = &no_bpf {
        eprintln!("flags by BPF are skipped, not tested: {reason}");
    }
    let by_bpf =
        Trial::test("a_bpf_program_marks_the_vcpus_that_the_host_preempted", bpf_marks_the_preempted);
    trials.push(by_bpf.with_ignored_flag(no_bpf.is_some()));
    for (sched, name) in [(Sched::Vmm, "vmm"), (Sched::Host, "host")] {
        let title =
            format!("every_injected_holder_preemption_is_attributed_to_the_holder_under_sched_{name}");
        trials.push(Trial::test(title, move || injected_holders(sched)));
    }
    for (lock, pv, points) in INSTRUMENTED {
        for point in points.split(' ') {
            let form = if pv { "pv" } else { "native" };
            let title = format!("{lock}_{form}_excludes_when_stopped_at_{}", point.replace('-', "_"));
            trials.push(Trial::test(title, move || excludes_when_stopped(lock, pv, point)));
        }
    }
    for scheme in ["single", "split", "cleaned", "lists", "per-cpu", "fair"] {
        let title = format!("grant_tables_under_{}_come_to_rest", scheme.replace('-', "_"));
        trials.push(Trial::test(title, move || grant_tables_come_to_rest(scheme)));
    }
    for lock in ["unfair", "fair", "per-cpu", "per-cpu-fair"] {
        let title = format!("a_writer_gets_past_the_readers_of_the_{}_rwlock", lock.replace('-', "_"));
        trials.push(Trial::test(title, move || writer_gets_in(lock)));
    }
    for (lock, pv) in forms() {
        for (sched, name) in [(Sched::Vmm, "vmm"), (Sched::Host, "host")] {
            let title =
                format!("{lock}_{}_excludes_at_ratio_8_under_sched_{name}", if pv { "pv" } else { "native" });
            let lock = lock.clone();
            trials.push(Trial::test(title, move || excludes_at_ratio_8(&lock, pv, sched)));
        }
    }
    trials
}

/// Tests of a back end in which vCPUs halt in the kernel. Where it does not work they are skipped, with the reason; on the
/// emulated hardware of `just test-nested` it has to.
fn in_kernel_trials(backend: PvBackend, works: Result<(), String>) -> Vec<Trial> {
    let name = backend.name();
    let nested = std::env::var_os("HALTKICK_NESTED").is_some();
    // Interrupts into nested guests wedge QEMU's emulator now and then: suite.sh gives them a machine of their own.
    let elsewhere = backend == PvBackend::Ipi && nested && std::env::var_os("HALTKICK_NESTED_IPI").is_none();
    let skip = elsewhere || works.is_err() && !nested;
    if skip {
        let reason = works.err().unwrap_or_else(|| "it has a run of its own, see suite.sh".into());
        eprintln!("--pv-backend {name} is skipped, not tested: {reason}");
    }
    let mut trials: Vec<_> = forms()
        .into_iter()
        .filter(|(_, pv)| *pv)
        .map(|(lock, _)| {
            let title = format!("{lock}_pv_excludes_while_vcpus_halt_in_the_kernel_woken_by_{name}");
            Trial::test(title, move || excludes_halting(&lock, backend))
        })
        .collect();
    let latch = format!("a_kick_before_the_halt_is_latched_by_{name}");
    trials.push(Trial::test(latch, move || latch_halting(backend)));
    let knobs = format!("halt_polling_and_exits_can_be_chosen_with_{name}");
    trials.push(Trial::test(knobs, move || knobs_in_kernel(backend)));
    if backend == PvBackend::Kvm {
        trials.push(Trial::test(
            "kvm_itself_marks_preempted_vcpus_that_halt_in_its_hands",
            kvm_marks_preempted,
        ));
        trials.push(Trial::test("the_automatic_back_end_is_the_best_that_works", automatic_backend));
    }
    trials.into_iter().map(|trial| trial.with_ignored_flag(skip)).collect()
}

/// Few vCPUs and little work: ring 0 may be interpreted.
fn halting(backend: PvBackend) -> RunConfig {
    let little = Duration::from_nanos(200);
    let (ring, sched) = (Ring::Ring0, Sched::Host);
    RunConfig { pv_backend: backend, ring, sched, hold: little, think: little, ..config() }
}

fn excludes_halting(lock: &str, backend: PvBackend) -> Check {
    let outcome = start(&RunConfig { lock: lock.into(), pv: true, ..halting(backend) })?;
    check(outcome.lost_updates == Some(0), || format!("lost updates: {:?}", outcome.lost_updates))?;
    check(outcome.pv_backend == backend, || {
        format!("{:?}: {}", outcome.pv_backend, outcome.pv_backend_reason)
    })?;
    let doorbells = exits(&outcome, "pv_wait") + exits(&outcome, "pv_kick");
    check(doorbells == 0, || format!("{doorbells} doorbells"))
}

fn latch_halting(backend: PvBackend) -> Check {
    let outcome = start(&RunConfig { workload: "selftest-latch".into(), ..halting(backend) })?;
    let rounds = acquisitions(&outcome);
    check(rounds > 0, || "no round was completed".into())?;
    // Every round ends in a halt, which KVM counts where it counts anything.
    let stats = outcome.kvm_stats.unwrap_or_default();
    let halts = stats.iter().find(|(name, _)| name == "halt_exits").map(|(_, count)| *count);
    check(halts.is_none_or(|halts| halts >= rounds), || format!("{rounds} rounds, {halts:?} halts"))
}

fn knobs_in_kernel(backend: PvBackend) -> Check {
    let no_poll = RunConfig { halt_poll: Some(Duration::ZERO), ..halting(backend) };
    start(&no_poll)?;
    // These depend on the CPU: done, or refused for what it is.
    for (pause_exits, hlt_exits) in [(false, true), (true, false)] {
        match (start(&RunConfig { pause_exits, hlt_exits, ..halting(backend) }), backend, hlt_exits) {
            (Err(RunError::Usage(text)), PvBackend::Kvm, false) => {
                check(text.contains("kick hypercall"), || text)?
            }
            (Ok(_), PvBackend::Kvm, false) => {
                return Err("a kick by hypercall cannot work without exits".into());
            }
            (Ok(_), ..) => {}
            (Err(RunError::HostLacks(text)), ..) => check(text.contains("these exits"), || text)?,
            (other, ..) => return unexpected(other),
        }
    }
    Ok(())
}

fn kvm_marks_preempted() -> Check {
    let base = halting(PvBackend::Kvm);
    let vcpus = 8 * base.cpus.len() as u32;
    let (hold, think) = (Duration::from_micros(20), Duration::from_micros(20));
    let window = Duration::from_millis(400);
    let outcome = start(&RunConfig { lock: "none".into(), pv: false, vcpus, hold, think, window, ..base })?;
    check(outcome.preempted_source == PreemptedSource::Kvm, || format!("{:?}", outcome.preempted_source))
}

fn automatic_backend() -> Check {
    let outcome = start(&halting(PvBackend::Auto))?;
    check(outcome.pv_backend == PvBackend::Kvm, || outcome.pv_backend_reason)
}

fn in_kernel_refused() -> Check {
    for backend in [PvBackend::Kvm, PvBackend::Ipi] {
        for wrong in [
            RunConfig { sched: Sched::Vmm, ..halting(backend) },
            RunConfig { ring: Ring::Ring3, ..halting(backend) },
        ] {
            match start(&wrong) {
                Err(RunError::Usage(text)) => check(text.contains("--pv-backend"), || text)?,
                other => return unexpected(other),
            }
        }
    }
    let nobody_halts = RunConfig { halt_poll: Some(Duration::ZERO), sched: Sched::Vmm, ..config() };
    match start(&nobody_halts) {
        Err(RunError::Usage(text)) => check(text.contains("--halt-poll"), || text)?,
        other => return unexpected(other),
    }
    // What the probe found not to work is refused, and does not hang.
    let probe = probe()?;
    for (backend, works) in
        [(PvBackend::Kvm, probe.kick_by_hypercall), (PvBackend::Ipi, probe.kick_by_interrupt)]
    {
        match (start(&halting(backend)), works) {
            (Ok(_), Ok(())) => {}
            (Err(RunError::HostLacks(text)), Err(reason)) => check(text.contains(&reason), || text)?,
            (other, _) => return unexpected(other),
        }
    }
    Ok(())
}

fn compute_takes_no_lock() -> Check {
    let outcome = start(&RunConfig { lock: "mutex/packed".into(), workload: "compute".into(), ..config() })?;
    check(acquisitions(&outcome) > 0, || "no round was completed".into())?;
    let events: u64 = outcome.lock_events.iter().map(|(_, count)| count).sum();
    check(events == 0, || format!("{:?}", outcome.lock_events))
}

/// Every form of every lock of the image that guards sections; schemes of page faults guard none.
fn forms() -> Vec<(String, bool)> {
    let image = Image::embedded();
    let locks = image.locks.iter().filter(|lock| lock.is_lock_free() || lock.flags & SERVES_FAULTS == 0);
    let forms = locks.flat_map(|lock| {
        [(lock.has_native(), false), (lock.has_paravirt(), true)]
            .into_iter()
            .filter(|(has, _)| *has)
            .map(|(_, pv)| (lock.name.clone(), pv))
    });
    forms.collect()
}

fn config() -> RunConfig {
    let cpus: Vec<_> = allowed_cpus().into_iter().take(2).collect();
    RunConfig {
        engine: Engine::Kvm,
        vcpus: 4 * cpus.len() as u32,
        cpus,
        ring: Ring::Auto,
        sched: Sched::Vmm,
        slice: Duration::from_millis(1),
        grace: Duration::ZERO,
        slice_margin: Duration::from_micros(10),
        kick_yields: false,
        attribution: true,
        deschedule: None,
        lock: "qspinlock".into(),
        pv: true,
        patch: true,
        preempted_hint: true,
        // Not what works best here: the tests look at doorbells, and at vCPUs that the VMM put to sleep.
        pv_backend: PvBackend::Vmm,
        halt_poll: None,
        pause_exits: true,
        hlt_exits: true,
        preempted_by: PreemptedBy::Auto,
        spin_threshold: Duration::from_micros(20),
        workload: "critical-section".into(),
        hold: Duration::from_micros(1),
        think: Duration::from_micros(2),
        lock_count: 1,
        mix: Mix::default(),
        memory_bytes: 64 << 20,
        work_rate: None,
        warmup: Duration::from_millis(10),
        window: Duration::from_millis(100),
        watchdog: None,
        seed: 1,
        name: "guest".into(),
        beside: vec![],
        share: Share::Vcpu,
    }
}

fn start(config: &RunConfig) -> Result<Outcome, RunError> {
    run(config, &Image::embedded(), &AtomicBool::new(false))
}

fn check(holds: bool, otherwise: impl FnOnce() -> String) -> Check {
    if holds { Ok(()) } else { Err(otherwise().into()) }
}

fn unexpected(result: Result<Outcome, RunError>) -> Check {
    match result {
        Ok(_) => Err("the run came to its end".into()),
        Err(error) => Err(error.into()),
    }
}

fn acquisitions(outcome: &Outcome) -> u64 {
    outcome.vcpus.iter().map(|vcpu| vcpu.acquisitions).sum()
}

fn event(outcome: &Outcome, name: &str) -> u64 {
    outcome.lock_events.iter().find(|(event, _)| event == name).map_or(0, |(_, count)| *count)
}

fn exits(outcome: &Outcome, name: &str) -> u64 {
    outcome.vm_exits.iter().find(|(exit, _)| *exit == name).map_or(0, |(_, count)| *count)
}

fn excludes_at_ratio_8(lock: &str, pv: bool, sched: Sched) -> Check {
    let base = config();
    let vcpus = 8 * base.cpus.len() as u32;
    let outcome = start(&RunConfig { lock: lock.into(), pv, sched, vcpus, ..base })?;
    if lock == "none" {
        check(outcome.lost_updates.is_none(), || "a lock-free run cannot speak of lost updates".into())?;
    } else {
        check(outcome.lost_updates == Some(0), || format!("lost updates: {:?}", outcome.lost_updates))?;
    }
    // No bound on acquisitions in the window: a lock may rest for all of a short one while the next in its queue waits
    // for a pCPU. That it moved at all is what the watchdog made sure of.
    check(outcome.vcpus.len() == vcpus as usize, || format!("{} vCPUs", outcome.vcpus.len()))?;
    // Sum rules of the counters: what starts early is started, what is kicked awake was kicked. A vCPU is stopped
    // where it is, so that each may have counted the one and not yet the other.
    for (part, whole) in [
        ("pv_wait_early", "pv_wait_node"),
        ("pv_wait_again", "pv_wait_head"),
        ("pv_kick_wake", "pv_kick_unlock"),
    ] {
        let (part_count, whole_count) = (event(&outcome, part), event(&outcome, whole));
        check(part_count <= whole_count + u64::from(vcpus), || {
            format!("{part} {part_count} > {whole} {whole_count}")
        })?;
    }
    check(pv || exits(&outcome, "pv_wait") + exits(&outcome, "pv_kick") == 0, || {
        "a native lock halted".into()
    })
}

fn named(name: &str, config: RunConfig) -> RunConfig {
    RunConfig { name: name.into(), ..config }
}

fn start_guests(config: &RunConfig) -> Result<Vec<Ended>, RunError> {
    run_guests(config, &Image::embedded(), &AtomicBool::new(false), &Instruments::default())
}

fn two_guests() -> Check {
    for sched in [Sched::Vmm, Sched::Host] {
        let mix = Mix { work_sections: Some(500), go_on: true, ..Mix::default() };
        let base = RunConfig { sched, window: PATIENCE, workload: "mixed".into(), mix, ..config() };
        let mix = Mix { work_sections: Some(2000), ..Mix::default() };
        let other = named("b", RunConfig { lock: "tas".into(), pv: false, vcpus: 3, mix, ..base.clone() });
        let ended = start_guests(&named("a", RunConfig { beside: vec![other], ..base }))?;
        for (ended, (name, sections, vcpus)) in
            ended.into_iter().zip([("a", 500, config().vcpus), ("b", 2000, 3)])
        {
            let outcome = ended.result?;
            check(ended.name == name, || format!("{} instead of {name}", ended.name))?;
            check(outcome.vcpus.len() == vcpus as usize, || format!("{} vCPUs", outcome.vcpus.len()))?;
            check(acquisitions(&outcome) == sections, || format!("{name}: {}", acquisitions(&outcome)))?;
            check(outcome.lost_updates == Some(0), || format!("{name}: {:?}", outcome.lost_updates))?;
            let waits = exits(&outcome, "pv_wait");
            check(name == "a" || waits == 0, || format!("{name}: {waits} exits of the other guest"))?;
        }
    }
    Ok(())
}

fn a_guest_dies() -> Check {
    for sched in [Sched::Vmm, Sched::Host] {
        let base = RunConfig { sched, ..config() };
        let dying = named("b", RunConfig { workload: "selftest-panic".into(), ..base.clone() });
        let ended = start_guests(&named("a", RunConfig { beside: vec![dying], ..base }))?;
        let [a, b] = <[Ended; 2]>::try_from(ended).map_err(|_| "not two guests")?;
        check(acquisitions(&a.result?) > 0, || "the other guest did not go on".into())?;
        check(matches!(b.result, Err(RunError::GuestPanic { .. })), || format!("{:?}", b.result))?;
        check(b.readings.explanation.is_some(), || "nobody says why it died".into())?;
    }
    Ok(())
}

fn shares() -> Check {
    for share in [Share::Guest, Share::Vcpu] {
        let cpus = config().cpus.len() as u32;
        let base = RunConfig { share, lock: "none".into(), pv: false, vcpus: 2 * cpus, ..config() };
        let small = named("small", base.clone());
        let large = RunConfig { vcpus: 6 * cpus, beside: vec![small], ..base };
        let ended = start_guests(&named("large", large))?;
        let mut run = Vec::new();
        for ended in ended {
            run.push(ended.result?.vcpus.iter().filter_map(|vcpu| vcpu.run_ns).sum::<u64>() as f64);
        }
        let of_large = run[0] / (run[0] + run[1]);
        let expected = if share == Share::Guest { 0.5 } else { 0.75 };
        check((of_large - expected).abs() < 0.12, || {
            format!("{share:?}: the large guest has {of_large:.2}")
        })?;
    }
    Ok(())
}

fn guests_that_clash() -> Check {
    let base = named("a", config());
    let beside = |other: RunConfig| RunConfig { beside: vec![other], ..base.clone() };
    for (config, expected) in [
        (beside(base.clone()), "two guests are called `a`"),
        (beside(named("b", RunConfig { slice: Duration::from_millis(2), ..base.clone() })), "differ in what"),
        (beside(named("b", RunConfig { vcpus: 1024, ..base.clone() })), "1024 at most"),
        (beside(named("b", RunConfig { lock: "nothing".into(), ..base.clone() })), "there is no lock"),
    ] {
        match start_guests(&config) {
            Err(RunError::Usage(message)) if message.contains(expected) => {}
            other => return Err(format!("{expected}: {other:?}").into()),
        }
    }
    Ok(())
}

fn fixed_work() -> Check {
    let mix = |go_on| Mix { work_sections: Some(1003), go_on, ..Mix::default() };
    for (sched, go_on) in [(Sched::Vmm, false), (Sched::Vmm, true), (Sched::Host, false)] {
        let mix = mix(go_on);
        let outcome =
            start(&RunConfig { sched, mix, workload: "mixed".into(), window: PATIENCE, ..config() })?;
        check(acquisitions(&outcome) == 1003, || {
            format!("{} sections were counted", acquisitions(&outcome))
        })?;
        check(exits(&outcome, "work_done") == 1, || "the end of the work was not told once".into())?;
        check(outcome.completion == Some(outcome.window) && outcome.window < PATIENCE, || {
            format!("completion {:?}, window {:?}", outcome.completion, outcome.window)
        })?;
        let run: u64 = outcome.vcpus.iter().filter_map(|vcpu| vcpu.run_ns).sum();
        let in_locks = outcome.lock_cpu.map_or(0, |time| time.as_nanos() as u64);
        check((in_locks > 0) == (sched == Sched::Vmm), || format!("in locks: {:?}", outcome.lock_cpu))?;
        // A section that begins before the window opens and one that is the last may be counted with their whole length.
        check(in_locks <= run + 10_000_000, || format!("{in_locks} ns in locks, {run} ns on pCPUs"))?;
    }
    // What cannot be done in the window is told apart.
    let mix = Mix { work_sections: Some(u64::MAX), ..Mix::default() };
    let outcome = start(&RunConfig { mix, workload: "mixed".into(), ..config() })?;
    check(outcome.completion.is_none(), || format!("done in {:?}", outcome.completion))
}

fn nested_sections() -> Check {
    let mix = Mix {
        work_sections: Some(3000),
        long_hold: Duration::from_micros(20),
        long_one_in: 10,
        nested_one_in: 2,
        ..Mix::default()
    };
    for (lock, pv) in [("qspinlock", true), ("tas", false)] {
        let outcome = start(&RunConfig {
            mix,
            lock: lock.into(),
            pv,
            lock_count: 4,
            workload: "mixed".into(),
            window: PATIENCE,
            ..config()
        })?;
        check(outcome.lost_updates == Some(0), || {
            format!("{lock}: {:?} updates lost", outcome.lost_updates)
        })?;
        check(acquisitions(&outcome) == 3000, || format!("{lock}: {} sections", acquisitions(&outcome)))?;
    }
    Ok(())
}

/// The guest itself looks whether every pin, handle and byte is where it belongs, and panics if not.
fn grant_tables_come_to_rest(scheme: &str) -> Check {
    let workload = format!("grant-{scheme}");
    for (lock, pv) in [("tas", false), ("qspinlock", true)] {
        let outcome = start(&RunConfig {
            workload: workload.clone(),
            lock: lock.into(),
            pv,
            lock_count: 24,
            hold: Duration::from_nanos(100),
            think: Duration::ZERO,
            window: Duration::from_millis(50),
            ..config()
        })?;
        let (maps, unmaps) = (event(&outcome, "grant_map"), event(&outcome, "grant_unmap"));
        check(maps > 0 && maps == unmaps, || format!("{lock}: {maps} pages mapped, {unmaps} unmapped"))?;
        // One for each request of 11 pages, and one for each probe of a single page.
        let invalidations = event(&outcome, "grant_invalidate");
        check(invalidations * 2 < unmaps, || format!("{lock}: {invalidations} for {unmaps} pages"))?;
    }
    Ok(())
}

fn writer_gets_in(lock: &str) -> Check {
    let outcome = start(&RunConfig {
        workload: format!("rwlock-{lock}"),
        think: Duration::ZERO,
        window: Duration::from_millis(50),
        ..config()
    })?;
    // Behind readers that never pause that may be after the window, when they have stopped.
    let writes: u64 = outcome.wait.buckets.iter().sum();
    check(writes > 0, || "the writer was never let in".into())?;
    check(outcome.lost_updates == Some(0), || format!("lost updates: {:?}", outcome.lost_updates))
}

fn boots_in_either_ring() -> Check {
    for ring in [Ring::Ring0, Ring::Ring3] {
        // Ring 0 may be interpreted: little work, little time needed.
        let short = Duration::from_nanos(100);
        let outcome = start(&RunConfig { ring, vcpus: 1, hold: short, think: short, ..config() })?;
        check(outcome.ring == ring, || format!("asked for {ring:?}, got {:?}", outcome.ring))?;
        check(acquisitions(&outcome) > 0, || format!("no acquisition in {ring:?}"))?;
    }
    Ok(())
}

fn runs_1024_vcpus() -> Check {
    // The window opens when every vCPU has reached its workload, so a finished run has run them all.
    let watchdog = Some(PATIENCE);
    let outcome = start(&RunConfig { vcpus: 1024, lock: "none".into(), pv: false, watchdog, ..config() })?;
    check(outcome.vcpus.len() == 1024, || format!("{} vCPUs", outcome.vcpus.len()))?;
    let never = outcome.vcpus.iter().filter(|vcpu| vcpu.steal_ns == Some(0)).count();
    check(never <= 2, || format!("{never} of 1024 vCPUs on 2 pCPUs never waited for one"))?;
    check(acquisitions(&outcome) > 0, || "no operation in the window".into())
}

fn latch(sched: Sched) -> Check {
    let outcome = start(&RunConfig { workload: "selftest-latch".into(), sched, ..config() })?;
    let rounds = acquisitions(&outcome);
    check(rounds > 0, || "no round was completed".into())?;
    let (waits, kicks) = (exits(&outcome, "pv_wait"), exits(&outcome, "pv_kick"));
    check(waits >= rounds && kicks >= 2 * rounds, || format!("{rounds} rounds, {waits} waits, {kicks} kicks"))
}

fn marked_vcpus_do_not_run() -> Check {
    let outcome = start(&RunConfig { workload: "selftest-preempted".into(), ..config() })?;
    check(outcome.preempted_source == PreemptedSource::Vmm, || format!("{:?}", outcome.preempted_source))?;
    // At ratio 4, three of four vCPUs are off at any time: if the flag told nothing, no look would find it set.
    check(acquisitions(&outcome) > 0, || "no vCPU was ever seen marked".into())?;
    let preemptions: u64 = outcome.vcpus.iter().map(|vcpu| vcpu.preemptions).sum();
    check(preemptions > 0, || "nobody was preempted".into())
}

fn books_balance() -> Check {
    let base = config();
    let pcpus = base.cpus.len() as f64;
    let outcome = start(&RunConfig { window: Duration::from_millis(300), ..base })?;
    let window = outcome.window.as_secs_f64();
    let run: u64 = outcome.vcpus.iter().filter_map(|vcpu| vcpu.run_ns).sum();
    let most = pcpus * window * 1e9;
    check(run as f64 <= most * 1.001, || format!("vCPUs ran {run} ns on {pcpus} pCPUs in {window} s"))?;
    check(run > 0, || "no vCPU ran in the window".into())?;
    let by = outcome.preemptions.ok_or("the VMM knows its own preemptions")?;
    let all: u64 = outcome.vcpus.iter().map(|vcpu| vcpu.preemptions).sum();
    let in_window = by.holder + by.head + by.waiter + by.other;
    check(in_window <= all, || format!("{in_window} preemptions in the window, {all} in the run"))?;
    check(outcome.lock_events.iter().any(|(name, _)| name == "pv_kick_unlock"), || "no lock events".into())?;
    let kicked = exits(&outcome, "pv_kick");
    let counted = event(&outcome, "pv_kick_unlock");
    check(counted.abs_diff(kicked) <= outcome.vcpus.len() as u64, || {
        format!("the guest counted {counted} kicks, the VMM {kicked}")
    })
}

fn deschedule(target: Target, how_often: HowOften, length: Duration, at: Option<&str>) -> Option<Deschedule> {
    Some(Deschedule { target, how_often, length, at: at.map(String::from) })
}

fn sum(by: &ByActivity<u64>) -> u64 {
    by.holder + by.head + by.waiter + by.other
}

/// Long sections, so that a holder is found at the first look or the second.
fn mostly_holding() -> RunConfig {
    let (hold, think) = (Duration::from_micros(50), Duration::from_micros(1));
    RunConfig { lock: "tas".into(), pv: false, hold, think, ..config() }
}

fn injected_holders(sched: Sched) -> Check {
    let length = Duration::from_millis(2);
    let deschedule = deschedule(Target::Holder, HowOften::PerSecond(200.0), length, None);
    let outcome =
        start(&RunConfig { sched, deschedule, window: Duration::from_millis(300), ..mostly_holding() })?;
    let injected = outcome.injected.ok_or("nothing is known of what was injected")?;
    // Whom to stop is decided by the lock's own word for who is inside; what it was doing is told by the guest.
    check(injected.holder > 0 && injected.holder == sum(&injected), || format!("{injected:?}"))?;
    let lost = outcome.lost_ns.ok_or("nothing is known of what was lost")?;
    check(lost.holder > 0, || "nobody lost anything to a holder that was off for 2 ms".into())?;
    if let (Some(preemptions), Some(off)) = (outcome.preemptions, outcome.preempted_ns) {
        check(preemptions.holder >= injected.holder, || format!("{preemptions:?} < {injected:?}"))?;
        // Each was off for its time at least, but for those that the end of the window cut short.
        let vcpus = outcome.vcpus.len() as u64;
        let least = injected.holder.saturating_sub(vcpus) * length.as_nanos() as u64;
        check(off.holder >= least, || format!("{} ns off in {} injections", off.holder, injected.holder))?;
        check(lost.holder <= off.holder * (vcpus - 1), || {
            format!("{} ns lost, {} off", lost.holder, off.holder)
        })?;
    }
    Ok(())
}

fn other_targets() -> Check {
    for target in [Target::Head, Target::Waiter, Target::Random] {
        let deschedule = deschedule(target, HowOften::PerSecond(500.0), Duration::from_micros(500), None);
        // The ticket lock knows who is next, and nearly everybody waits.
        let outcome = start(&RunConfig { lock: "ticket".into(), deschedule, ..mostly_holding() })?;
        let injected = outcome.injected.ok_or("nothing is known of what was injected")?;
        let hit = match target {
            Target::Head => injected.head,
            Target::Waiter => injected.waiter,
            _ => sum(&injected),
        };
        check(hit > 0 && hit == sum(&injected), || format!("{target:?}: {injected:?}"))?;
    }
    Ok(())
}

fn injected_vcpus_do_not_run() -> Check {
    let deschedule = deschedule(Target::Random, HowOften::PerSecond(500.0), Duration::from_millis(2), None);
    // As many vCPUs as pCPUs: nobody is off but on purpose.
    let vcpus = config().cpus.len() as u32;
    let workload = "selftest-preempted".into();
    let outcome = start(&RunConfig { vcpus, workload, deschedule, ..config() })?;
    let injected = outcome.injected.ok_or("nothing is known of what was injected")?;
    check(injected.other > 0, || format!("{injected:?}"))?;
    check(vcpus == 1 || acquisitions(&outcome) > 0, || "no vCPU was ever seen marked".into())
}

fn grace() -> Check {
    let (slice, grace) = (Duration::from_micros(500), Duration::from_micros(500));
    // A section takes a tenth of the grace. Where the host takes the pCPU away meanwhile, the grace is in vain.
    for seed in 1..50 {
        let outcome = start(&RunConfig { slice, grace, seed, ..mostly_holding() })?;
        let preemptions = outcome.preemptions.ok_or("the VMM knows its own preemptions")?;
        let graces = outcome.graces.ok_or("the VMM knows what it granted")?;
        check(preemptions.holder <= graces.expired, || format!("{preemptions:?}, {graces:?}"))?;
        if graces.granted > graces.expired {
            return Ok(());
        }
    }
    Err("no grace was ever given back".into())
}

fn liar() -> Check {
    // If the grace were not charged, twice the share of the others would come of it.
    let (slice, grace) = (Duration::from_micros(200), Duration::from_micros(200));
    let lock = "none".into();
    let workload = "selftest-liar".into();
    let window = Duration::from_millis(300);
    let outcome = start(&RunConfig { slice, grace, lock, workload, window, pv: false, ..config() })?;
    let graces = outcome.graces.ok_or("the VMM knows what it granted")?;
    check(graces.granted > 0 && graces.expired == graces.granted, || format!("{graces:?}"))?;
    let run: Vec<_> = outcome.vcpus.iter().filter_map(|vcpu| vcpu.run_ns).collect();
    let fair = run.iter().sum::<u64>() as f64 / run.len() as f64;
    check((run[0] as f64) < fair * 1.3, || {
        format!("the liar ran {} ns, its share is {fair}: {run:?}", run[0])
    })
}

fn directed_yields() -> Check {
    let cpus: Vec<_> = config().cpus.into_iter().take(1).collect();
    let workload = "selftest-yield".into();
    let outcome = start(&RunConfig { cpus, lock: "none".into(), workload, pv: false, ..config() })?;
    let yields = acquisitions(&outcome);
    check(yields > 0, || "nobody yielded".into())?;
    let not_named: u64 =
        outcome.wait.occupied().filter(|(ticks, _)| *ticks == 1).map(|(_, count)| count).sum();
    // A slice may end after a vCPU has named another one and before it yields.
    let preemptions: u64 = outcome.vcpus.iter().map(|vcpu| vcpu.preemptions).sum();
    check(not_named <= preemptions, || {
        format!("{not_named} of {yields} ran unnamed, {preemptions} slices ended")
    })?;
    let handed = outcome.handed.ok_or("the VMM knows whom it ran")?;
    check(handed + preemptions >= yields, || format!("{yields} yields, {handed} handed over"))
}

fn kick_yields() -> Check {
    let outcome =
        start(&RunConfig { kick_yields: true, spin_threshold: Duration::from_micros(2), ..config() })?;
    check(outcome.lost_updates == Some(0), || format!("lost updates: {:?}", outcome.lost_updates))?;
    let handed = outcome.handed.ok_or("the VMM knows whom it ran")?;
    let kicks: u64 = outcome.vcpus.iter().map(|vcpu| vcpu.kicks.unwrap_or(0)).sum();
    check(handed == kicks && kicks > 0, || format!("{kicks} sleepers kicked, {handed} handed over"))
}

fn minds_the_slice() -> Check {
    let slice_margin = Duration::from_micros(500);
    let outcome = start(&RunConfig { lock: "slice-tas".into(), slice_margin, ..mostly_holding() })?;
    check(exits(&outcome, "yield") > 0, || "no slice was given back".into())?;
    let heedless =
        start(&RunConfig { lock: "slice-tas".into(), slice_margin: Duration::ZERO, ..mostly_holding() })?;
    check(exits(&heedless, "yield") == 0, || "a slice was given back for no reason".into())
}

fn looking(sched: Sched) -> RunConfig {
    RunConfig { sched, workload: "hint-check".into(), lock: "none".into(), pv: false, ..config() }
}

fn hints_agree_with_books() -> Check {
    let window = Duration::from_millis(300);
    let hint = start(&RunConfig { window, ..looking(Sched::Vmm) })?.hint.ok_or("nobody looked")?;
    check(hint.compared > 0 && hint.samples > hint.compared, || format!("{hint:?}"))?;
    check(hint.contradicted == 0 && hint.moved_while_marked == 0, || format!("{hint:?}"))
}

fn bpf_marks_the_preempted() -> Check {
    let (preempted_by, window) = (PreemptedBy::Bpf, Duration::from_millis(500));
    let outcome = start(&RunConfig { preempted_by, window, ..looking(Sched::Host) })?;
    // The supervisor has seen a flag set, or it would not say so.
    check(outcome.preempted_source == PreemptedSource::Bpf, || format!("{:?}", outcome.preempted_source))?;
    let hint = outcome.hint.ok_or("nobody looked")?;
    // Of four or more vCPUs on each pCPU most do not run. Not all of them are marked: but few that are may move.
    check(hint.moved_while_marked * 20 <= hint.samples, || format!("{hint:?}"))?;
    check(hint.still_while_unmarked * 2 <= hint.samples, || format!("{hint:?}"))
}

fn no_attribution() -> Check {
    let outcome = start(&RunConfig { attribution: false, ..config() })?;
    let nothing = [outcome.preemptions, outcome.preempted_ns, outcome.lost_ns, outcome.injected];
    check(nothing.iter().all(Option::is_none), || format!("{nothing:?}"))?;
    check(outcome.vcpus.iter().any(|vcpu| vcpu.preemptions > 0), || "nobody was preempted".into())
}

/// The points that each form of an instrumented lock passes.
const INSTRUMENTED: [(&str, bool, &str); 4] = [
    ("qspinlock-points", false, "node-claimed tail-published pending-set handed-over"),
    (
        "qspinlock-points",
        true,
        "node-claimed tail-published halted-published handed-over successor-hashed head-spinning head-hashed \
         slow-seen entry-removed slow-released before-sleep",
    ),
    ("ticket-points", true, "halted-published slow-released before-sleep"),
    ("owner-yield-points", true, "node-claimed tail-published handed-over"),
];

/// Steers the races of the literature: each vCPU that passes the point may lose its CPU there, for longer than a slice.
fn excludes_when_stopped(lock: &str, pv: bool, point: &str) -> Check {
    let chance = HowOften::Probability(0.2);
    let deschedule = deschedule(Target::Random, chance, Duration::from_micros(1500), Some(point));
    // Only the first that finds the lock held passes here, so there must be times when nobody else waits.
    let vcpus = if point == "pending-set" { 2 } else { config().vcpus };
    let mut seed = 0;
    // A point may be passed rarely: another seed, until it was.
    let injected = loop {
        seed += 1;
        let outcome = start(&RunConfig {
            vcpus,
            lock: lock.into(),
            pv,
            seed,
            deschedule: deschedule.clone(),
            spin_threshold: Duration::from_micros(2),
            window: Duration::from_millis(40),
            ..config()
        })?;
        check(outcome.lost_updates == Some(0), || format!("lost updates: {:?}", outcome.lost_updates))?;
        let injected = outcome.injected.ok_or("nothing is known of what was injected")?;
        if sum(&injected) > 0 || seed == 50 {
            break injected;
        }
    };
    let image = Image::embedded();
    let doing = image.points.iter().find(|entry| entry.name == point).ok_or("no such point")?.target();
    let as_told = match doing {
        Some(Target::Holder) => injected.holder,
        Some(Target::Head) => injected.head,
        Some(Target::Waiter) => injected.waiter,
        _ => sum(&injected),
    };
    check(as_told > 0 && as_told == sum(&injected), || format!("stopped at {point}: {injected:?}"))
}

fn panic_is_reported() -> Check {
    match start(&RunConfig { workload: "selftest-panic".into(), window: PATIENCE, ..config() }) {
        Err(RunError::GuestPanic { vcpu: 0, message, file, line }) => {
            check(message == "this is what a panic looks like", || message)?;
            check(file.ends_with("selftest.rs") && line > 0, || format!("{file}:{line}"))
        }
        other => unexpected(other),
    }
}

fn exception_is_reported() -> Check {
    let base = config();
    let last = base.vcpus - 1;
    match start(&RunConfig { workload: "selftest-exception".into(), window: PATIENCE, ..base }) {
        Err(RunError::GuestException { vcpu, vector: 14, location, detail, name, .. }) => {
            check(vcpu == last && name == "#PF", || format!("vCPU {vcpu}, {name}"))?;
            check(location.contains("selftest::exception"), || location)?;
            check(detail.contains("0x10"), || detail)
        }
        other => unexpected(other),
    }
}

/// The guest checks itself: every wrong bit, lost store and unrefused access is a panic.
fn page_faults() -> Check {
    for ring in [Ring::Ring0, Ring::Ring3] {
        let outcome =
            start(&RunConfig { workload: "selftest-page-fault".into(), ring, vcpus: 1, ..config() })?;
        check(acquisitions(&outcome) > 0, || format!("no round in {ring:?}"))?;
    }
    Ok(())
}

/// Ways to serve page faults, of those that exclude.
const FAULT_SCHEMES: [&str; 3] = ["mmap-sem", "speculative", "per-vma"];

fn with_faults(workload: &str, lock: &str) -> RunConfig {
    RunConfig { workload: workload.into(), lock: lock.into(), think: Duration::ZERO, ..config() }
}

/// The guest checks itself: a wrong page, a lost fault, a page or an area that leaks is a panic.
fn memory_selftest() -> Check {
    for lock in FAULT_SCHEMES {
        let outcome = start(&RunConfig {
            window: Duration::from_millis(500),
            watchdog: Some(PATIENCE),
            ..with_faults("selftest-memory", lock)
        })?;
        check(outcome.lost_updates == Some(0), || format!("{lock}: {:?} lost", outcome.lost_updates))?;
        check(event(&outcome, "segmentation_fault") > 0, || format!("{lock}: nothing was refused"))?;
    }
    Ok(())
}

fn fault_workloads() -> Check {
    for (lock, counter) in FAULT_SCHEMES.into_iter().zip(["", "speculative_pgfault", "vma_lock_success"]) {
        let outcome = start(&with_faults("fault-many", lock))?;
        let faults = event(&outcome, "pgfault");
        check(faults > 0, || format!("{lock}: no page fault"))?;
        let served = event(&outcome, counter);
        check(served <= faults && (counter.is_empty() || served > 0), || {
            format!("{lock}: {served} of {faults} faults")
        })?;
    }
    // Address spaces of their own have nobody to ask, and nothing to speculate about.
    let private = start(&RunConfig { pv: false, ..with_faults("fault-many", "none") })?;
    check(event(&private, "tlb_remote_flush") == 0, || {
        "a private address space was invalidated elsewhere".into()
    })?;
    match start(&RunConfig { pv: false, ..with_faults("fault-many", "tas") }) {
        Err(RunError::Usage(text)) => check(text.contains("mmap-sem"), || text),
        other => unexpected(other),
    }
}

fn out_of_memory() -> Check {
    let outcome =
        start(&RunConfig { memory_bytes: 2 << 20, ..with_faults("fault-read-mostly", "speculative") })?;
    check(event(&outcome, "mm_out_of_memory") > 0, || "2 MiB were enough".into())?;
    check(event(&outcome, "pgfault") > 0, || "no page fault was counted".into())
}

/// Every round of every vCPU waits for all others to acknowledge, at ratio 4: without an answer for those that are off
/// their pCPU it would take a round of slices, and a lost answer would end under the watchdog.
fn invalidations() -> Check {
    for sched in [Sched::Vmm, Sched::Host] {
        let outcome = start(&RunConfig { workload: "selftest-page-fault".into(), sched, ..config() })?;
        check(acquisitions(&outcome) > 0, || format!("no round under {sched:?}"))?;
        check(exits(&outcome, "invalidate") > 0, || "no doorbell was rung".into())?;
    }
    Ok(())
}

fn watchdog_ends_a_hang() -> Check {
    for sched in [Sched::Vmm, Sched::Host] {
        let watchdog = Some(Duration::from_millis(300));
        match start(&RunConfig {
            workload: "selftest-hang".into(),
            sched,
            watchdog,
            window: PATIENCE,
            ..config()
        }) {
            Err(RunError::NoProgress(_)) => {}
            other => return unexpected(other),
        }
    }
    Ok(())
}

/// Runs what must fail, and gives what is told of it.
fn explained(config: &RunConfig) -> Result<(RunError, Explanation, String), Failed> {
    let mut readings = Readings::default();
    let result = run_with_readings(
        config,
        &Image::embedded(),
        &AtomicBool::new(false),
        &Instruments::default(),
        &mut readings,
    );
    let error = result.err().ok_or("the run came to its end")?;
    let explanation = readings.explanation.ok_or_else(|| format!("no explanation for: {error}"))?;
    check(explanation.vcpus.len() == config.vcpus as usize, || format!("{} vCPUs", explanation.vcpus.len()))?;
    let grouped: usize = explanation.groups.iter().map(|group| group.vcpus.len()).sum();
    check(grouped == config.vcpus as usize, || format!("{grouped} vCPUs in groups"))?;
    let text = explanation.to_string();
    let long = text.lines().count();
    check(long <= 20 * explanation.groups.len() + 20, || format!("{long} lines:\n{text}"))?;
    Ok((error, explanation, readings.console))
}

fn explain_a_panic() -> Check {
    let (_, explanation, console) =
        explained(&RunConfig { workload: "selftest-panic".into(), window: PATIENCE, ..config() })?;
    check(explanation.verdict.cause == Cause::Panic && explanation.verdict.vcpu == Some(0), || {
        format!("{:?}", explanation.verdict)
    })?;
    check(console == "selftest-panic: vCPU 0 is about to panic\n", || console)
}

fn explain_an_exception() -> Check {
    let config = RunConfig { workload: "selftest-exception".into(), window: PATIENCE, ..config() };
    let (_, explanation, _) = explained(&config)?;
    check(explanation.verdict.vcpu == Some(config.vcpus - 1), || format!("{:?}", explanation.verdict))?;
    let at = explanation.groups[0].at.as_ref().ok_or("no place")?;
    check(at.symbol.as_deref().is_some_and(|name| name.contains("selftest::exception")), || {
        format!("{at:?}")
    })?;
    let here = at.code.iter().find(|line| line.address == at.address).ok_or("no code")?;
    check(here.text.starts_with("mov ") && here.text.contains('['), || format!("{here:?}"))?;
    let file = at.frames.iter().find_map(|frame| frame.file.as_deref());
    check(file == Some("guest/src/workloads/selftest.rs"), || format!("{:?}", at.frames))
}

fn explain_a_hang() -> Check {
    for sched in [Sched::Vmm, Sched::Host] {
        for (lock, pv) in [("qspinlock", true), ("ticket", false)] {
            let config = RunConfig {
                workload: "selftest-hang".into(),
                sched,
                lock: lock.into(),
                pv,
                window: PATIENCE,
                ..config()
            };
            let (_, explanation, _) = explained(&config)?;
            let verdict = &explanation.verdict;
            check(verdict.cause == Cause::HolderRuns && verdict.vcpu == Some(0), || format!("{verdict:?}"))?;
            let [state] = &explanation.locks[..] else {
                return Err(format!("locks {:?}", explanation.locks).into());
            };
            let word = state.word.as_ref().map_or("", |word| word.meaning.as_str());
            check(word.starts_with("held"), || format!("{lock}: {:?}", state.word))?;
            check(state.owner == Some(0) && state.heads.len() + state.waiters.len() > 0, || {
                format!("{state:?}")
            })?;
            let longest = explanation.vcpus.iter().filter_map(|vcpu| vcpu.asked_ns).max();
            check(longest > Some(500_000_000), || format!("nobody waits for long: {longest:?}"))?;
        }
    }
    Ok(())
}

/// A large machine's explanation is no longer than a small one's.
fn explain_1024_vcpus() -> Check {
    let workload = "selftest-hang".into();
    let watchdog = Some(Duration::from_secs(2));
    let (_, explanation, _) =
        explained(&RunConfig { workload, vcpus: 1024, window: PATIENCE, watchdog, ..config() })?;
    check(explanation.verdict.vcpu == Some(0), || format!("{:?}", explanation.verdict))?;
    check(explanation.groups.len() < 60, || format!("{} groups", explanation.groups.len()))
}

fn explain_a_lost_kick() -> Check {
    for (lock, sched) in [("qspinlock", Sched::Vmm), ("ticket", Sched::Host)] {
        let workload = "selftest-lost-kick".into();
        let watchdog = Some(Duration::from_secs(1));
        let config = RunConfig { workload, lock: lock.into(), sched, window: PATIENCE, watchdog, ..config() };
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
fn nonsense_changes_figures_at_most() -> Check {
    for sched in [Sched::Vmm, Sched::Host] {
        let (image, stop) = (Image::embedded(), AtomicBool::new(false));
        let instruments = Instruments { profile: Some(Duration::from_millis(1)), trace: true };
        let mut readings = Readings::default();
        let config = RunConfig { workload: "selftest-nonsense".into(), sched, ..config() };
        match run_with_readings(&config, &image, &stop, &instruments, &mut readings) {
            Ok(outcome) => _ = outcome.acquisitions(),
            Err(RunError::ExclusionViolated(_)) => {
                let explanation = readings.explanation.as_ref().ok_or("no explanation")?;
                check(!explanation.to_string().is_empty(), String::new)?;
            }
            other => return unexpected(other),
        }
        let trace = readings.trace.ok_or("no trace")?;
        check(trace.implausible_sections() > 0, || "the guest wrote no nonsense".into())?;
        trace.write(std::io::sink())?;
    }
    Ok(())
}

/// Holding takes a quarter of the guest's time: so many samples must fall there, wherever slices and exits are.
fn profile_is_fair() -> Check {
    let (image, stop) = (Image::embedded(), AtomicBool::new(false));
    let instruments = Instruments { profile: Some(Duration::from_micros(300)), trace: false };
    let (mut samples, mut holder, mut work) = (0, 0, 0);
    let start = Instant::now();
    // A busy host takes the thread off its CPU and so takes samples away: as many runs as it needs.
    while samples < 400 && start.elapsed() < PATIENCE {
        let mut readings = Readings::default();
        let config = RunConfig {
            // One vCPU per pCPU: nobody waits.
            vcpus: 1,
            cpus: config().cpus[..1].to_vec(),
            lock: "tas".into(),
            pv: false,
            hold: Duration::from_micros(3),
            think: Duration::from_micros(9),
            window: Duration::from_millis(300),
            ..config()
        };
        run_with_readings(&config, &image, &stop, &instruments, &mut readings)?;
        let profile = readings.profile.ok_or("no profile")?;
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

fn trace_agrees_with_the_guest() -> Check {
    for sched in [Sched::Vmm, Sched::Host] {
        let (image, stop) = (Image::embedded(), AtomicBool::new(false));
        let instruments = Instruments { profile: None, trace: true };
        let mut readings = Readings::default();
        let config = RunConfig { sched, ..config() };
        let outcome = run_with_readings(&config, &image, &stop, &instruments, &mut readings)?;
        let trace = readings.trace.ok_or("no trace")?;
        let ((events, _), (sections, dropped)) = (trace.host_events(), trace.guest_sections());
        check(events > u64::from(config.vcpus), || format!("{events} host events"))?;
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

fn exclusion_is_checked() -> Check {
    match start(&RunConfig { workload: "selftest-exclusion".into(), ..config() }) {
        Err(RunError::ExclusionViolated(_)) => Ok(()),
        other => unexpected(other),
    }
}

fn stop_request() -> Check {
    let stop = AtomicBool::new(true);
    let start = Instant::now();
    let result = run(&RunConfig { window: Duration::from_secs(60), ..config() }, &Image::embedded(), &stop);
    if !matches!(result, Err(RunError::Interrupted)) {
        return unexpected(result);
    }
    check(start.elapsed() < Duration::from_secs(30), || format!("took {:?}", start.elapsed()))
}

fn work_rate() -> Check {
    let given = start(&RunConfig { work_rate: Some(12_345), ..config() })?;
    check(given.work_rate == 12_345, || format!("{}", given.work_rate))?;
    let measured = start(&config())?;
    check(measured.work_rate > 0, || "no rate was measured".into())
}

fn several_locks() -> Check {
    for lock_count in [3, MAX_LOCKS] {
        let outcome = start(&RunConfig { lock_count, ..config() })?;
        check(outcome.lost_updates == Some(0), || format!("{lock_count} locks: {:?}", outcome.lost_updates))?;
    }
    Ok(())
}

/// T9, with a real hypervisor below: a vCPU that is preempted with all five locks makes the others wait at all levels.
fn nested_slow_paths() -> Check {
    for workload in ["selftest-nesting", "selftest-nesting-whole"] {
        for pv in [false, true] {
            let outcome = start(&RunConfig { workload: workload.into(), pv, lock_count: 5, ..config() })?;
            check(outcome.lost_updates == Some(0), || format!("{workload}: {:?}", outcome.lost_updates))?;
            for name in
                ["lock_slowpath", "lock_use_node2", "lock_use_node3", "lock_use_node4", "lock_no_node"]
            {
                check(event(&outcome, name) > 0, || format!("{workload}, pv {pv}: no {name}"))?;
            }
        }
    }
    match start(&RunConfig { workload: "selftest-nesting".into(), lock_count: 4, ..config() }) {
        Err(RunError::GuestPanic { message, .. }) => check(message.contains("--locks 5"), || message),
        other => unexpected(other),
    }
}

fn hand_off() -> Check {
    for sched in [Sched::Vmm, Sched::Host] {
        let outcome = start(&RunConfig {
            workload: "hand-off".into(),
            lock: "none".into(),
            pv: false,
            sched,
            ..config()
        })?;
        let hops = acquisitions(&outcome);
        check(hops > 0, || format!("{sched:?}: the token did not move"))?;
        // It visits everybody in turn.
        let counts = outcome.vcpus.iter().map(|vcpu| vcpu.acquisitions);
        let (least, most) = (counts.clone().min().unwrap_or(0), counts.max().unwrap_or(0));
        check(most - least <= 1, || format!("{sched:?}: between {least} and {most} visits"))?;
    }
    Ok(())
}

fn unpatched_sites() -> Check {
    for (lock, pv) in
        [("none", false), ("qspinlock", false), ("qspinlock", true), ("clh", false), ("mcs", false)]
    {
        for patch in [true, false] {
            let outcome = start(&RunConfig { lock: lock.into(), pv, patch, ..config() })?;
            check((outcome.patched_sites > 0) == patch, || {
                format!("{lock}: {} sites", outcome.patched_sites)
            })?;
            check(outcome.lost_updates.unwrap_or(0) == 0, || format!("{lock}: {:?}", outcome.lost_updates))?;
        }
    }
    Ok(())
}

fn pair_costs() -> Check {
    let costs = |lock: &str, patch| {
        let config = RunConfig { vcpus: 1, lock: lock.into(), pv: false, patch, ..config() };
        start(&config).map(|outcome| (outcome.pair_ticks, outcome.calls))
    };
    let (ticks, calls) = costs("qspinlock", true)?;
    let all = [ticks.compiled_in, ticks.through_table, ticks.patched];
    check(all.iter().all(Option::is_some), || format!("{ticks:?}"))?;
    let bytes = calls.map(|calls| (calls.lock_bytes, calls.cpu_bytes));
    // One word; four nodes and a line of its own for each vCPU, and its part of the table of sleeping heads.
    check(bytes == Some((4, 192)), || format!("{bytes:?} bytes"))?;
    let (ticks, _) = costs("qspinlock", false)?;
    check(ticks.patched.is_none() && ticks.through_table.is_some(), || format!("{ticks:?}"))?;
    let (ticks, _) = costs("mcslock", true)?;
    check(ticks.compiled_in.is_some() && ticks.through_table.is_none(), || format!("{ticks:?}"))
}

fn copies_are_whole() -> Check {
    for (lock, workload) in
        [("rwsem/packed", "copy-256"), ("rwsem/prev-cpu", "copy-4096"), ("mutex/split", "copy-1024")]
    {
        let (lock, workload, short) = (lock.into(), workload.into(), Duration::from_nanos(200));
        let outcome =
            start(&RunConfig { lock, workload, lock_count: 2, hold: short, think: short, ..config() })?;
        // Torn blocks count as violations of exclusion, which `start` reports.
        check(outcome.lost_updates == Some(0), || format!("lost updates: {:?}", outcome.lost_updates))?;
        check(acquisitions(&outcome) > 0, || "no block was copied".into())?;
    }
    Ok(())
}

fn usage_errors() -> Check {
    let often = |target, at| deschedule(target, HowOften::PerSecond(100.0), Duration::from_millis(1), at);
    let nonsense = [
        RunConfig { vcpus: 0, ..config() },
        RunConfig { vcpus: 1025, ..config() },
        RunConfig { cpus: vec![], ..config() },
        RunConfig { cpus: vec![100_000], ..config() },
        RunConfig { lock: "mutex-of-steel".into(), ..config() },
        RunConfig { workload: "nap".into(), ..config() },
        RunConfig { lock: "mcs".into(), pv: true, ..config() },
        RunConfig { workload: "grant-split".into(), lock: "mcs".into(), pv: false, ..config() },
        RunConfig { lock_count: 0, ..config() },
        RunConfig { lock_count: MAX_LOCKS + 1, ..config() },
        RunConfig { grace: Duration::from_millis(2), ..config() },
        RunConfig { grace: Duration::from_micros(50), sched: Sched::Host, ..config() },
        RunConfig { kick_yields: true, sched: Sched::Host, ..config() },
        RunConfig { deschedule: often(Target::Holder, None), lock: "none".into(), pv: false, ..config() },
        RunConfig { deschedule: often(Target::Random, Some("nowhere")), ..config() },
        RunConfig { deschedule: often(Target::Random, Some("handed-over")), ..config() },
        RunConfig {
            deschedule: often(Target::Waiter, Some("handed-over")),
            lock: "qspinlock-points".into(),
            ..config()
        },
    ];
    for config in nonsense {
        match start(&config) {
            Err(RunError::Usage(text)) => check(!text.contains('\n') && !text.is_empty(), || text)?,
            other => return unexpected(other),
        }
    }
    Ok(())
}
