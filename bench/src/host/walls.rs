//! The walls around a process that will run guests, and what it says where this kernel lacks one.

use haltkick_vmm::{Known, Needs, RunError};

use crate::text::output;

/// Gives up all but `needs`, as [`haltkick_vmm::confine_process`] has it, and says which wall the kernel has not.
///
/// # Errors
/// What the kernel refuses.
pub(crate) fn confine(needs: &Needs) -> Result<(), RunError> {
    haltkick_vmm::confine_process(needs)?;
    // Walls that are left out on purpose need no word.
    if haltkick_vmm::is_sandboxed() && !needs.programs {
        let walls = haltkick_vmm::walls();
        tell("no filter of system calls", walls.calls);
        tell("no wall around files", walls.files);
    }
    Ok(())
}

fn tell<T>(what: &str, wall: Known<T>) {
    if let Err(why) = wall {
        output::talk(&format!("haltkick: {what}: {why}"));
    }
}
