//! Which CPUs share a core, and which a package.

/// Position of a CPU in the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CoreOfCpu {
    /// The package, which is a socket.
    pub(crate) package: u32,
    /// The core, numbered within its package.
    pub(crate) core: u32,
}

/// The place of each of `cpus`.
pub(crate) fn places(cpus: &[u32]) -> Result<Vec<(u32, CoreOfCpu)>, String> {
    cpus.iter().map(|&cpu| Ok((cpu, place(cpu)?))).collect()
}

fn place(cpu: u32) -> Result<CoreOfCpu, String> {
    let read = |name: &str| {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/{name}");
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
        text.trim().parse().map_err(|_| format!("{path}: `{}` is no number", text.trim()))
    };
    Ok(CoreOfCpu { package: read("physical_package_id")?, core: read("core_id")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_allowed_cpu_has_a_place() {
        let cpus = crate::host::cpulist::allowed().unwrap().0;
        match places(&cpus) {
            Ok(places) => assert_eq!(places.len(), cpus.len()),
            Err(reason) => assert!(reason.contains("/topology/"), "{reason}"),
        }
    }
}
