//! Messages about the pCPUs that the command takes by default.

use haltkick_vmm::Run;

use crate::host::cpu_choice;
use crate::host::cpulist::CpuList;
use crate::text::output;

/// Says which of the CPUs that this process may use are left out by default, if `runs` on this host leave them out.
pub(crate) fn say_what_is_left_out<'a>(allowed: &CpuList, runs: impl Iterator<Item = &'a Run>) {
    let here = runs.filter(|run| run.engine.machine().is_none()).map(|run| &run.cpus);
    cpu_choice::left_out(allowed, here).iter().for_each(|line| output::talk(line));
}
