//! The host in full, for the manifest: every fact a value, or the reason why there is none.
//!
//! Names are `group.item`. Nothing here is needed to run; all of it is what a reviewer asks for afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use haltkick_vmm::Image;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::host::cpulist;
use crate::host::identity;
use crate::host::probe;

/// One fact about the host.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Fact {
    /// Its value; null if the host does not tell.
    pub(crate) value: Option<String>,
    /// Why the value is null.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) why: Option<String>,
}

impl From<probe::Answer> for Fact {
    fn from(fact: probe::Answer) -> Self {
        match fact {
            Ok(value) => Self { value: Some(value), why: None },
            Err(reason) => Self { value: None, why: Some(reason) },
        }
    }
}

type Facts = BTreeMap<String, Fact>;

/// All facts. `guest` is the image that is run, with the lock objects that are linked behind it.
pub(crate) fn all(guest: &Image) -> Facts {
    let mut facts = Facts::new();
    kernel(&mut facts);
    cpu(&mut facts);
    topology(&mut facts);
    frequency(&mut facts);
    idle(&mut facts);
    kvm(&mut facts);
    scheduler(&mut facts);
    memory(&mut facts);
    time(&mut facts);
    limits(&mut facts);
    tool(&mut facts, guest);
    facts.extend(noise().into_iter().map(|(name, fact)| (format!("noise.{name}"), fact)));
    facts
}

/// Facts of this program and of `guest`, the image that is run, alone.
pub(crate) fn of_tool(guest: &Image) -> Facts {
    let mut facts = Facts::new();
    tool(&mut facts, guest);
    facts
}

/// Returns facts that change from moment to moment: taken before and after an experiment.
pub(crate) fn noise() -> Facts {
    let mut facts = Facts::new();
    put(&mut facts, "loadavg", probe::text("/proc/loadavg"));
    put(&mut facts, "psi_cpu", probe::text("/proc/pressure/cpu"));
    put(&mut facts, "stat_cpu_total", stat_line("cpu "));
    put(&mut facts, "context_switches", stat_line("ctxt "));
    put(&mut facts, "running_vms", running_vms());
    put(&mut facts, "thermal_zones_millicelsius", each("/sys/class/thermal", "thermal_zone", "temp"));
    put(&mut facts, "throttle_counts", each_cpu("thermal_throttle/core_throttle_count"));
    put(&mut facts, "on_battery", each("/sys/class/power_supply", "", "online"));
    facts
}

fn put(facts: &mut Facts, name: &str, fact: probe::Answer) {
    facts.insert(name.into(), fact.into());
}

fn kernel(facts: &mut Facts) {
    put(facts, "kernel.release", identity::kernel());
    put(facts, "kernel.version", probe::text("/proc/version"));
    put(facts, "kernel.command_line", probe::text("/proc/cmdline"));
    put(facts, "kernel.os_release", os_release());
    put(facts, "kernel.config_sha256", hash_file(Path::new("/proc/config.gz")));
    put(facts, "kernel.tainted", probe::text("/proc/sys/kernel/tainted"));
    put(facts, "kernel.livepatches", directory_names("/sys/kernel/livepatch"));
}

fn cpu(facts: &mut Facts) {
    for (name, field) in [
        ("vendor", "vendor_id"),
        ("family", "cpu family"),
        ("model_number", "model"),
        ("stepping", "stepping"),
        ("model", "model name"),
        ("bugs", "bugs"),
    ] {
        put(facts, &format!("cpu.{name}"), probe::field("/proc/cpuinfo", field));
    }
    put(facts, "cpu.microcode", distinct_fields("microcode"));
    put(
        facts,
        "cpu.flags_sha256",
        probe::field("/proc/cpuinfo", "flags").map(|flags| hash(flags.as_bytes())),
    );
    put(facts, "cpu.caches", caches());
    put(facts, "cpu.vulnerabilities", each("/sys/devices/system/cpu/vulnerabilities", "", ""));
    put(facts, "cpu.hypervisor_bit", probe::has_cpu_flag("hypervisor").map(|bit| bit.to_string()));
}

fn topology(facts: &mut Facts) {
    let cpu = |file: &str| probe::text(format!("/sys/devices/system/cpu/{file}"));
    put(facts, "topology.online", cpu("online"));
    put(facts, "topology.offline", cpu("offline"));
    put(facts, "topology.isolated", cpu("isolated"));
    put(facts, "topology.nohz_full", cpu("nohz_full"));
    put(facts, "topology.smt_active", cpu("smt/active"));
    put(facts, "topology.core_ids", each_cpu("topology/core_id"));
    put(facts, "topology.package_ids", each_cpu("topology/physical_package_id"));
    put(facts, "topology.siblings", each_cpu("topology/thread_siblings_list"));
    put(facts, "topology.numa_nodes", probe::text("/sys/devices/system/node/online"));
    put(facts, "topology.numa_distances", each("/sys/devices/system/node", "node", "distance"));
    put(
        facts,
        "topology.allowed",
        cpulist::allowed().map(|cpus| cpus.to_string()).map_err(|failure| failure.message),
    );
    put(facts, "topology.cgroup", probe::text("/proc/self/cgroup"));
    put(facts, "topology.cgroup_cpuset", cgroup("cpuset.cpus.effective"));
}

fn frequency(facts: &mut Facts) {
    for (name, file) in [
        ("driver", "cpufreq/scaling_driver"),
        ("governor", "cpufreq/scaling_governor"),
        ("min_khz", "cpufreq/scaling_min_freq"),
        ("max_khz", "cpufreq/scaling_max_freq"),
        ("energy_performance_preference", "cpufreq/energy_performance_preference"),
    ] {
        put(facts, &format!("frequency.{name}"), each_cpu(file));
    }
    put(facts, "frequency.no_turbo", probe::text("/sys/devices/system/cpu/intel_pstate/no_turbo"));
    put(facts, "frequency.boost", probe::text("/sys/devices/system/cpu/cpufreq/boost"));
    put(facts, "frequency.now_mhz", distinct_fields("cpu MHz"));
}

fn idle(facts: &mut Facts) {
    put(facts, "idle.driver", probe::text("/sys/devices/system/cpu/cpuidle/current_driver"));
    put(facts, "idle.governor", probe::text("/sys/devices/system/cpu/cpuidle/current_governor"));
    put(facts, "idle.states", each("/sys/devices/system/cpu/cpu0/cpuidle", "state", "name"));
    put(facts, "idle.states_disabled", each("/sys/devices/system/cpu/cpu0/cpuidle", "state", "disable"));
    put(facts, "idle.haltpoll_guest", module_parameters("haltpoll"));
}

fn kvm(facts: &mut Facts) {
    put(
        facts,
        "kvm.device",
        fs::metadata("/dev/kvm").map(|_| "/dev/kvm".into()).map_err(|error| error.to_string()),
    );
    put(facts, "kvm.module", identity::kvm_module());
    for module in probe::kvm_modules() {
        put(facts, &format!("kvm.parameters_{module}"), module_parameters(&module));
    }
}

fn scheduler(facts: &mut Facts) {
    put(facts, "scheduler.preemption_model", probe::text("/sys/kernel/debug/sched/preempt"));
    put(facts, "scheduler.base_slice_ns", probe::text("/sys/kernel/debug/sched/base_slice_ns"));
    put(facts, "scheduler.features", probe::text("/sys/kernel/debug/sched/features"));
    put(facts, "scheduler.autogroup", probe::text("/proc/sys/kernel/sched_autogroup_enabled"));
    put(facts, "scheduler.own_autogroup", probe::text("/proc/self/autogroup"));
    put(facts, "scheduler.rt_runtime_us", probe::text("/proc/sys/kernel/sched_rt_runtime_us"));
    put(facts, "scheduler.sched_ext", probe::text("/sys/kernel/sched_ext/state"));
    put(facts, "scheduler.policy_and_nice", own_policy());
    put(facts, "scheduler.cgroup_cpu_max", cpu_quota());
    put(facts, "scheduler.cgroup_cpu_weight", cgroup("cpu.weight"));
    put(facts, "scheduler.uclamp_min", probe::text("/proc/sys/kernel/sched_util_clamp_min"));
    put(facts, "scheduler.watchdog", probe::text("/proc/sys/kernel/watchdog"));
}

fn memory(facts: &mut Facts) {
    put(facts, "memory.transparent_hugepages", probe::text("/sys/kernel/mm/transparent_hugepage/enabled"));
    put(facts, "memory.ksm", probe::text("/sys/kernel/mm/ksm/run"));
    put(facts, "memory.numa_balancing", probe::text("/proc/sys/kernel/numa_balancing"));
    put(facts, "memory.total", probe::field("/proc/meminfo", "MemTotal"));
    put(facts, "memory.available", probe::field("/proc/meminfo", "MemAvailable"));
    put(facts, "memory.swap_total", probe::field("/proc/meminfo", "SwapTotal"));
}

fn time(facts: &mut Facts) {
    let clock = "/sys/devices/system/clocksource/clocksource0";
    put(facts, "time.clocksource", probe::text(format!("{clock}/current_clocksource")));
    put(facts, "time.clocksources", probe::text(format!("{clock}/available_clocksource")));
    for flag in ["constant_tsc", "nonstop_tsc", "tsc_known_freq"] {
        put(facts, &format!("time.{flag}"), probe::has_cpu_flag(flag).map(|has| has.to_string()));
    }
    put(facts, "time.uptime_s", probe::text("/proc/uptime"));
}

fn limits(facts: &mut Facts) {
    put(facts, "limits.perf_event_paranoid", probe::text("/proc/sys/kernel/perf_event_paranoid"));
    put(facts, "limits.rlimits", probe::text("/proc/self/limits"));
    put(facts, "limits.capabilities", probe::field("/proc/self/status", "CapEff"));
    put(facts, "limits.seccomp", probe::field("/proc/self/status", "Seccomp"));
    put(facts, "limits.container", container());
}

fn tool(facts: &mut Facts, guest: &Image) {
    put(facts, "tool.version", Ok(env!("CARGO_PKG_VERSION").into()));
    put(facts, "tool.git_commit", build_time(option_env!("HALTKICK_GIT_COMMIT")));
    put(facts, "tool.rustc", build_time(option_env!("HALTKICK_RUSTC")));
    put(facts, "tool.profile", Ok(if cfg!(debug_assertions) { "debug" } else { "release" }.into()));
    put(facts, "tool.lock_file_sha256", Ok(hash(include_bytes!("../../../Cargo.lock"))));
    put(
        facts,
        "tool.vmm_sha256",
        env::current_exe().map_err(|error| error.to_string()).and_then(|exe| hash_file(&exe)),
    );
    put(facts, "tool.guest_sha256", Ok(hash(guest.elf())));
}

fn build_time(value: Option<&str>) -> probe::Answer {
    value.map(String::from).ok_or_else(|| "not known when this program was built".into())
}

/// One line of `/proc/stat`.
fn stat_line(start: &str) -> probe::Answer {
    let text = probe::text("/proc/stat")?;
    let line = text.lines().find(|line| line.starts_with(start));
    line.map(String::from).ok_or_else(|| format!("/proc/stat: no line '{}'", start.trim()))
}

/// Number of open virtual machines, as debugfs shows them.
fn running_vms() -> probe::Answer {
    let directory = "/sys/kernel/debug/kvm";
    let names = directory_names(directory)?;
    Ok(names.split_ascii_whitespace().filter(|name| name.contains('-')).count().to_string())
}

/// `NAME=value` for the file of each CPU.
fn each_cpu(file: &str) -> probe::Answer {
    each("/sys/devices/system/cpu", "cpu", file)
}

/// `NAME=value` for `file` in each entry of `directory` called `prefix` and a number (or anything, without prefix).
fn each(directory: &str, prefix: &str, file: &str) -> probe::Answer {
    let path = |name: &str| -> PathBuf {
        let entry = Path::new(directory).join(name);
        if file.is_empty() { entry } else { entry.join(file) }
    };
    let is_numbered = |name: &str| name.strip_prefix(prefix).is_some_and(|rest| rest.parse::<u32>().is_ok());
    let names = probe::names(directory);
    let names: Vec<&String> = names.iter().filter(|name| prefix.is_empty() || is_numbered(name)).collect();
    let values: Vec<String> = names
        .iter()
        .filter_map(|name| Some(format!("{name}={}", probe::text(path(name)).ok()?.replace('\n', " "))))
        .collect();
    match (values.is_empty(), names.first()) {
        (false, _) => Ok(values.join("; ")),
        (true, Some(first)) => probe::text(path(first)),
        (true, None) => Err(format!("{directory}: nothing there")),
    }
}

/// The different values of a field over all CPUs.
fn distinct_fields(name: &str) -> probe::Answer {
    let text = probe::text("/proc/cpuinfo")?;
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    let values: BTreeSet<&str> =
        lines.filter(|(key, _)| key.trim() == name).map(|(_, value)| value.trim()).collect();
    if values.is_empty() {
        return Err(format!("/proc/cpuinfo: no line '{name}'"));
    }
    Ok(values.into_iter().collect::<Vec<_>>().join(", "))
}

fn caches() -> probe::Answer {
    let directory = Path::new("/sys/devices/system/cpu/cpu0/cache");
    let caches: Vec<String> = probe::names(directory)
        .into_iter()
        .filter(|name| name.starts_with("index"))
        .filter_map(|name| {
            let read = |file| probe::text(directory.join(&name).join(file)).ok();
            Some(format!(
                "L{} {} {} shared by {}",
                read("level")?,
                read("type")?,
                read("size")?,
                read("shared_cpu_list")?
            ))
        })
        .collect();
    if caches.is_empty() {
        Err(format!("{}: nothing there", directory.display()))
    } else {
        Ok(caches.join("; "))
    }
}

fn os_release() -> probe::Answer {
    let text = probe::text("/etc/os-release")?;
    let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.map(|name| name.trim_matches('"').into()).ok_or_else(|| "/etc/os-release: no PRETTY_NAME".into())
}

/// The quota of CPU time of this process's control groups and its period, in microseconds, or `max`.
pub(crate) fn cpu_quota() -> probe::Answer {
    let quota = haltkick_vmm::inherited_quota().map_err(|why| why.to_string())?;
    Ok(quota.map_or("max".into(), |quota| format!("{} {}", quota.run.as_micros(), quota.period.as_micros())))
}

/// A file of this process's cgroup (version 2).
fn cgroup(file: &str) -> probe::Answer {
    let membership = probe::text("/proc/self/cgroup")?;
    let path = membership.lines().find_map(|line| line.strip_prefix("0::"));
    let path = path.ok_or_else(|| "/proc/self/cgroup: no cgroup version 2".to_owned())?;
    probe::text(format!("/sys/fs/cgroup{path}/{file}"))
}

/// Policy and nice value from `/proc/self/stat`, whose second field may contain anything in brackets.
fn own_policy() -> probe::Answer {
    const NICE: usize = 16;
    const POLICY: usize = 38;
    let stat = probe::text("/proc/self/stat")?;
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_ascii_whitespace().collect();
    match (fields.get(POLICY), fields.get(NICE)) {
        (Some(policy), Some(nice)) => Ok(format!("policy {policy}, nice {nice}")),
        _ => Err("/proc/self/stat: too few fields".into()),
    }
}

fn container() -> probe::Answer {
    for (path, kind) in [("/run/.containerenv", "podman"), ("/.dockerenv", "docker")] {
        if Path::new(path).exists() {
            return Ok(kind.into());
        }
    }
    Ok(env::var("container").unwrap_or_else(|_| "none seen".into()))
}

fn module_parameters(module: &str) -> probe::Answer {
    each(&format!("/sys/module/{module}/parameters"), "", "")
}

fn directory_names(directory: &str) -> probe::Answer {
    fs::read_dir(directory).map_err(|error| format!("{directory}: {error}"))?;
    Ok(probe::names(directory).join(" "))
}

/// SHA-256, in hexadecimal digits.
pub(crate) fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn hash_file(path: &Path) -> probe::Answer {
    fs::read(path).map(|bytes| hash(&bytes)).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fact_is_either_a_value_or_a_reason() {
        for (name, fact) in all(&Image::embedded()) {
            assert!(fact.value.is_some() != fact.why.is_some(), "{name}: {fact:?}");
            assert_ne!(fact.why.as_deref(), Some(""), "{name} has an empty reason");
        }
    }

    #[test]
    fn what_every_linux_tells_is_there() {
        let facts = all(&Image::embedded());
        for name in
            ["kernel.release", "cpu.model", "topology.allowed", "tool.guest_sha256", "tool.lock_file_sha256"]
        {
            assert!(facts[name].value.is_some(), "{name}: {:?}", facts[name]);
        }
    }
}
