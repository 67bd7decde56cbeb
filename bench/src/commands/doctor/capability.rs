//! Capabilities of this host: KVM, its vendor module, the rings, the hints. And two latencies. The cost of a wake-up: paravirtual locks
//! pay it for the end of spinning, so it is what they have to save. And the time from a start to the first acquisition, next to that of
//! QEMU with the same image and the same KVM.

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::process::Command;
use std::time::Duration;

use haltkick_vmm::{Known, Probe, PvBackend, RoundTrip, Rules, Run, Sched, find_qemu};

use super::{Finding, Level, plain_run};
use crate::analysis::statistics::{Estimate, median};
use crate::host::{cpulist, identity, probe};
use crate::record::Record;
use crate::text::quantity::{si, significant, time_ns};

pub(super) fn findings() -> Vec<Finding> {
    let mut findings = vec![kvm_device(), vendor_module(), pcpus()];
    findings.extend(measured());
    findings.push(preempted_hint());
    findings.push(sandbox());
    findings
}

fn sandbox() -> Finding {
    const POWERS: &str = "no new privileges, no core dumps, no capabilities but BPF's for switches";
    let filters = haltkick_vmm::sandbox_filters();
    let landlock = haltkick_vmm::landlock_abi();
    let all = filters.is_ok() && landlock.is_ok();
    let in_force = if haltkick_vmm::is_sandboxed() {
        let calls = match filters {
            Ok(()) => "system calls filtered".to_owned(),
            Err(reason) => format!("no filter of system calls ({reason})"),
        };
        let files = match landlock {
            Ok(abi) => format!("files walled off (Landlock ABI {abi})"),
            Err(reason) => format!("files not walled off ({reason})"),
        };
        format!("{calls}; {files}; {POWERS}")
    } else {
        "none (--no-sandbox)".to_owned()
    };
    let why = "walls around processes and threads that run guests, in case a guest gets hold of one; with --engine qemu there are \
               no new privileges and no core dumps, and that is all";
    Finding::told("sandbox", Ok(in_force), why, |_| all && haltkick_vmm::is_sandboxed())
}

fn kvm_device() -> Finding {
    let opened = OpenOptions::new().read(true).write(true).open("/dev/kvm");
    let (value, change) = match opened.map_err(|error| error.kind()) {
        Ok(_) => ("usable".to_owned(), None),
        Err(ErrorKind::PermissionDenied) => {
            let change = "sudo usermod -aG kvm $USER, then log in again";
            ("not accessible for this user".into(), Some(change))
        }
        Err(ErrorKind::NotFound) => ("does not exist".into(), Some(how_to_get_kvm())),
        Err(kind) => (kind.to_string(), Some(how_to_get_kvm())),
    };
    let level = if change.is_none() { Level::Good } else { Level::Missing };
    Finding::of_fact("/dev/kvm", Ok(value), "guests run on it", |_| (level, change))
}

fn how_to_get_kvm() -> &'static str {
    let has = |flag| probe::has_cpu_flag(flag) == Ok(true);
    if has("vmx") {
        "sudo modprobe kvm_intel"
    } else if has("svm") {
        "sudo modprobe kvm_amd"
    } else if has("hypervisor") {
        "this is a virtual machine without nested virtualization: switch that on in its hypervisor, or use hardware"
    } else {
        "switch on VT-x or AMD-V in the firmware, then load kvm_intel or kvm_amd"
    }
}

fn vendor_module() -> Finding {
    let why = "it decides what an exit costs and which paravirtual features exist";
    Finding::told("KVM module", identity::kvm_module(), why, has_kick)
}

/// Whether this module of KVM has a hypercall that kicks, and a flag of preemption that it writes.
fn has_kick(module: &str) -> bool {
    matches!(module, "kvm_intel" | "kvm_amd")
}

fn pcpus() -> Finding {
    let allowed = cpulist::allowed().map(|cpus| cpus.to_string()).map_err(|failure| failure.message);
    Finding::told("pCPUs allowed", allowed, "vCPUs share these; --cpus chooses among them", |_| true)
}

/// Findings that only a guest can make.
fn measured() -> [Finding; 5] {
    let probe = haltkick_vmm::probe().map_err(|error| error.to_string());
    let of =
        |figure: fn(&Probe) -> Result<String, String>| probe.as_ref().map_err(Clone::clone).and_then(figure);
    let why =
        "where KVM interprets ring 0, guests run in ring 3, which the same image can; --ring auto finds out";
    let ring = Finding::told("ring 0", of(rates), why, |rates| rates.starts_with("native"));
    let why = "how vCPUs sleep and are woken: in the kernel (sched host, ring 0) or by the VMM; each was tried just now";
    let backends = Finding::told("pv back ends", of(backends), why, |value| value.starts_with("kvm"));
    let why = "16 vCPUs under the host's scheduler, from the start of a run to the first acquisition; QEMU's microvm with KVM \
               from its start, with the same image, and in brackets the former over the latter, with its 95 % interval";
    let start_up = Finding::told("start-up", of(starts), why, |_| true);
    let why = "pv_kick, the wake-up, pv_wait and the same back, two vCPUs on one pCPU: the cost of a handoff to a sleeper, \
               twice; in brackets: over the same exits and wake-ups with nothing around them, with its 95 % interval";
    let wake_ups = Finding::told("wake-ups", of(round_trips), why, |_| true);
    let limits =
        of(|probe| Ok(format!("{} ({} recommended by KVM)", probe.max_vcpus, probe.recommended_vcpus)));
    let why = "beyond this KVM makes no more; what it recommends matters to production guests only";
    [ring, backends, start_up, wake_ups, Finding::told("most vCPUs", limits, why, |_| true)]
}

fn rates(probe: &Probe) -> Result<String, String> {
    let [ring_0, ring_3] = [probe.ring0_instructions_per_second, probe.ring3_instructions_per_second].map(si);
    let how = if probe.ring0_native { "native" } else { "interpreted" };
    Ok(format!("{how}, {ring_0} instructions/s (ring 3: {ring_3})"))
}

fn backends(probe: &Probe) -> Result<String, String> {
    Ok(match (&probe.kick_by_hypercall, &probe.kick_by_interrupt) {
        (Ok(()), Ok(())) => "kvm, ipi, vmm".to_owned(),
        (Ok(()), Err(ipi)) => format!("kvm, vmm; not ipi: {ipi}"),
        (Err(kvm), Ok(())) => format!("ipi, vmm; not kvm: {kvm}"),
        (Err(kvm), Err(ipi)) => format!("vmm; not kvm: {kvm}; not ipi: {ipi}"),
    })
}

fn preempted_hint() -> Finding {
    let writes = identity::kvm_module().map(|module| match has_kick(&module) {
        true => "sched vmm: the VMM, exactly; sched host: KVM".to_owned(),
        false => "sched vmm: the VMM, exactly; sched host: BPF, where it is allowed".to_owned(),
    });
    let why = "vcpu_is_preempted() reads it; each record says what wrote it, or why nothing did";
    Finding::told("preempted flag", writes, why, |value| value.ends_with("KVM"))
}

/// Pairs of measurements for each figure, and how long each one takes.
const PAIRS: usize = 8;
const WINDOW: Duration = Duration::from_millis(20);

/// Round trips through each back end that works, under each scheduler that it works with.
fn round_trips(probe: &Probe) -> Result<String, String> {
    let (image, mut run) = plain_run(&[("ratio", "1")]).map_err(|failure| failure.message)?;
    (run.window, run.warmup) = (WINDOW, WINDOW / 4);
    let in_kernel = |works: &Known<()>| probe.ring0_native && works.is_ok();
    let ways = [
        (in_kernel(&probe.kick_by_hypercall), PvBackend::Kvm, Sched::Host),
        (in_kernel(&probe.kick_by_interrupt), PvBackend::Ipi, Sched::Host),
        (true, PvBackend::Vmm, Sched::Host),
        (true, PvBackend::Vmm, Sched::Vmm),
    ];
    let figure = |(_, pv_backend, sched): (bool, PvBackend, Sched)| {
        let run = Run { pv_backend, rules: Rules { sched, ..run.rules }, ..run.clone() };
        let pairs: Result<Vec<_>, _> = (0..PAIRS).map(|_| RoundTrip::measure(&run, &image)).collect();
        let sched = if sched == Sched::Host { "host" } else { "vmm" };
        let figures = pairs.map_or_else(|error| error.to_string(), |pairs| in_words(&pairs));
        format!("{}, sched {sched}: {figures}", pv_backend.name())
    };
    Ok(ways.into_iter().filter(|(works, ..)| *works).map(figure).collect::<Vec<_>>().join("; "))
}

fn in_words(pairs: &[RoundTrip]) -> String {
    let ns = |time: fn(&RoundTrip) -> Duration| -> Vec<f64> {
        pairs.iter().map(|pair| time(pair).as_nanos() as f64).collect()
    };
    let through = ns(|pair| pair.through);
    time_ns(median(&through)) + &in_brackets(&through, &ns(|pair| pair.bare))
}

/// Starts of each: as few as give an interval.
const STARTS: usize = 6;
const VCPUS: &str = "16";

/// Starts of a command of its own each time, as a user would: a process finds out once what is not in the cache.
fn starts(probe: &Probe) -> Result<String, String> {
    // Features that QEMU's guest may rely on are known by now.
    let kick = if probe.kick_by_hypercall.is_ok() { "kvm" } else { "ipi" };
    let qemu = ["--engine", "qemu-kvm", "--pv-backend", kick];
    let (mut ours, mut theirs) = (vec![], find_qemu().map(|_| vec![]).map_err(|error| error.to_string()));
    for _ in 0..STARTS {
        ours.push(time_of_start(&[])?);
        theirs = theirs.and_then(|mut times: Vec<f64>| {
            times.push(time_of_start(&qemu)?);
            Ok(times)
        });
    }
    let beside = |theirs: Vec<f64>| format!(" {}{}", time_ns(median(&theirs)), in_brackets(&ours, &theirs));
    let theirs = theirs.map_or_else(|reason| format!(": {reason}"), beside);
    Ok(format!("{}; QEMU{theirs}", time_ns(median(&ours))))
}

/// The ratios of pairs: their middle with its interval.
fn in_brackets(above: &[f64], below: &[f64]) -> String {
    let ratios: Vec<f64> = above.iter().zip(below).map(|(above, below)| above / below).collect();
    let told = |ratio: Estimate| format!(" [{}]", ratio.told(significant, significant));
    Estimate::of_positive(&ratios).map(told).unwrap_or_default()
}

/// Nanoseconds that a command's run took to its first acquisition, by its own record.
fn time_of_start(arguments: &[&str]) -> Result<f64, String> {
    let myself =
        std::env::current_exe().map_err(|error| format!("this program is not to be found: {error}"))?;
    let mut command = Command::new(myself);
    command.args(["run", "--format", "json", "--no-ideal", "--vcpus", VCPUS, "--sched", "host"]);
    command
        .args(["--lock", "qspinlock", "--pv", "on", "--warmup", "1ms", "--duration", "1ms"])
        .args(arguments);
    let output = command.output().map_err(|error| format!("this program cannot be started: {error}"))?;
    let record: Record = serde_json::from_slice(&output.stdout).map_err(|_| {
        let said = String::from_utf8_lossy(&output.stderr);
        let reason = said.lines().next().unwrap_or("it ends without a record");
        reason.trim_start_matches("haltkick: ").to_owned()
    })?;
    Ok(record.amount("start_up_ns"))
}
