//! Which CPUs share a core, and which a package; whether the kernel moves memory among nodes.

use std::collections::BTreeMap;
use std::path::Path;

use super::probe::{self, Answer};
use crate::host::cpulist::CpuList;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CoreOfCpu {
    /// The package, which is a socket.
    pub(crate) package: u32,
    /// The first CPU of its core. The kernel numbers cores anew in each die, on some machines.
    pub(crate) core: u32,
}

/// CPUs of a machine whose packages are alike, and whose cores are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Places {
    pub(crate) cpus: Vec<(u32, CoreOfCpu)>,
    pub(crate) packages: u32,
    pub(crate) cores_per_package: u32,
    pub(crate) threads_per_core: u32,
}

impl Places {
    /// The places of `cpus`, of which there is at least one.
    ///
    /// # Errors
    /// What the kernel does not tell, or how they differ.
    pub(crate) fn of(cpus: &[u32]) -> Result<Self, String> {
        Self::below(Path::new("/sys/devices"), cpus)
    }

    fn below(devices: &Path, cpus: &[u32]) -> Result<Self, String> {
        let places = cpus.iter().map(|&cpu| Ok((cpu, place(devices, cpu)?)));
        let cpus_with_places = places.collect::<Result<Vec<_>, String>>()?;
        one_kind(devices, cpus)?;
        // The first CPU of each core and of each package, and how many threads or cores that has.
        let mut cores: BTreeMap<u32, (u32, u32)> = BTreeMap::new();
        let mut packages: BTreeMap<u32, (u32, u32)> = BTreeMap::new();
        for (cpu, place) in &cpus_with_places {
            if !cores.contains_key(&place.core) {
                packages.entry(place.package).or_insert((*cpu, 0)).1 += 1;
            }
            cores.entry(place.core).or_insert((*cpu, 0)).1 += 1;
        }
        let each = |whole: &str, parts: &str, counts: &BTreeMap<u32, (u32, u32)>| -> Result<u32, String> {
            let (cpu, has) = counts.values().next().ok_or("no CPU")?;
            match counts.values().find(|(_, other_has)| other_has != has) {
                None => Ok(*has),
                Some((other, other_has)) => Err(format!(
                    "these CPUs are not all alike, so they cannot be described: the {whole} of CPU {cpu} has {has} {parts}, and the {whole} of CPU \
                     {other} has {other_has}; choose CPUs that are alike, as by taskset"
                )),
            }
        };
        let threads_per_core = each("core", "threads", &cores)?;
        let cores_per_package = each("package", "cores", &packages)?;
        let packages = packages.len() as u32;
        Ok(Self { cpus: cpus_with_places, packages, cores_per_package, threads_per_core })
    }
}

fn place(devices: &Path, cpu: u32) -> Result<CoreOfCpu, String> {
    let topology = devices.join(format!("system/cpu/cpu{cpu}/topology"));
    let path = topology.join("physical_package_id");
    let text = probe::text(&path)?;
    let package = text.parse().map_err(|_| format!("{}: `{text}` is no number", path.display()))?;
    // Its older name, which all kernels have.
    let siblings = CpuList::read(&topology.join("thread_siblings_list"))?;
    Ok(CoreOfCpu { package, core: siblings.0[0] })
}

/// Refuses CPUs of several kinds: the kernel has a device for the counters of each kind, or gives each CPU a capacity.
fn one_kind(devices: &Path, cpus: &[u32]) -> Result<(), String> {
    let atoms = CpuList::read(&devices.join("cpu_atom/cpus"));
    let kind = |cpu: u32| {
        let is_atom = atoms.as_ref().is_ok_and(|list| list.0.contains(&cpu));
        (is_atom, probe::text(devices.join(format!("system/cpu/cpu{cpu}/cpu_capacity"))).ok())
    };
    match cpus.iter().find(|cpu| kind(**cpu) != kind(cpus[0])) {
        Some(other) => Err(format!(
            "these CPUs are of several kinds (hybrid), such as CPU {} and CPU {other}, so they cannot be described; choose CPUs of one kind, as by \
             taskset",
            cpus[0]
        )),
        None => Ok(()),
    }
}

/// How to switch off the kernel's balancing of memory among nodes.
pub(crate) const STOP_BALANCING: &str = "sudo sysctl kernel.numa_balancing=0";

/// Whether the kernel moves memory among nodes by itself: on a host with one node it has nothing to move.
pub(crate) fn is_balanced() -> Answer<bool> {
    let mode = probe::text("/proc/sys/kernel/numa_balancing")?;
    Ok(mode != "0" && haltkick_vmm::nodes_with_memory().len() > 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::synthetic::Scratch;

    #[test]
    fn only_machines_of_like_packages_and_cores_are_described() {
        // Package and siblings of each CPU; the atoms among them; packages, their cores and the threads of those, or what is wrong.
        for (cpus, atoms, expected) in [
            ("0:0 0:1 0:2 0:3", "", "1 4 1"),
            ("0:0,2 0:1,3 0:0,2 0:1,3", "", "1 2 2"),
            ("0:0 3:1", "", "2 1 1"),
            // One thread of each core.
            ("0:0,8 0:1,9", "", "1 2 1"),
            ("0:0-1 0:0-1 0:2", "", "the core of CPU 0 has 2 threads, and the core of CPU 2 has 1"),
            ("0:0 0:1 1:2", "", "the package of CPU 2 has 1"),
            // Two kinds of like cores, and one of the two.
            ("0:0 0:1 0:2 0:3", "2-3", "hybrid"),
            ("0:0 0:1", "2-3", "1 2 1"),
        ] {
            let root = Scratch::new("topology");
            let places: Vec<_> = cpus.split(' ').filter_map(|cpu| cpu.split_once(':')).collect();
            for (cpu, (package, siblings)) in places.iter().enumerate() {
                let at = format!("system/cpu/cpu{cpu}/topology");
                root.put(format!("{at}/physical_package_id"), format!("{package}\n"));
                root.put(format!("{at}/thread_siblings_list"), format!("{siblings}\n"));
            }
            if !atoms.is_empty() {
                root.put("cpu_atom/cpus", format!("{atoms}\n"));
            }
            let found = Places::below(root.path(), &(0..places.len() as u32).collect::<Vec<_>>());
            let counts =
                |it: Places| format!("{} {} {}", it.packages, it.cores_per_package, it.threads_per_core);
            let told = found.map_or_else(|why| why, counts);
            assert!(told.contains(expected), "{cpus}: {told}");
        }
    }
}
