//! Settings where the guest is Linux.

use std::time::Duration;

use haltkick_vmm::Refused;

use super::row::{Linux, Setting};
use super::{Settings, Value, choices};
use crate::text::quantity::MemorySize;

/// Enough for a distribution's kernel and a small initramfs.
const DEFAULT_MEMORY_BYTES: u64 = 256 << 20;
/// A guest that hangs ends then.
pub(crate) const DEFAULT_LIMIT: Duration = Duration::from_secs(600);
/// Line of kernels before they start the first program, unless they are told to be quiet.
pub(crate) const DEFAULT_MARKER: &str = "Run /";

pub(crate) fn is_refused(setting: &Setting, value: &Value<'_>) -> bool {
    match setting.linux {
        Linux::Used => false,
        Linux::Refused => true,
        Linux::Only(words) => !words.contains(&value.text()),
    }
}

/// Refuses to take off vCPUs by what they are doing.
pub(crate) fn check_descheduling(settings: &Settings) -> Result<(), Refused> {
    let policy = settings.given("deschedule").and_then(|policy| policy.by(choices::deschedule));
    policy.map_or(Ok(()), |policy| policy.check_for_linux())
}

/// How long a guest may take until it has powered off.
pub(crate) fn limit(settings: &Settings) -> Duration {
    settings.given("window").map_or(DEFAULT_LIMIT, Value::time)
}

pub(crate) fn memory_bytes(settings: &Settings) -> u64 {
    settings.given("memory").map_or(DEFAULT_MEMORY_BYTES, |size| size.to::<MemorySize>().bytes)
}
