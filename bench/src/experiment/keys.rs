//! The keys of an experiment file beside those of settings: what the reader knows, and what the schema says.

/// Of the file itself.
pub(super) const TOP: &[&str] = &[
    "format",
    "name",
    "title",
    "blocks",
    "target-precision",
    "max-time",
    "retry-disturbed",
    "trial-blocks",
    "without-ideal",
    "lock-costs",
    "settings",
    "point",
    "grid",
    "arm",
    "compare",
    "control",
    "quick",
];
/// Beside settings, wherever these stand: what boots a kernel.
pub(super) const BOOT: &[&str] = &["kernel", "initrd", CMDLINE, NOPVSPIN, "marker"];
/// Of those: files.
pub(super) const FILES: &[&str] = &["kernel", "initrd"];
/// Of those: words of which everybody's are used, one after the other.
pub(super) const CMDLINE: &str = "cmdline";
/// Of those: the one that is no text.
pub(super) const NOPVSPIN: &str = "nopvspin";
/// Of an `[[arm]]`, beside settings and those.
pub(super) const ARM: &[&str] = &["name", "only"];
/// Of a `[[compare]]`.
pub(super) const COMPARE: &[&str] = &["name", "arm", "baseline", "of"];
/// Of the `[control]`, beside what varies.
pub(super) const CONTROL: &[&str] = &["arm"];
/// Of `[quick]`, beside settings.
pub(super) const QUICK: &[&str] = &["blocks"];
/// Most cells of an experiment, which are all made before the first one runs.
pub(super) const MOST_CELLS: usize = 10_000;
/// Least and most of what counts blocks.
pub(super) const BLOCKS: std::ops::RangeInclusive<u32> = 1..=100_000;
