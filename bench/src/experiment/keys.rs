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
/// Of `[settings]`, beside settings: what boots a kernel.
pub(super) const BOOT: &[&str] = &["kernel", "initrd", "cmdline", "nopvspin", "marker"];
/// Of an `[[arm]]`, beside settings and those.
pub(super) const ARM: &[&str] = &["name", "only"];
/// Of a `[[compare]]`.
pub(super) const COMPARE: &[&str] = &["name", "arm", "baseline", "of"];
/// Of the `[control]`, beside what varies.
pub(super) const CONTROL: &[&str] = &["arm"];
/// Of `[quick]`, beside settings.
pub(super) const QUICK: &[&str] = &["blocks"];
/// Least and most of what counts blocks.
pub(super) const BLOCKS: std::ops::RangeInclusive<u32> = 1..=100_000;
