//! The image under QEMU: with its emulator and with KVM. Skipped, with the reason, without QEMU or without KVM.

use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use haltkick_vmm::Accelerator::{self, Kvm, Tcg};
use haltkick_vmm::{
    Engine, Fold, Governor, Instruments, Outcome, PvBackend, Ring, Run, RunError, Sched, Shape, ShapeFlags,
    find_qemu, probe,
};
use libtest_mimic::Trial;
use support::{
    Check, Failed, Settings, apply, count, dies_with_its_place, event, forms, ms, named, start,
    start_stoppable, start_until, trial, us, violates_exclusion, watched,
};

fn main() -> ExitCode {
    let lacking = find_qemu().err().map(|reason| reason.to_string());
    // In the emulated machine, with KVM alone: an emulator in an emulator takes hours.
    if !support::nested() {
        let conclusion =
            support::conclude(trials(false), "guests under QEMU", "qemu-tcg", lacking.as_deref());
        if conclusion.has_failed() {
            return ExitCode::FAILURE;
        }
    }
    let lacking = lacking.or_else(|| probe().err().map(|reason| reason.to_string()));
    let trials = support::chosen(trials(true));
    support::conclude(trials, "guests under QEMU with KVM", "qemu-kvm", lacking.as_deref()).exit_code()
}

/// The tests with KVM, or all others.
fn trials(with_kvm: bool) -> Vec<Trial> {
    let all = support::trials(false).into_iter();
    all.filter(|trial| trial.name().starts_with("with_kvm_") == with_kvm).collect()
}

/// With KVM few, where KVM itself may be emulated, or interprets ring 0.
#[apply(trial)]
fn every_form_excludes() -> Vec<Trial> {
    let few = [("qspinlock".into(), false), ("qspinlock".into(), true)];
    let with_kvm = few.map(|form| ("with_kvm_", Kvm, form));
    let forms = forms().into_iter().map(|form| ("", Tcg, form)).chain(with_kvm);
    let trial = |(prefix, accelerator, (lock, pv)): (_, _, (String, bool))| {
        let title = format!("{prefix}{lock}_{}_excludes", if pv { "pv" } else { "native" });
        named(title, move || excludes(accelerator, &lock, pv))
    };
    forms.map(trial).collect()
}

/// Short runs: every engine here is slow. An emulated CPU may get nowhere in one while its host is busy.
fn config() -> Run {
    with(Tcg)
}

fn with(accelerator: Accelerator) -> Run {
    support::on(Engine::Qemu(accelerator)).vcpus(4).sched(Sched::Host).warmup(ms(5)).window(ms(20))
}

fn taken(outcome: &Outcome) -> bool {
    outcome.acquisitions() > 0
}

fn excludes(accelerator: Accelerator, lock: &str, pv: bool) {
    let outcome = start_until(&with(accelerator).form(lock, pv), taken);
    assert_eq!(outcome.lost_updates, (lock != "none").then_some(0));
    // One hold each; but vCPUs are stopped where they are, between the one count and the other too.
    let holds = count(&outcome.hold);
    assert!(holds.abs_diff(outcome.acquisitions()) <= 4, "{holds} holds, {}", outcome.acquisitions());
    assert!(pv || event(&outcome, "pv_wait_head") + event(&outcome, "pv_wait_node") == 0, "it halted");
}

#[apply(trial)]
fn every_vcpu_is_there_and_the_engine_recorded(accelerator: Accelerator) -> Check {
    let config = with(accelerator);
    let outcome = start_until(&config, taken);
    assert_eq!(outcome.vcpus.len(), 4);
    assert!(outcome.window >= config.window && outcome.work_rate > 0);
    let backend = if accelerator == Kvm && probe()?.kick_by_hypercall.is_ok() {
        PvBackend::Kvm
    } else {
        PvBackend::Ipi
    };
    assert_eq!((outcome.ring, outcome.pv_backend), (Ring::Ring0, backend), "{}", outcome.pv_backend_reason);
    // KVM's flag is there only when it has been seen set.
    let has_flag = outcome.preempted_source.is_ok();
    assert!(!has_flag || accelerator == Kvm);
    Ok(())
}

#[apply(trial)]
fn with_kvm_a_kick_that_fails_is_refused_with_a_reason() -> Check {
    let asked = with(Kvm).pv_backend(PvBackend::Kvm);
    match (probe()?.kick_by_hypercall, start(&asked)) {
        (Ok(()), Ok(outcome)) => assert_eq!(outcome.pv_backend, PvBackend::Kvm),
        (Err(reason), Err(RunError::HostLacks(text))) => {
            assert!(text.contains(&*reason.0) && text.contains("--pv-backend ipi"), "{text}");
        }
        (probed, got) => panic!("{probed:?}, {got:?}"),
    }
    Ok(())
}

#[apply(trial)]
fn many_more_vcpus_than_pcpus_halt_and_are_woken() {
    let config = config().vcpus(24);
    let outcome = start_until(&config, |outcome| event(outcome, "pv_kick_wake") > 0);
    assert_eq!((outcome.vcpus.len(), outcome.lost_updates), (24, Some(0)));
}

/// The guest checks the rest: it panics if something is not whole or is still mapped, or if a kick is lost.
#[apply(trial)]
fn workloads_exclude_and_come_to_rest() {
    for (workload, lock, lock_count, read_percent) in [
        ("critical-section", "qspinlock", 3, 0),
        ("selftest-latch", "qspinlock", 1, 0),
        ("copy-1024", "rwsem/packed", 1, 0),
        ("list", "rwsem/packed", 2, 50),
        ("hash-table", "ticket", 2, 50),
        ("rwlock-fair", "ticket", 2, 0),
        ("grant-split", "ticket", 2, 0),
    ] {
        let shape = Shape { read_percent, ..Shape::default() };
        let config = config().workload(workload).lock(lock).lock_count(lock_count).shape(shape);
        assert_eq!(start_until(&config, taken).lost_updates.unwrap_or(0), 0, "{workload}");
    }
}

#[apply(trial)]
fn a_panic_and_an_exception_are_reported_with_their_place(accelerator: Accelerator) {
    // Over at once, however long it is.
    dies_with_its_place(&with(accelerator).window(Duration::from_secs(60)));
}

#[apply(trial)]
fn a_missing_lock_and_a_request_to_stop_end_the_run() {
    // How long it takes until two meet in a section depends on the host.
    violates_exclusion(&config().workload("selftest-exclusion").window(Duration::from_secs(2)));
    let ended = start_stoppable(&config().window(Duration::from_secs(600)), &AtomicBool::new(true));
    assert!(matches!(ended, Err(RunError::Interrupted)), "{ended:?}");
}

/// Fields of the boot block as the guest tells them, in a window that was long enough for it to tell all.
fn told(config: &Run) -> Result<Vec<String>, Failed> {
    for factor in [1, 10, 100] {
        let window = config.window * factor;
        let config = config.clone().workload("selftest-settings").window(window);
        let (guest, _) = watched(&config, &Instruments::default())?;
        guest.result?;
        // QEMU's guest breaks its text where it has to say something to the VMM, at a space too.
        let text: String = guest.console.split_whitespace().collect();
        if let Some(told) = text.strip_prefix("BootBlock{").and_then(|text| text.strip_suffix('}')) {
            return Ok(told.split(',').map(String::from).collect());
        }
    }
    Err("it never said all".into())
}

/// A run in which the guest is told something else than by default in each field that an engine passes on.
fn unlike_the_default() -> Run {
    let shape = Shape {
        work_sections: 0,
        arrivals_ns: 300_000,
        long_hold_ns: 40_000,
        read_hold_ns: 4000,
        long_one_in: 9,
        nested_one_in: 7,
        read_percent: 30,
        hold_jitter_percent: 10,
        zipf_hundredths: 90,
        footprint_lines: 6,
        dirty_lines: 2,
        flags: ShapeFlags::KNOWN,
    };
    let governor = Governor { interval: ms(20), low: 300, high: 700 };
    let mut run = config().vcpus(3).form("ticket", false).lock_count(2).seed(77).shape(shape);
    run.guests[0].ours_mut().expect("our own guest").spin_rounds = 55;
    run.guests[0].ours_mut().expect("our own guest").lock_parameter = 66;
    run.oracle(false)
        .ordered_stamps(false)
        .hold(us(5))
        .think(us(6))
        .spin_threshold(us(70))
        .slice_margin(us(80))
        .work_rate(12_345)
        .tasks(5)
        .fold(Fold::Governor(governor))
}

/// QEMU's emulator cannot run the governor, whose settings KVM under QEMU gets in the same way.
#[apply(trial)]
fn every_setting_reaches_the_guest_on_every_engine() -> Check {
    // No settings, or settings of our own VMM.
    const OTHERS: &str =
        "abi_version fingerprint workload tsc_khz pool_bytes points trace_sections work_sections";
    let simulated = support::simulated("ivybridge-ex-4s", 2, 1).engine;
    let here = |run: Run| run.engine(simulated.clone()).sched(Sched::Vmm);
    let (usual, other) = (told(&here(config()))?, told(&here(unlike_the_default()))?);
    assert_eq!(usual.len(), other.len());
    for (usual, other) in usual.iter().zip(&other) {
        let (name, _) = usual.rsplit_once(':').expect("a field");
        let is_told =
            !other.ends_with("GuestAddress(0)") && !OTHERS.split(' ').any(|other| name.ends_with(other));
        assert_eq!(usual != other, is_told, "{usual}, {other}");
    }
    let emulated = |fold: Fold| unlike_the_default().fold(fold);
    let same = |run: Run| -> Check {
        let expected = told(&here(run.clone()))?;
        assert_eq!(told(&run)?, expected, "{:?}", run.engine);
        Ok(())
    };
    same(emulated(Fold::Oracle))?;
    if probe().is_ok() {
        same(unlike_the_default().engine(Engine::Qemu(Kvm)))?;
        same(unlike_the_default().engine(Engine::Kvm))?;
    }
    Ok(())
}
