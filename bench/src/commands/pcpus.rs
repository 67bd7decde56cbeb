//! Messages about pCPUs and their memory before runs.

use haltkick_vmm::Run;

use crate::host::cpulist::CpuList;
use crate::host::{cpu_choice, topology};
use crate::text::output;

/// Says which of the CPUs that this process may use `runs` on this host leave out by default, and whether the kernel will move memory.
pub(crate) fn say_before<'a>(allowed: &CpuList, runs: impl Iterator<Item = &'a Run>) {
    let mut here = runs.filter(|run| run.engine.machine().is_none()).map(|run| &run.cpus).peekable();
    if here.peek().is_some() && topology::is_balanced() == Ok(true) {
        let stop = topology::STOP_BALANCING;
        output::talk(&format!(
            "numa_balancing is on: the kernel unmaps guest pages now and then, to move them ({stop})"
        ));
    }
    cpu_choice::left_out(allowed, here).iter().for_each(|line| output::talk(line));
}
