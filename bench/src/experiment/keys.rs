//! Keys of an experiment file that boot a kernel, and bounds of others. Which other keys there are, the schema says.

use std::ops::RangeInclusive;

use super::workload_inside::WorkloadInside;
use crate::settings::table;

/// Keys that boot a kernel; they stand wherever settings do.
pub(super) const BOOT: &[&str] = &["kernel", "initrd", CMDLINE, NOPVSPIN, "marker", WORKLOAD_INSIDE];
pub(super) const FILES: &[&str] = &["kernel", "initrd"];
/// The boot key whose words add up: those from all places are used, one after the other.
pub(super) const CMDLINE: &str = "cmdline";
/// The boot key of what this program runs inside, instead of an initial RAM disk.
pub(crate) const WORKLOAD_INSIDE: &str = "workload-inside";
/// The only boolean boot key.
pub(super) const NOPVSPIN: &str = "nopvspin";
/// Most cells of an experiment, which are all made before the first one runs.
pub(super) const MOST_CELLS: usize = 10_000;
/// Least and most of what counts blocks.
pub(super) const BLOCKS: RangeInclusive<u32> = 1..=100_000;
/// Most times that a disturbed run is made again: what is disturbed that often is disturbed always.
pub(crate) const MOST_RETRIES: u32 = 100;

/// The name in files of a setting, or of what boots a kernel.
pub(super) fn named(key: &str) -> Result<&'static str, String> {
    let setting = table::find(key).map(|setting| setting.name);
    let found = setting.or_else(|| BOOT.iter().copied().find(|known| *known == key));
    found.ok_or_else(|| table::unknown("setting", key, &[&table::names(), BOOT].concat()))
}

/// Refuses a value that one of [`BOOT`] cannot have.
pub(super) fn check_boot(key: &str, value: &str) -> Result<(), String> {
    // No words for the command line are a choice; a file without a name is none.
    if value.is_empty() && key != CMDLINE {
        return Err(format!("'{key}' must be a text in quotes"));
    }
    if key == NOPVSPIN && value.parse::<bool>().is_err() {
        return Err(format!("'{key}' must be true or false"));
    }
    if key == WORKLOAD_INSIDE {
        WorkloadInside::read(value).map_err(|message| format!("'{key}': {message}"))?;
    }
    Ok(())
}
