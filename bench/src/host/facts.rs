//! The host in full, for the manifest: every fact a value, or the reason why there is none.
//!
//! Names are `group.item`. Nothing here is needed to run; all of it is what a reviewer asks for afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::{env, fs};

use haltkick_vmm::Image;
use serde::{Deserialize, Serialize};

use crate::host::probe::{self, Answer};
use crate::host::{cpulist, identity};

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

impl From<Answer> for Fact {
    fn from(fact: Answer) -> Self {
        match fact {
            Ok(value) => Self { value: Some(value), why: None },
            Err(reason) => Self { value: None, why: Some(reason) },
        }
    }
}

type Facts = BTreeMap<String, Fact>;

/// Facts that files tell: the text of a file, or of each where a `*` stands in its path; the value behind a word where a colon and that
/// word stand behind it.
const FILES: &[(&str, &str)] = &[
    ("cpu.bugs", "/proc/cpuinfo:bugs"),
    ("cpu.family", "/proc/cpuinfo:cpu family"),
    ("cpu.model", "/proc/cpuinfo:model name"),
    ("cpu.model_number", "/proc/cpuinfo:model"),
    ("cpu.stepping", "/proc/cpuinfo:stepping"),
    ("cpu.vendor", "/proc/cpuinfo:vendor_id"),
    ("cpu.vulnerabilities", "/sys/devices/system/cpu/vulnerabilities/*"),
    ("frequency.boost", "/sys/devices/system/cpu/cpufreq/boost"),
    ("frequency.driver", "/sys/devices/system/cpu/cpu*/cpufreq/scaling_driver"),
    (
        "frequency.energy_performance_preference",
        "/sys/devices/system/cpu/cpu*/cpufreq/energy_performance_preference",
    ),
    ("frequency.governor", "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"),
    ("frequency.max_khz", "/sys/devices/system/cpu/cpu*/cpufreq/scaling_max_freq"),
    ("frequency.min_khz", "/sys/devices/system/cpu/cpu*/cpufreq/scaling_min_freq"),
    ("frequency.no_turbo", "/sys/devices/system/cpu/intel_pstate/no_turbo"),
    ("idle.driver", "/sys/devices/system/cpu/cpuidle/current_driver"),
    ("idle.governor", "/sys/devices/system/cpu/cpuidle/current_governor"),
    ("idle.haltpoll_guest", "/sys/module/haltpoll/parameters/*"),
    ("idle.states", "/sys/devices/system/cpu/cpu0/cpuidle/state*/name"),
    ("idle.states_disabled", "/sys/devices/system/cpu/cpu0/cpuidle/state*/disable"),
    ("kernel.command_line", "/proc/cmdline"),
    ("kernel.os_release", "/etc/os-release:PRETTY_NAME"),
    ("kernel.release", "/proc/sys/kernel/osrelease"),
    ("kernel.tainted", "/proc/sys/kernel/tainted"),
    ("kernel.version", "/proc/version"),
    ("limits.capabilities", "/proc/self/status:CapEff"),
    ("limits.perf_event_paranoid", "/proc/sys/kernel/perf_event_paranoid"),
    ("limits.rlimits", "/proc/self/limits"),
    ("limits.seccomp", "/proc/self/status:Seccomp"),
    ("memory.available", "/proc/meminfo:MemAvailable"),
    ("memory.ksm", "/sys/kernel/mm/ksm/run"),
    ("memory.numa_balancing", "/proc/sys/kernel/numa_balancing"),
    ("memory.swap_total", "/proc/meminfo:SwapTotal"),
    ("memory.total", "/proc/meminfo:MemTotal"),
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
    ("topology.core_ids", "/sys/devices/system/cpu/cpu*/topology/core_id"),
    ("topology.isolated", "/sys/devices/system/cpu/isolated"),
    ("topology.nohz_full", "/sys/devices/system/cpu/nohz_full"),
    ("topology.numa_distances", "/sys/devices/system/node/node*/distance"),
    ("topology.numa_nodes", "/sys/devices/system/node/online"),
    ("topology.offline", "/sys/devices/system/cpu/offline"),
    ("topology.online", "/sys/devices/system/cpu/online"),
    ("topology.package_ids", "/sys/devices/system/cpu/cpu*/topology/physical_package_id"),
    ("topology.siblings", "/sys/devices/system/cpu/cpu*/topology/thread_siblings_list"),
    ("topology.smt_active", "/sys/devices/system/cpu/smt/active"),
];
/// Facts that change from moment to moment.
const NOISE: &[(&str, &str)] = &[
    ("loadavg", "/proc/loadavg"),
    ("on_battery", "/sys/class/power_supply/*/online"),
    ("psi_cpu", "/proc/pressure/cpu"),
    ("thermal_zones_millicelsius", "/sys/class/thermal/thermal_zone*/temp"),
    ("throttle_counts", "/sys/devices/system/cpu/cpu*/thermal_throttle/core_throttle_count"),
];

/// All facts. `guest` is the image that is run, with the lock objects that are linked behind it.
pub(crate) fn all(guest: &Image) -> Facts {
    let mut all = of_tool(guest);
    all.extend(of_files(FILES));
    all.extend(named(others()));
    for module in probe::kvm_modules() {
        let parameters = told(&format!("/sys/module/{module}/parameters/*"));
        all.insert(format!("kvm.parameters_{module}"), parameters.into());
    }
    for flag in ["constant_tsc", "nonstop_tsc", "tsc_known_freq"] {
        all.insert(format!("time.{flag}"), cpu_flag(flag).into());
    }
    all.extend(noise().into_iter().map(|(name, fact)| (format!("noise.{name}"), fact)));
    all
}

/// Returns facts that change from moment to moment: taken before and after an experiment.
pub(crate) fn noise() -> Facts {
    let mut noise = of_files(NOISE);
    noise.extend(named([
        ("stat_cpu_total", stat_line("cpu ")),
        ("context_switches", stat_line("ctxt ")),
        ("running_vms", running_vms()),
    ]));
    noise
}

fn of_files(files: &[(&'static str, &str)]) -> Facts {
    named(files.iter().map(|(name, source)| (*name, told(source))))
}

fn named(answers: impl IntoIterator<Item = (&'static str, Answer)>) -> Facts {
    answers.into_iter().map(|(name, answer)| (name.to_owned(), answer.into())).collect()
}

/// Facts that take more than a look into a file.
fn others() -> [(&'static str, Answer); 15] {
    [
        ("kernel.config_sha256", hash_file(Path::new("/proc/config.gz"))),
        ("kernel.livepatches", directory_names("/sys/kernel/livepatch")),
        ("cpu.microcode", distinct_fields("microcode")),
        ("cpu.flags_sha256", probe::field("/proc/cpuinfo", "flags").map(probe::hash)),
        ("cpu.caches", caches()),
        ("cpu.hypervisor_bit", cpu_flag("hypervisor")),
        ("topology.allowed", cpulist::allowed().map(|it| it.to_string()).map_err(|failure| failure.message)),
        ("topology.cgroup_cpuset", cgroup("cpuset.cpus.effective")),
        ("frequency.now_mhz", distinct_fields("cpu MHz")),
        ("kvm.device", fs::metadata("/dev/kvm").map(|_| "/dev/kvm".into()).map_err(|it| it.to_string())),
        ("kvm.module", identity::kvm_module()),
        ("scheduler.policy_and_nice", own_policy()),
        ("scheduler.cgroup_cpu_max", cpu_quota()),
        ("scheduler.cgroup_cpu_weight", cgroup("cpu.weight")),
        ("limits.container", container()),
    ]
}

fn cpu_flag(flag: &str) -> Answer {
    probe::has_cpu_flag(flag).map(|has| has.to_string())
}

/// Facts of this program and of `guest`, the image that is run, alone.
pub(crate) fn of_tool(guest: &Image) -> Facts {
    let own_file = env::current_exe().map_err(|error| error.to_string());
    named([
        ("tool.version", Ok(env!("CARGO_PKG_VERSION").into())),
        ("tool.git_commit", build_time(option_env!("HALTKICK_GIT_COMMIT"))),
        ("tool.rustc", build_time(option_env!("HALTKICK_RUSTC"))),
        ("tool.profile", Ok(if cfg!(debug_assertions) { "debug" } else { "release" }.into())),
        ("tool.lock_file_sha256", Ok(probe::hash(include_bytes!("../../../Cargo.lock")))),
        ("tool.vmm_sha256", own_file.and_then(|file| hash_file(&file))),
        ("tool.guest_sha256", Ok(probe::hash(guest.elf()))),
    ])
}

fn build_time(value: Option<&str>) -> Answer {
    value.map(String::from).ok_or_else(|| "not known when this program was built".into())
}

fn stat_line(start: &str) -> Answer {
    let text = probe::text("/proc/stat")?;
    let line = text.lines().find(|line| line.starts_with(start));
    line.map(String::from).ok_or_else(|| format!("/proc/stat: no line '{}'", start.trim()))
}

/// Number of open virtual machines, as debugfs shows them.
fn running_vms() -> Answer {
    let directory = "/sys/kernel/debug/kvm";
    let names = directory_names(directory)?;
    Ok(names.split_ascii_whitespace().filter(|name| name.contains('-')).count().to_string())
}

/// The answer of a row of [`FILES`]: `NAME=value` for each of several files. A `*` stands for a number, or for a whole name.
fn told(source: &str) -> Answer {
    if let Some((path, word)) = source.split_once(':') {
        return probe::field(path, word);
    }
    let Some((start, file)) = source.split_once('*') else { return probe::text(source) };
    let (directory, prefix) = start.rsplit_once('/').expect("rows have whole paths");
    let is_numbered = |name: &str| name.strip_prefix(prefix).is_some_and(|rest| rest.parse::<u32>().is_ok());
    let mut names = probe::names(directory);
    names.retain(|name| prefix.is_empty() || is_numbered(name));
    let text = |name: &String| probe::text(format!("{directory}/{name}{file}"));
    let value = |name: &String| Some(format!("{name}={}", text(name).ok()?.replace('\n', " ")));
    let values: Vec<String> = names.iter().filter_map(value).collect();
    match (values.is_empty(), names.first()) {
        (false, _) => Ok(values.join("; ")),
        (true, Some(first)) => text(first),
        (true, None) => Err(format!("{directory}: nothing there")),
    }
}

/// The different values of a field over all CPUs.
fn distinct_fields(name: &str) -> Answer {
    let text = probe::text("/proc/cpuinfo")?;
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    let values: BTreeSet<&str> =
        lines.filter(|(key, _)| key.trim() == name).map(|(_, value)| value.trim()).collect();
    if values.is_empty() {
        return Err(format!("/proc/cpuinfo: no line '{name}'"));
    }
    Ok(values.into_iter().collect::<Vec<_>>().join(", "))
}

fn caches() -> Answer {
    let directory = "/sys/devices/system/cpu/cpu0/cache";
    let cache = |name: String| {
        let read = |file: &str| probe::text(format!("{directory}/{name}/{file}")).ok();
        let [level, kind, size, cpus] = ["level", "type", "size", "shared_cpu_list"].map(read);
        Some(format!("L{} {} {} shared by {}", level?, kind?, size?, cpus?))
    };
    let names = probe::names(directory).into_iter().filter(|name| name.starts_with("index"));
    let caches: Vec<String> = names.filter_map(cache).collect();
    if caches.is_empty() { Err(format!("{directory}: nothing there")) } else { Ok(caches.join("; ")) }
}

/// The quota of CPU time of this process's control groups and its period, in microseconds, or `max`.
pub(crate) fn cpu_quota() -> Answer {
    let quota = haltkick_vmm::inherited_quota().map_err(|why| why.to_string())?;
    Ok(quota.map_or("max".into(), |quota| format!("{} {}", quota.run.as_micros(), quota.period.as_micros())))
}

fn cgroup(file: &str) -> Answer {
    let membership = probe::text("/proc/self/cgroup")?;
    let path = membership.lines().find_map(|line| line.strip_prefix("0::"));
    let path = path.ok_or_else(|| "/proc/self/cgroup: no cgroup version 2".to_owned())?;
    probe::text(format!("/sys/fs/cgroup{path}/{file}"))
}

/// Policy and nice value, which are fields 41 and 19.
fn own_policy() -> Answer {
    let stat = probe::text("/proc/self/stat")?;
    match [41, 19].map(|number| probe::stat_field(&stat, number)) {
        [Some(policy), Some(nice)] => Ok(format!("policy {policy}, nice {nice}")),
        _ => Err("/proc/self/stat: too few fields".into()),
    }
}

fn container() -> Answer {
    for (path, kind) in [("/run/.containerenv", "podman"), ("/.dockerenv", "docker")] {
        if Path::new(path).exists() {
            return Ok(kind.into());
        }
    }
    Ok(env::var("container").unwrap_or_else(|_| "none seen".into()))
}

fn directory_names(directory: &str) -> Answer {
    fs::read_dir(directory).map_err(|error| format!("{directory}: {error}"))?;
    Ok(probe::names(directory).join(" "))
}

fn hash_file(path: &Path) -> Answer {
    fs::read(path).map(|bytes| probe::hash(&bytes)).map_err(|error| format!("{}: {error}", path.display()))
}
