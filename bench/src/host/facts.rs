//! The host in full, for the manifest: every fact a value, or the reason why there is none.
//!
//! Names are `group.item`. Nothing here is needed to run; all of it is what a reviewer asks for afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{env, fs};

use haltkick_vmm::Image;
use serde::{Deserialize, Serialize};

use crate::host::{cpulist, identity, probe};

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

const TEXTS: &[(&str, &str)] = &[
    ("frequency.boost", "/sys/devices/system/cpu/cpufreq/boost"),
    ("frequency.no_turbo", "/sys/devices/system/cpu/intel_pstate/no_turbo"),
    ("idle.driver", "/sys/devices/system/cpu/cpuidle/current_driver"),
    ("idle.governor", "/sys/devices/system/cpu/cpuidle/current_governor"),
    ("kernel.command_line", "/proc/cmdline"),
    ("kernel.tainted", "/proc/sys/kernel/tainted"),
    ("kernel.version", "/proc/version"),
    ("limits.perf_event_paranoid", "/proc/sys/kernel/perf_event_paranoid"),
    ("limits.rlimits", "/proc/self/limits"),
    ("memory.ksm", "/sys/kernel/mm/ksm/run"),
    ("memory.numa_balancing", "/proc/sys/kernel/numa_balancing"),
    ("memory.transparent_hugepages", "/sys/kernel/mm/transparent_hugepage/enabled"),
    ("scheduler.autogroup", "/proc/sys/kernel/sched_autogroup_enabled"),
    ("scheduler.base_slice_ns", "/sys/kernel/debug/sched/base_slice_ns"),
    ("scheduler.features", "/sys/kernel/debug/sched/features"),
    ("scheduler.own_autogroup", "/proc/self/autogroup"),
    ("scheduler.preemption_model", "/sys/kernel/debug/sched/preempt"),
    ("scheduler.rt_runtime_us", "/proc/sys/kernel/sched_rt_runtime_us"),
    ("scheduler.sched_ext", "/sys/kernel/sched_ext/state"),
    ("scheduler.uclamp_min", "/proc/sys/kernel/sched_util_clamp_min"),
    ("scheduler.watchdog", "/proc/sys/kernel/watchdog"),
    ("time.clocksource", "/sys/devices/system/clocksource/clocksource0/current_clocksource"),
    ("time.clocksources", "/sys/devices/system/clocksource/clocksource0/available_clocksource"),
    ("time.uptime_s", "/proc/uptime"),
    ("topology.cgroup", "/proc/self/cgroup"),
    ("topology.isolated", "/sys/devices/system/cpu/isolated"),
    ("topology.nohz_full", "/sys/devices/system/cpu/nohz_full"),
    ("topology.numa_nodes", "/sys/devices/system/node/online"),
    ("topology.offline", "/sys/devices/system/cpu/offline"),
    ("topology.online", "/sys/devices/system/cpu/online"),
    ("topology.smt_active", "/sys/devices/system/cpu/smt/active"),
];
/// Facts that stand in a line of a file, behind a word.
const FIELDS: &[(&str, &str, &str)] = &[
    ("cpu.bugs", "/proc/cpuinfo", "bugs"),
    ("cpu.family", "/proc/cpuinfo", "cpu family"),
    ("cpu.model", "/proc/cpuinfo", "model name"),
    ("cpu.model_number", "/proc/cpuinfo", "model"),
    ("cpu.stepping", "/proc/cpuinfo", "stepping"),
    ("cpu.vendor", "/proc/cpuinfo", "vendor_id"),
    ("limits.capabilities", "/proc/self/status", "CapEff"),
    ("limits.seccomp", "/proc/self/status", "Seccomp"),
    ("memory.available", "/proc/meminfo", "MemAvailable"),
    ("memory.swap_total", "/proc/meminfo", "SwapTotal"),
    ("memory.total", "/proc/meminfo", "MemTotal"),
];
/// Facts that each CPU has a file of.
const OF_EACH_CPU: &[(&str, &str)] = &[
    ("frequency.driver", "cpufreq/scaling_driver"),
    ("frequency.energy_performance_preference", "cpufreq/energy_performance_preference"),
    ("frequency.governor", "cpufreq/scaling_governor"),
    ("frequency.max_khz", "cpufreq/scaling_max_freq"),
    ("frequency.min_khz", "cpufreq/scaling_min_freq"),
    ("topology.core_ids", "topology/core_id"),
    ("topology.package_ids", "topology/physical_package_id"),
    ("topology.siblings", "topology/thread_siblings_list"),
];

/// All facts. `guest` is the image that is run, with the lock objects that are linked behind it.
pub(crate) fn all(guest: &Image) -> Facts {
    let mut facts = of_tool(guest);
    TEXTS.iter().for_each(|(name, path)| put(&mut facts, name, probe::text(path)));
    FIELDS.iter().for_each(|(name, path, field)| put(&mut facts, name, probe::field(path, field)));
    OF_EACH_CPU.iter().for_each(|(name, file)| put(&mut facts, name, each_cpu(file)));
    others(&mut facts);
    facts.extend(noise().into_iter().map(|(name, fact)| (format!("noise.{name}"), fact)));
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

/// Facts that take more than a look into a file.
fn others(facts: &mut Facts) {
    put(facts, "kernel.release", identity::kernel());
    put(facts, "kernel.os_release", os_release());
    put(facts, "kernel.config_sha256", hash_file(Path::new("/proc/config.gz")));
    put(facts, "kernel.livepatches", directory_names("/sys/kernel/livepatch"));
    put(facts, "cpu.microcode", distinct_fields("microcode"));
    put(facts, "cpu.flags_sha256", probe::field("/proc/cpuinfo", "flags").map(probe::hash));
    put(facts, "cpu.caches", caches());
    put(facts, "cpu.vulnerabilities", each("/sys/devices/system/cpu/vulnerabilities", "", ""));
    put(facts, "cpu.hypervisor_bit", probe::has_cpu_flag("hypervisor").map(|bit| bit.to_string()));
    put(facts, "topology.numa_distances", each("/sys/devices/system/node", "node", "distance"));
    put(
        facts,
        "topology.allowed",
        cpulist::allowed().map(|cpus| cpus.to_string()).map_err(|failure| failure.message),
    );
    put(facts, "topology.cgroup_cpuset", cgroup("cpuset.cpus.effective"));
    put(facts, "frequency.now_mhz", distinct_fields("cpu MHz"));
    put(facts, "idle.states", each("/sys/devices/system/cpu/cpu0/cpuidle", "state", "name"));
    put(facts, "idle.states_disabled", each("/sys/devices/system/cpu/cpu0/cpuidle", "state", "disable"));
    put(facts, "idle.haltpoll_guest", module_parameters("haltpoll"));
    put(
        facts,
        "kvm.device",
        fs::metadata("/dev/kvm").map(|_| "/dev/kvm".into()).map_err(|error| error.to_string()),
    );
    put(facts, "kvm.module", identity::kvm_module());
    for module in probe::kvm_modules() {
        put(facts, &format!("kvm.parameters_{module}"), module_parameters(&module));
    }
    put(facts, "scheduler.policy_and_nice", own_policy());
    put(facts, "scheduler.cgroup_cpu_max", cpu_quota());
    put(facts, "scheduler.cgroup_cpu_weight", cgroup("cpu.weight"));
    for flag in ["constant_tsc", "nonstop_tsc", "tsc_known_freq"] {
        put(facts, &format!("time.{flag}"), probe::has_cpu_flag(flag).map(|has| has.to_string()));
    }
    put(facts, "limits.container", container());
}

/// Facts of this program and of `guest`, the image that is run, alone.
pub(crate) fn of_tool(guest: &Image) -> Facts {
    let mut all = Facts::new();
    let facts = &mut all;
    put(facts, "tool.version", Ok(env!("CARGO_PKG_VERSION").into()));
    put(facts, "tool.git_commit", build_time(option_env!("HALTKICK_GIT_COMMIT")));
    put(facts, "tool.rustc", build_time(option_env!("HALTKICK_RUSTC")));
    put(facts, "tool.profile", Ok(if cfg!(debug_assertions) { "debug" } else { "release" }.into()));
    put(facts, "tool.lock_file_sha256", Ok(probe::hash(include_bytes!("../../../Cargo.lock"))));
    put(
        facts,
        "tool.vmm_sha256",
        env::current_exe().map_err(|error| error.to_string()).and_then(|exe| hash_file(&exe)),
    );
    put(facts, "tool.guest_sha256", Ok(probe::hash(guest.elf())));
    all
}

fn build_time(value: Option<&str>) -> probe::Answer {
    value.map(String::from).ok_or_else(|| "not known when this program was built".into())
}

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

fn hash_file(path: &Path) -> probe::Answer {
    fs::read(path).map(|bytes| probe::hash(&bytes)).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_values_or_reasons_and_some_are_always_known() {
        let facts = all(&Image::embedded());
        for (name, fact) in &facts {
            assert!(fact.value.is_some() != fact.why.is_some(), "{name}: {fact:?}");
            assert_ne!(fact.why.as_deref(), Some(""), "{name} has an empty reason");
        }
        for name in
            ["kernel.release", "cpu.model", "topology.allowed", "tool.guest_sha256", "tool.lock_file_sha256"]
        {
            assert!(facts[name].value.is_some(), "{name}: {:?}", facts[name]);
        }
    }
}
