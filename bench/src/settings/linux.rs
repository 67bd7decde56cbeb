//! Settings where the guest is Linux.

use std::time::Duration;

use haltkick_vmm::Target;

use super::choices::DescheduleChoice;
use super::deschedule::Policy;
use super::row::{Linux, Setting};
use super::value::{Settings, Value};

/// Enough for a distribution's kernel and a small initramfs.
const DEFAULT_MEMORY_BYTES: u64 = 256 << 20;
/// A guest that hangs ends then.
pub(crate) const DEFAULT_LIMIT: Duration = Duration::from_secs(600);
/// What kernels say before they start the first program, unless they are told to be quiet.
pub(crate) const DEFAULT_MARKER: &str = "Run /";
/// Why a policy of descheduling is refused.
pub(crate) const RANDOM_ONLY: &str =
    "nobody knows what a vCPU of a Linux guest is doing: use random, without at=";

/// Whether this is for our own guest only.
pub(crate) fn is_refused(setting: &Setting, value: &Value) -> bool {
    match setting.linux {
        Linux::Used => false,
        Linux::Refused => true,
        Linux::Only(word) => value.text() != word,
    }
}

/// Whether `settings` ask to take off vCPUs by what they are doing, which nobody knows here.
pub(crate) fn deschedules_by_activity(settings: &Settings) -> bool {
    let asked = settings.given("deschedule").map(Value::deschedule);
    matches!(asked, Some(DescheduleChoice(Some(Policy(policy))))
        if policy.target != Target::Random || policy.at.is_some())
}

/// How long a guest may take until it has powered off.
pub(crate) fn limit(settings: &Settings) -> Duration {
    settings.given("window").map_or(DEFAULT_LIMIT, Value::time)
}

/// Memory of the guest.
pub(crate) fn memory_bytes(settings: &Settings) -> u64 {
    settings.given("memory").map_or(DEFAULT_MEMORY_BYTES, Value::bytes)
}
