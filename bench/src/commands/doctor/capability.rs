//! Capabilities of this host: KVM, its vendor module, the rings, the hints.

use std::fs::OpenOptions;
use std::io::ErrorKind;

use super::{Finding, Level, latencies};
use crate::host::{cpulist, identity, probe};
use crate::text::quantity::si;

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
    let level = if all && haltkick_vmm::is_sandboxed() { Level::Good } else { Level::Note };
    Finding::of_fact("sandbox", Ok(in_force), why, |_| (level, None))
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
    Finding::of_fact("KVM module", identity::kvm_module(), why, |module| match module {
        "kvm_intel" | "kvm_amd" => (Level::Good, None),
        _ => (Level::Note, None),
    })
}

fn pcpus() -> Finding {
    let allowed = cpulist::allowed().map(|cpus| cpus.to_string()).map_err(|failure| failure.message);
    Finding::of_fact("pCPUs allowed", allowed, "vCPUs share these; --cpus chooses among them", |_| {
        (Level::Good, None)
    })
}

/// Findings that only a guest can make.
fn measured() -> Vec<Finding> {
    let probe = haltkick_vmm::probe().map_err(|error| error.to_string());
    let rates = probe.clone().map(|probe| {
        format!(
            "{}, {} instructions/s (ring 3: {})",
            if probe.ring0_native { "native" } else { "interpreted" },
            si(probe.ring0_instructions_per_second),
            si(probe.ring3_instructions_per_second)
        )
    });
    let why =
        "where KVM interprets ring 0, guests run in ring 3, which the same image can; --ring auto finds out";
    let native = probe.as_ref().is_ok_and(|probe| probe.ring0_native);
    let ring =
        Finding::of_fact("ring 0", rates, why, |_| (if native { Level::Good } else { Level::Note }, None));
    let backends = probe.clone().map(|probe| {
        let [kvm, ipi] = [&probe.kick_by_hypercall, &probe.kick_by_interrupt];
        match (kvm, ipi) {
            (Ok(()), Ok(())) => "kvm, ipi, vmm".to_owned(),
            (Ok(()), Err(ipi)) => format!("kvm, vmm; not ipi: {ipi}"),
            (Err(kvm), Ok(())) => format!("ipi, vmm; not kvm: {kvm}"),
            (Err(kvm), Err(ipi)) => format!("vmm; not kvm: {kvm}; not ipi: {ipi}"),
        }
    });
    let why = "how vCPUs sleep and are woken: in the kernel (sched host, ring 0) or by the VMM; each was tried just now";
    let backends = Finding::of_fact("pv back ends", backends, why, |value| {
        (if value.starts_with("kvm") { Level::Good } else { Level::Note }, None)
    });
    let (start_up, wake_ups) = (latencies::start_up(&probe), latencies::wake_ups(&probe));
    let limits =
        probe.map(|probe| format!("{} ({} recommended by KVM)", probe.max_vcpus, probe.recommended_vcpus));
    let why = "beyond this KVM makes no more; what it recommends matters to production guests only";
    vec![
        ring,
        backends,
        start_up,
        wake_ups,
        Finding::of_fact("most vCPUs", limits, why, |_| (Level::Good, None)),
    ]
}

fn preempted_hint() -> Finding {
    let writes = identity::kvm_module().map(|module| match module.as_str() {
        "kvm_intel" | "kvm_amd" => "sched vmm: the VMM, exactly; sched host: KVM".to_owned(),
        _ => "sched vmm: the VMM, exactly; sched host: BPF, where it is allowed".to_owned(),
    });
    let why = "vcpu_is_preempted() reads it; each record says what wrote it, or why nothing did";
    Finding::of_fact("preempted flag", writes, why, |value| {
        (if value.ends_with("KVM") { Level::Good } else { Level::Note }, None)
    })
}
