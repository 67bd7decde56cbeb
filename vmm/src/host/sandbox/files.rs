//! Landlock: which files a process may open, once it runs guests. Files that are open already stay usable.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, BitFlags, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, RulesetError,
    RulesetStatus, make_bitflags, path_beneath_rules,
};

use super::Needs;

/// The newest rights that are asked for; older kernels leave out what they do not know.
const WANTED: ABI = ABI::V10;

/// Which version of Landlock this kernel has.
///
/// # Errors
/// Why it has none, as the end of a sentence.
pub fn landlock_abi() -> Result<u32, String> {
    const CREATE_RULESET_VERSION: libc::c_ulong = 1;
    // SAFETY: asked for the version, the call takes no pointer.
    let abi = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0, CREATE_RULESET_VERSION)
    };
    u32::try_from(abi).map_err(|_| {
        let error = std::io::Error::last_os_error();
        let reason = match error.raw_os_error() {
            Some(libc::ENOSYS) => "this kernel has no Landlock",
            Some(libc::EOPNOTSUPP) => "Landlock is switched off at boot",
            _ => return format!("Landlock: {error}"),
        };
        reason.to_owned()
    })
}

/// From now on the calling thread, and all that it starts, open nothing but what `needs` names, what tells of this host, and
/// what this program is made of. The version of Landlock.
pub(super) fn wall_off(needs: &Needs) -> Result<u32, String> {
    let abi = landlock_abi()?;
    let status = restrict(needs).map_err(|error| format!("Landlock: {error}"))?;
    if status == RulesetStatus::NotEnforced { Err("Landlock enforces nothing here".into()) } else { Ok(abi) }
}

fn restrict(needs: &Needs) -> Result<RulesetStatus, RulesetError> {
    let read = make_bitflags!(AccessFs::{ReadFile | ReadDir});
    let device = make_bitflags!(AccessFs::{ReadFile | WriteFile | IoctlDev});
    let write =
        read | make_bitflags!(AccessFs::{WriteFile | Truncate | MakeReg | MakeDir | RemoveFile | RemoveDir});
    // A directory that is removed is removed from its parent; only empty ones can be.
    let parents = needs.writes.iter().filter_map(|path| path.parent());
    let parents = parents.map(|parent| if parent == Path::new("") { Path::new(".") } else { parent });
    Ok(Ruleset::default()
        .handle_access(AccessFs::from_all(WANTED))?
        .create()?
        // What is known of this host and of this process.
        .add_rules(path_beneath_rules(["/proc", "/sys", "/etc/os-release"], read))?
        .add_rules(path_beneath_rules(["/dev/kvm"], device))?
        // The names in a panic's backtrace.
        .add_rules(path_beneath_rules(mapped_files(), BitFlags::from(AccessFs::ReadFile)))?
        .add_rules(path_beneath_rules(&needs.reads, read))?
        .add_rules(path_beneath_rules(&needs.writes, write))?
        .add_rules(path_beneath_rules(parents, BitFlags::from(AccessFs::RemoveDir)))?
        .restrict_self()?
        .ruleset)
}

/// This program and its libraries.
fn mapped_files() -> Vec<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let path = |line: &str| Some(PathBuf::from(&line[line.find('/')?..]));
    let mut files: Vec<PathBuf> = maps.lines().filter_map(path).collect();
    files.dedup();
    files
}
