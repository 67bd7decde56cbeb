//! Objects to link, made by this machine's compilers, and sources of such.

use std::path::{Path, PathBuf};
use std::process::Command;

use haltkick_vmm::{Image, RunError};

/// Flags that docs/lock-objects.md tells people to use.
pub(crate) const FLAGS: [&str; 5] =
    ["-O2", "-ffreestanding", "-mgeneral-regs-only", "-mno-red-zone", "-fno-pic"];

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("vmm/ lies in the workspace").to_owned()
}

/// The examples, in C, assembly and Rust.
pub(crate) fn examples() -> Vec<PathBuf> {
    let folder = std::fs::read_dir(root().join("examples/locks")).expect("there are examples");
    let mut files: Vec<_> = folder.map(|entry| entry.expect("it can be listed").path()).collect();
    let is_source = |path: &PathBuf| path.extension().is_some_and(|it| it == "c" || it == "S" || it == "rs");
    files.retain(is_source);
    files.sort();
    files
}

/// Why nothing can be compiled here.
pub(crate) fn lacking() -> Option<String> {
    match Command::new("gcc").arg("--version").output() {
        Ok(output) if output.status.success() => None,
        _ => Some("there is no gcc: get it with `apt install gcc` or your distribution's like".into()),
    }
}

/// A file for a test.
pub(crate) fn scratch(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// The object `name.o` that gcc makes of a file.
pub(crate) fn file(source: &Path, name: &str, flags: &[&str]) -> PathBuf {
    let object = scratch(&format!("{name}.o"));
    let output = Command::new("gcc")
        .args(["-Wall", "-Wextra", "-Werror", "-g", "-c"])
        .args(flags)
        .arg("-I")
        .arg(root().join("include"))
        .arg(source)
        .arg("-o")
        .arg(&object)
        .output()
        .expect("gcc can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    object
}

/// The object `name.o` of a text.
pub(crate) fn text(name: &str, source: &str, flags: &[&str]) -> PathBuf {
    let path = scratch(&format!("{name}.c"));
    std::fs::write(&path, source).expect("the test's directory can be written");
    file(&path, name, flags)
}

/// A lock that excludes, in front of which a test puts what it is about.
pub(crate) const TAS: &str = r#"
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

/// The image with one object behind it.
pub(crate) fn link(object: &Path) -> Result<Image, RunError> {
    Image::embedded().with_locks([&*lock_of(object)])
}

/// The name of an object's lock.
pub(crate) fn lock_of(object: &Path) -> String {
    format!("file:{}", object.display())
}
