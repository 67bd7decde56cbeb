//! Facts from `/proc` and `/sys`, each a value or the reason why there is none.

use std::fs;
use std::path::Path;

use sha2::{Digest as _, Sha256};

/// A value, or why this host cannot tell.
pub(crate) type Answer<T = String> = Result<T, String>;

/// SHA-256, in hexadecimal digits.
pub(crate) fn hash(bytes: impl AsRef<[u8]>) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The trimmed text of a file.
pub(crate) fn text(path: impl AsRef<Path>) -> Answer {
    let path = path.as_ref();
    fs::read_to_string(path)
        .map(|text| text.trim_end().to_owned())
        .map_err(|error| format!("{}: {}", path.display(), reason(&error)))
}

/// The value of the first line `name : value` or `name="value"` in a file such as `/proc/cpuinfo`.
pub(crate) fn field(path: &str, name: &str) -> Answer {
    text(path)?
        .lines()
        .filter_map(|line| line.split_once([':', '=']))
        .find(|(key, _)| key.trim() == name)
        .map(|(_, value)| value.trim().trim_matches('"').to_owned())
        .ok_or_else(|| format!("{path}: no line '{name}'"))
}

/// A field of the text of `/proc/PID/stat`. The name may hold anything, so the fields are counted from its bracket, which ends field 2.
pub(crate) fn stat_field(stat: &str, number: usize) -> Option<&str> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(number - 3)
}

pub(crate) fn has_cpu_flag(flag: &str) -> Answer<bool> {
    Ok(field("/proc/cpuinfo", "flags")?.split_ascii_whitespace().any(|each| each == flag))
}

/// Kernel modules (built in or loaded) of the KVM family, such as `kvm`, `kvm_intel`.
pub(crate) fn kvm_modules() -> Vec<String> {
    names("/sys/module").into_iter().filter(|name| name == "kvm" || name.starts_with("kvm_")).collect()
}

/// Sorted names in a directory; none if it cannot be read.
pub(crate) fn names(directory: impl AsRef<Path>) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}

fn reason(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "does not exist here".into(),
        std::io::ErrorKind::PermissionDenied => "not readable for this user".into(),
        _ => error.to_string(),
    }
}
