//! Before guests run: the image, with the lock objects that are linked behind it, what is said of pCPUs and their memory, and the walls
//! around the process.

use std::path::Path;

use haltkick_vmm::{Engine, FILE_PREFIX, Image, Needs, Run};

use crate::cli::ImageArgs;
use crate::host::cpulist::CpuList;
use crate::host::{cpu_choice, topology};
use crate::text::exit::{Failure, Result};
use crate::text::output;

/// The image to run: a file, or the one that was built with this program; behind it the objects that `locks` name.
pub(crate) fn load<'a>(guest: Option<&Path>, locks: impl IntoIterator<Item = &'a str>) -> Result<Image> {
    let image = guest.map_or_else(|| Ok(Image::embedded()), Image::from_file)?;
    Ok(image.with_locks(locks)?)
}

/// Refuses to run the code of a file in this process, unless it is trusted to do what its user may do.
pub(crate) fn check_trust<'a>(
    from: &ImageArgs,
    image: &Image,
    mut engines: impl Iterator<Item = &'a Engine>,
) -> Result<()> {
    let file = from.guest.as_ref().map(|path| path.display().to_string());
    let object = || image.locks.iter().find_map(|lock| lock.name.strip_prefix(FILE_PREFIX).map(String::from));
    let is_refused = |_: &String| !from.trust_image && engines.any(|engine| *engine == Engine::Threads);
    match file.or_else(object).filter(is_refused) {
        None => Ok(()),
        Some(file) => Err(Failure::usage(format!(
            "--engine threads runs the code of {file} in this process, with all your rights: use --engine kvm, or --trust-image if \
             you know where it is from"
        ))),
    }
}

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

/// Gives up all but `needs`, as [`haltkick_vmm::confine_process`] has it, and says which wall the kernel has not.
pub(crate) fn confine(needs: &Needs) -> Result<()> {
    haltkick_vmm::confine_process(needs)?;
    // Walls that are left out on purpose need no word.
    if haltkick_vmm::is_sandboxed() && !needs.programs {
        let walls = haltkick_vmm::walls();
        for (what, why) in
            [("no filter of system calls", walls.calls.err()), ("no wall around files", walls.files.err())]
        {
            why.iter().for_each(|why| output::talk(&format!("haltkick: {what}: {why}")));
        }
    }
    Ok(())
}
