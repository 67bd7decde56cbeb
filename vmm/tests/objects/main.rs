//! Lock objects: what is linked runs and excludes, and what cannot be linked is refused in one line. Objects
//! are made by this machine's compilers.

mod linked;
mod refused;
mod runs;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use haltkick_vmm::{Image, RunError};

fn main() -> ExitCode {
    support::conclude(support::trials(false), "lock objects", "objects", None).exit_code()
}

/// Flags that docs/lock-objects.md tells people to use.
const FLAGS: [&str; 5] = ["-O2", "-ffreestanding", "-mgeneral-regs-only", "-mno-red-zone", "-fno-pic"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("vmm/ lies in the workspace").to_owned()
}

fn examples() -> Vec<PathBuf> {
    let folder = std::fs::read_dir(root().join("examples/locks")).expect("there are examples");
    let mut files: Vec<_> = folder.map(|entry| entry.expect("it can be listed").path()).collect();
    let is_source = |path: &PathBuf| path.extension().is_some_and(|it| it == "c" || it == "S" || it == "rs");
    files.retain(is_source);
    files.sort();
    files
}

fn scratch(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// The object `name.o` that gcc makes of a text.
fn text(name: &str, source: &str, flags: &[&str]) -> PathBuf {
    let [path, object] = ["c", "o"].map(|end| scratch(&format!("{name}.{end}")));
    std::fs::write(&path, source).expect("the test's directory can be written");
    let output = Command::new("gcc")
        .args(["-Wall", "-Wextra", "-Werror", "-g", "-c"])
        .args(flags)
        .arg("-I")
        .arg(root().join("include"))
        .arg(&path)
        .arg("-o")
        .arg(&object)
        .output()
        .expect("gcc can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    object
}

/// The archive `name` that ar makes of objects.
fn archive(name: &str, objects: &[&Path]) -> PathBuf {
    let archive = scratch(name);
    _ = std::fs::remove_file(&archive);
    assert!(Command::new("ar").arg("rc").arg(&archive).args(objects).status().unwrap().success());
    archive
}

/// A lock that excludes, in front of which a test puts what it is about.
const TAS: &str = r#"
#include "haltkick.h"
struct lock { hk_u8 held; };
HK_LOCK(struct lock);
void hk_lock(struct lock *lock)
{
    while (__atomic_exchange_n(&lock->held, 1, __ATOMIC_ACQUIRE))
        hk_pause();
}
void hk_unlock(struct lock *lock) { __atomic_store_n(&lock->held, 0, __ATOMIC_RELEASE); }
"#;

fn link(object: &Path) -> Result<Image, RunError> {
    Image::embedded().with_locks([&*lock_of(object)])
}

/// As [`link`], of what can be linked.
#[track_caller]
fn linked(object: &Path) -> Image {
    link(object).unwrap_or_else(|error| panic!("{}: {error}", object.display()))
}

fn lock_of(object: &Path) -> String {
    format!("file:{}", object.display())
}
