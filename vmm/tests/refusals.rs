//! Settings that cannot be used are refused with one line, before anything is created, by every entrance of the library.

use std::path::Path;
use std::time::Duration;

use haltkick_vmm::{
    Accelerator, Bandwidth, Engine, Fold, Governor, HowOften, Image, Instruments, MAX_LOCKS, PvBackend,
    Quota, Ring, Run, Sched, Shape, Target, check_guests,
};
use support::{Settings, config, deschedule, ms, start_with, us, watched};

#[test]
fn code_that_begins_within_a_page_is_nothing_for_threads() {
    const LOADABLE: u64 = 1;
    const EXECUTABLE: u64 = 1;
    const HEADER_BYTES: usize = 56;
    // One segment more, far behind the others; its program header behind theirs, before anything of the image.
    let address = 0x400_0008_u64;
    let header = [EXECUTABLE << 32 | LOADABLE, 0, address, address, 16, 16, 8];
    let mut bytes = Image::embedded_elf().to_vec();
    let at = 64 + usize::from(bytes[56]) * HEADER_BYTES;
    assert!(bytes[at..at + HEADER_BYTES].iter().all(|byte| *byte == 0), "there is room");
    bytes[at..at + HEADER_BYTES].copy_from_slice(header.map(u64::to_le_bytes).as_flattened());
    bytes[56] += 1;
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("within-a-page");
    std::fs::write(&path, bytes).expect("the test's directory can be written");
    let image = Image::from_file(&path).expect("on KVM it may be anywhere");
    assert!(check_guests(&support::on(Engine::Kvm), &image).is_ok());
    let refused = check_guests(&support::on(Engine::Threads), &image).expect_err("its page is not its own");
    assert!(refused.to_string().contains("no page begins"), "{refused}");
}

fn base() -> Run {
    support::on(Engine::Threads)
}

/// A quota of `run_us` microseconds in a millisecond, which the VMM can keep.
fn quota(run_us: u64) -> Quota {
    let [run, period] = [run_us, 1000].map(Duration::from_micros);
    Quota::Own(Bandwidth { run, period, burst: Duration::ZERO })
}

/// Rows of refused runs under KVM, most of which no engine would run. The command's own tests have more, which the library refuses for it.
fn refused_on_kvm() -> Vec<(Run, &'static str)> {
    let stops = |target| config().deschedule(deschedule(target, HowOften::PerSecond(100.0), ms(1), None));
    let interrupted = |lock, pv| config().workload("interrupted").form(lock, pv).lock_count(2);
    let in_kernel = |backend| config().pv_backend(backend).sched(Sched::Host);
    let beside = |other: Run| config().name("a").beside([other]);
    let too_many = Shape { footprint_lines: 1 << 20, ..Shape::default() };
    vec![
        (config().vcpus(1025), "1025 vCPUs"),
        (config().cpus(vec![100_000]), "CPU 100000"),
        (config().lock("mutex-of-steel"), "mutex-of-steel"),
        (config().workload("nap"), "nap"),
        (config().form("mcs", true), "mcs"),
        (config().workload("grant-split").form("mcs", false), "mcs"),
        (config().lock_count(MAX_LOCKS + 1), "locks"),
        (config().workload("overtaking").oracle(false), "overtaking"),
        (config().shape(too_many), "too many"),
        (stops(Target::Waiter).workload("compute"), "compute"),
        (stops(Target::Head).workload("hand-off"), "hand-off"),
        (interrupted("unfair-ticket", false), "these go with it"),
        (interrupted("qspinlock", true).lock_count(1), "--locks 2"),
        (config().workload("fault-many").form("tas", false), "mmap-sem"),
        (in_kernel(PvBackend::Kvm).sched(Sched::Vmm), "--pv-backend"),
        (in_kernel(PvBackend::Ipi).sched(Sched::Vmm), "--pv-backend"),
        (in_kernel(PvBackend::Kvm).ring(Ring::Ring3), "--pv-backend"),
        (in_kernel(PvBackend::Ipi).ring(Ring::Ring3), "--pv-backend"),
        (config().halt_poll(us(0)), "--halt-poll"),
        (beside(config().lock("nothing").name("b")), "there is no lock"),
    ]
}

/// Rows of refused runs that other engines lack something for.
fn refused_elsewhere() -> Vec<(Run, &'static str)> {
    let qemu = || support::on(Engine::Qemu(Accelerator::Tcg)).sched(Sched::Host);
    let simulated = || support::simulated("ivybridge-ex-4s", 4, 2);
    let stop = deschedule(Target::Random, HowOften::PerSecond(10.0), ms(1), None);
    let interrupted = base().workload("interrupted").form("qspinlock", true).lock_count(2);
    vec![
        (base().slice(us(0)), "slice"),
        (base().cpus([base().cpus[0]; 2].to_vec()), "twice"),
        (base().cpus(vec![]), "pCPU"),
        (base().vcpus(0), "vCPU"),
        (base().lock_count(0), "locks"),
        (base().sched(Sched::Host).kick_yields(true), "scheduler"),
        (base().sched(Sched::Host).quota(quota(500)), "quota"),
        (base().ring(Ring::Ring0), "ring 3"),
        (base().workload("selftest-page-fault"), "page tables"),
        (interrupted, "use --engine kvm"),
        (simulated().pv_backend(PvBackend::Ipi), "put to sleep by the VMM"),
        (qemu().sched(Sched::Vmm), "--sched host"),
        (qemu().deschedule(stop), "deschedules on purpose"),
        (qemu().ring(Ring::Ring3), "ring 0"),
        (qemu().pv_backend(PvBackend::Vmm), "no doorbells"),
        (qemu().halt_poll(us(0)), "--halt-poll"),
        (qemu().shape(Shape { work_sections: 8, ..Shape::default() }), "--work"),
        (qemu().fold(Fold::Governor(Governor::LINUX)), "stolen time"),
        (qemu().workload("selftest-page-fault"), "page tables"),
        (qemu().vcpus(255), "254"),
    ]
}

#[test]
fn settings_that_cannot_be_are_refused_before_anything_runs() {
    let image = Image::embedded();
    check_guests(&base(), &image).expect("the base can be run");
    for (config, says) in refused_on_kvm().into_iter().chain(refused_elsewhere()) {
        support::refused(start_with(&config, &image), says);
    }
    // Settings that concern the run alone are refused without an image, too.
    for (config, says) in &refused_elsewhere()[..7] {
        support::refused(config.check(), says);
    }
    let traced = Instruments { trace: true, ..Instruments::default() };
    let qemu = support::on(Engine::Qemu(Accelerator::Tcg)).sched(Sched::Host);
    support::refused(watched(&qemu, &traced), "--trace");
}

#[test]
fn a_point_beyond_the_64th_is_refused() {
    let mut image = Image::embedded();
    let lock = image.locks.iter().find(|lock| lock.has_points() && lock.has_paravirt()).unwrap().name.clone();
    let point = image.points[0].clone();
    image.points.resize(65, point);
    image.points[63].name = "last-bit".into();
    image.points[64].name = "without-a-bit".into();
    let at = |name| {
        let stop = deschedule(Target::Random, HowOften::Probability(0.5), ms(1), Some(name));
        base().lock(lock.clone()).deschedule(stop)
    };
    check_guests(&at("last-bit"), &image).expect("it has a bit");
    support::refused(check_guests(&at("without-a-bit"), &image), "first 64");
}
