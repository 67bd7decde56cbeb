//! Back ends in which vCPUs halt in the kernel. Where one does not work its tests are skipped, with the reason; on the
//! emulated hardware of `just test-nested` it has to.

use std::process::Command;
use std::time::Duration;

use haltkick_vmm::{
    Cause, Image, Known, PreemptedSource, PvBackend, Ring, RoundTrip, Run, RunError, Sched, Where, probe,
};
use libtest_mimic::Trial;

use crate::explain::explained;
use support::{
    Check, PATIENCE, Settings, apply, config, done, exits, forms, ms, named, nested, refused, skip, start,
    trial, us,
};

#[apply(trial)]
fn every_back_end_in_the_kernel_works() -> Vec<Trial> {
    // Also without KVM: the suite that runs these elsewhere asks for their names here.
    let (kvm, ipi) = match probe() {
        Ok(probe) => (probe.kick_by_hypercall, probe.kick_by_interrupt),
        Err(error) => (Err(error.to_string().into()), Err(error.to_string().into())),
    };
    [(PvBackend::Kvm, kvm), (PvBackend::Ipi, ipi)]
        .into_iter()
        .flat_map(|(kind, works)| trials_of(kind, works))
        .collect()
}

/// Set in a process that makes one run in this ring, instead of all tests.
pub(crate) const FRESH_PROCESS: &str = "HALTKICK_FRESH_PROCESS";

/// Tells the back end of a run in `ring`. No lock, so that no vCPU ever sleeps: KVM's counts of sleeping then come from the earlier trial.
pub(crate) fn tell_backend(ring: &str) {
    let ring = if ring == "0" { Ring::Ring0 } else { Ring::Auto };
    let config = config().ring(ring).sched(Sched::Host).pv_backend(PvBackend::Auto);
    let outcome = done(&config.form("none", false));
    let slept: u64 = outcome.vcpus.iter().filter_map(|vcpu| vcpu.waits).sum();
    assert!(outcome.acquisitions() > 0 && slept == 0, "vCPUs slept {slept} times");
    println!("{}", outcome.pv_backend.name());
}

/// Ring and back end are tried once in a process, and this one has done so. So a new one, for either path: where what was
/// asked for works, and where the VM has to be made again.
#[apply(trial)]
fn trials_on_the_vm_of_a_run_leave_no_trace() {
    let probe = probe().unwrap();
    let myself = std::env::current_exe().unwrap();
    for (ring, halts) in [("auto", probe.ring0_native), ("0", true)] {
        let best = match (halts, &probe.kick_by_hypercall, &probe.kick_by_interrupt) {
            (true, Ok(()), _) => PvBackend::Kvm,
            (true, Err(_), Ok(())) => PvBackend::Ipi,
            _ => PvBackend::Vmm,
        };
        let output = Command::new(&myself).env(FRESH_PROCESS, ring).output().unwrap();
        let told = String::from_utf8_lossy(&output.stdout);
        assert_eq!(told.trim(), best.name(), "--ring {ring}: {output:?}");
    }
}

fn trials_of(backend: PvBackend, works: Known<()>) -> Vec<Trial> {
    let name = backend.name();
    let nested = nested();
    // Interrupts into nested guests wedge QEMU's emulator now and then: the suite gives them machines of their own.
    let elsewhere = backend == PvBackend::Ipi && nested && std::env::var_os("HALTKICK_NESTED_IPI").is_none();
    let skip = elsewhere || works.is_err() && !nested;
    if skip {
        let reason = works.err().unwrap_or_else(|| "it has machines of its own".into());
        eprintln!("--pv-backend {name} is skipped, not tested: {reason}");
    }
    let mut trials: Vec<_> = forms()
        .into_iter()
        .filter(|(_, pv)| *pv)
        .map(|(lock, _)| {
            let title = format!("{lock}_pv_excludes_while_vcpus_halt_in_the_kernel_woken_by_{name}");
            named(title, move || excludes_halting(&lock, backend))
        })
        .collect();
    let latch = format!("a_kick_before_the_halt_is_latched_by_{name}");
    trials.push(named(latch, move || latch_halting(backend)));
    let token = format!("a_token_passed_by_{name}_comes_back");
    // That many interrupts in so short a time wedge the emulator in two of three machines.
    let wedges = nested && backend == PvBackend::Ipi;
    trials.push(named(token, move || round_trip(&halting(backend))).with_ignored_flag(wedges));
    let knobs = format!("halt_polling_and_exits_can_be_chosen_with_{name}");
    trials.push(named(knobs, move || knobs_in_kernel(backend)));
    trials.into_iter().map(|trial| if skip { trial.with_ignored_flag(true) } else { trial }).collect()
}

/// Tests of this back end alone: interpreted, as ring 0 is where interrupts are the best that works, they would take a
/// minute.
fn kvm_kicks() -> Check {
    match probe()?.kick_by_hypercall {
        Err(reason) if !nested() => skip(reason),
        _ => Ok(()),
    }
}

/// Few vCPUs and little work: ring 0 may be interpreted.
fn halting(backend: PvBackend) -> Run {
    let little = Duration::from_nanos(200);
    let (ring, sched) = (Ring::Ring0, Sched::Host);
    config().pv_backend(backend).ring(ring).sched(sched).hold(little).think(little)
}

fn excludes_halting(lock: &str, backend: PvBackend) {
    let outcome = done(&halting(backend).form(lock, true));
    assert_eq!(outcome.pv_backend, backend, "{:?}: {}", outcome.pv_backend, outcome.pv_backend_reason);
    let doorbells = exits(&outcome, "pv_wait") + exits(&outcome, "pv_kick");
    assert_eq!(doorbells, 0);
}

/// KVM puts them to sleep and says so of each. Few vCPUs, since their number multiplies the sections before the end;
/// waiters sleep soon. If no vCPU happens to sleep once kicks are lost, all leave: again, then, with more.
#[apply(trial)]
fn a_lost_kick_names_who_sleeps_in_the_kernel() -> Check {
    kvm_kicks()?;
    for vcpus in [3, 5, 8, 12] {
        let config = halting(PvBackend::Kvm)
            .workload("selftest-lost-kick")
            .vcpus(vcpus)
            .spin_threshold(us(5))
            .window(PATIENCE);
        let (error, explanation) = explained(&config);
        assert!(matches!(error, RunError::NoProgress(_)), "{error}");
        if explanation.vcpus.iter().all(|vcpu| vcpu.at == Where::Left) {
            continue;
        }
        let verdict = &explanation.verdict;
        assert!(verdict.cause == Cause::LostWakeUp && verdict.vcpu.is_some(), "{verdict:?}\n{explanation}");
        return Ok(());
    }
    Err("nobody slept when kicks were lost, four times".into())
}

#[apply(trial)]
fn a_token_passed_by_doorbells_comes_back(sched: Sched) {
    round_trip(&config().sched(sched).pv_backend(PvBackend::Vmm));
}

/// Through a run as well as by the bare exits.
fn round_trip(config: &Run) {
    let RoundTrip { backend, through, bare } = RoundTrip::measure(config, &Image::embedded()).unwrap();
    assert_eq!(backend, config.pv_backend);
    let plausible = Duration::from_nanos(100)..config.window;
    assert!(plausible.contains(&through) && plausible.contains(&bare), "{through:?}, bare {bare:?}");
}

fn latch_halting(backend: PvBackend) {
    let outcome = done(&halting(backend).workload("selftest-latch"));
    let rounds = outcome.acquisitions();
    assert!(rounds > 0, "no round was completed");
    // Every round ends in a halt, which KVM counts where it counts anything.
    let stats = outcome.kvm_stats.unwrap_or_default();
    let halts = stats.iter().find(|(name, _)| name == "halt_exits").map(|(_, count)| *count);
    assert!(halts.is_none_or(|halts| halts >= rounds), "{rounds} rounds, {halts:?} halts");
}

fn knobs_in_kernel(backend: PvBackend) {
    let no_poll = halting(backend).halt_poll(Duration::ZERO);
    done(&no_poll);
    // These depend on the CPU: done, or refused for what it is.
    for (pause_exits, hlt_exits) in [(false, true), (true, false)] {
        match (start(&halting(backend).pause_exits(pause_exits).hlt_exits(hlt_exits)), backend, hlt_exits) {
            (result @ Err(RunError::Usage(_)), PvBackend::Kvm, false) => refused(result, "kick hypercall"),
            (Ok(_), PvBackend::Kvm, false) => {
                panic!("a kick by hypercall cannot work without exits");
            }
            (Ok(_), ..) => {}
            (Err(RunError::HostLacks(text)), ..) => assert!(text.contains("these exits"), "{text}"),
            (other, ..) => panic!("{other:?}"),
        }
    }
}

#[apply(trial)]
fn kvm_itself_marks_preempted_vcpus_that_halt_in_its_hands() -> Check {
    kvm_kicks()?;
    let base = halting(PvBackend::Kvm);
    let vcpus = 8 * base.cpus.len() as u32;
    let (hold, think) = (us(20), us(20));
    let outcome = done(&base.form("none", false).vcpus(vcpus).hold(hold).think(think).window(ms(400)));
    assert_eq!(outcome.preempted_source, Ok(PreemptedSource::Kvm));
    Ok(())
}

#[apply(trial)]
fn a_back_end_in_the_kernel_is_refused_where_it_cannot_be() {
    // A back end that fails the probe is refused, and does not hang.
    let probe = probe().unwrap();
    for (backend, works) in
        [(PvBackend::Kvm, probe.kick_by_hypercall), (PvBackend::Ipi, probe.kick_by_interrupt)]
    {
        match (start(&halting(backend)), works) {
            (Ok(_), Ok(())) => {}
            (Err(RunError::HostLacks(text)), Err(reason)) => assert!(text.contains(&*reason.0), "{text}"),
            (other, _) => panic!("{other:?}"),
        }
    }
}
