//! Capabilities and files that a process gives up before it runs guests.
//!
//! Threads that run vCPUs have no capabilities. Of the rest of a privileged user's process, those stay permitted that are named to
//! [`keep`], and none of them is in force but for moments ([`with_kept`]). A guest that got hold of a thread of its own cannot take back
//! what that has given up; one that went on from there into the main thread would find what is permitted.
//!
//! Landlock says which files a process may open, once it runs guests. Files that are open already stay usable.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use landlock::{
    ABI, Access as _, AccessFs, BitFlags, PathBeneath, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _,
    RulesetError, RulesetStatus, make_bitflags,
};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

use super::Needs;
use crate::host::error::{Known, RunError, system};
use crate::host::memory::mapped_code;

/// Gives up all capabilities of the calling thread but `kept`, and puts those out of force. In force stays only what reaches into
/// directories of other users, and only if one of `paths` is in such a place.
pub(super) fn keep(kept: CapabilitySet, paths: &[&Path]) -> io::Result<()> {
    let had = capabilities(None)?;
    if had.permitted.is_empty() {
        return Ok(());
    }
    let (permitted, none) = (had.permitted & kept, CapabilitySet::empty());
    let foreign = had.permitted & CapabilitySet::DAC_OVERRIDE;
    let sets = |extra: CapabilitySet, effective| CapabilitySets {
        effective,
        permitted: permitted | extra,
        inheritable: none,
    };
    // A trial shows which paths can be reached without it.
    set_capabilities(None, sets(foreign, none))?;
    let extra = if paths.iter().all(|path| is_within_reach(path)) { none } else { foreign };
    Ok(set_capabilities(None, sets(extra, extra))?)
}

/// Does `work` with those in force that were kept.
pub(crate) fn with_kept<T>(work: impl FnOnce() -> T) -> T {
    let less = capabilities(None).ok().filter(|sets| !sets.effective.contains(sets.permitted));
    if let Some(sets) = less {
        // If it fails, the work does, and says why.
        _ = set_capabilities(None, CapabilitySets { effective: sets.permitted, ..sets });
    }
    // A panic would be the end of the process.
    let done = work();
    if let Some(sets) = less {
        // Cannot fail: it restores the earlier sets, which have fewer capabilities in force.
        _ = set_capabilities(None, sets);
    }
    done
}

/// Whether this process may use the file, or write in the directory, with what is in force.
fn is_within_reach(path: &Path) -> bool {
    let wanted = if path.is_dir() { Access::WRITE_OK | Access::EXEC_OK } else { Access::READ_OK };
    accessat(CWD, path, wanted, AtFlags::EACCESS).is_ok()
}

/// The newest rights that are asked for; older kernels leave out what they do not know.
const WANTED: ABI = ABI::V10;

/// Which version of Landlock this kernel has.
///
/// # Errors
/// Why it has none, as the end of a sentence.
pub fn landlock_abi() -> Known<u32> {
    const CREATE_RULESET_VERSION: libc::c_ulong = 1;
    // SAFETY: asked for the version, the call takes no pointer.
    let abi = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0, CREATE_RULESET_VERSION)
    };
    u32::try_from(abi).map_err(|_| {
        let error = io::Error::last_os_error();
        let reason = match error.raw_os_error() {
            Some(libc::ENOSYS) => "this kernel has no Landlock",
            Some(libc::EOPNOTSUPP) => "Landlock is switched off at boot",
            _ => return format!("Landlock: {error}").into(),
        };
        reason.into()
    })
}

/// From now on the calling thread, and all that it starts, open nothing but what `needs` names, what tells of this host, and
/// what this program is made of. The version of Landlock, or why there is none.
///
/// # Errors
/// When something that is to stay within reach cannot be opened now.
pub(super) fn wall_off(needs: &Needs) -> Result<Known<u32>, RunError> {
    let abi = match landlock_abi() {
        Ok(abi) => abi,
        Err(why) => return Ok(Err(why)),
    };
    Ok(match restrict(gates(needs)?) {
        Ok(RulesetStatus::NotEnforced) => Err("Landlock enforces nothing here".into()),
        Ok(_) => Ok(abi),
        Err(error) => Err(format!("Landlock: {error}").into()),
    })
}

/// Opens the files that stay within reach, each with its permitted access.
fn gates(needs: &Needs) -> Result<Vec<PathBeneath<File>>, RunError> {
    let read = make_bitflags!(AccessFs::{ReadFile | ReadDir});
    let device = make_bitflags!(AccessFs::{ReadFile | WriteFile | IoctlDev});
    let write = read | make_bitflags!(AccessFs::{WriteFile | Truncate | MakeReg | MakeDir | RemoveFile});
    let mut gates = Vec::new();
    let mut open = |path: &Path, access: BitFlags<AccessFs>| -> Result<(), RunError> {
        let what = format!("keep {} within reach (--no-sandbox leaves out the walls)", path.display());
        gates.extend(gate(path, access).map_err(system(&what))?);
        Ok(())
    };
    // Facts about this host and about this process.
    ["/proc", "/sys", "/etc/os-release"].into_iter().try_for_each(|path| open(Path::new(path), read))?;
    open(Path::new("/dev/kvm"), device)?;
    // The names in a panic's backtrace.
    let code = mapped_code().unwrap_or_default();
    code.iter().try_for_each(|path| open(path, AccessFs::ReadFile.into()))?;
    needs.reads.iter().try_for_each(|path| open(path, read))?;
    for path in &needs.writes {
        open(path, write)?;
        // A directory that is removed is removed from its parent; only empty ones can be. It holds for all directories below.
        let parent = path.parent().unwrap_or(path);
        open(if parent == Path::new("") { Path::new(".") } else { parent }, AccessFs::RemoveDir.into())?;
    }
    Ok(gates)
}

/// Opens a gate to `path` for `access`, if it exists and this process may open it. A path that is out of reach needs no gate.
fn gate(path: &Path, access: BitFlags<AccessFs>) -> io::Result<Option<PathBeneath<File>>> {
    let file = match OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path) {
        Ok(file) => file,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let is_directory = file.metadata()?.is_dir();
    let access = if is_directory { access } else { access & AccessFs::from_file(WANTED) };
    Ok(Some(PathBeneath::new(file, access)))
}

fn restrict(gates: Vec<PathBeneath<File>>) -> Result<RulesetStatus, RulesetError> {
    Ok(Ruleset::default()
        .handle_access(AccessFs::from_all(WANTED))?
        .create()?
        .add_rules(gates.into_iter().map(Ok::<_, RulesetError>))?
        .restrict_self()?
        .ruleset)
}
