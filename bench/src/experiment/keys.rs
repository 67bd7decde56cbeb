//! The keys of an experiment file in addition to those of settings: what the reader knows, and what the schema says.

/// Keys of the file itself.
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
    "robust",
    "publication",
    "published",
];
/// Keys that boot a kernel; they stand wherever settings do.
pub(super) const BOOT: &[&str] = &["kernel", "initrd", CMDLINE, NOPVSPIN, "marker", WORKLOAD_INSIDE];
/// Boot keys that name files.
pub(super) const FILES: &[&str] = &["kernel", "initrd"];
/// The boot key whose words add up: those from all places are used, one after the other.
pub(super) const CMDLINE: &str = "cmdline";
/// The boot key of what this program runs inside, instead of an initial RAM disk.
pub(crate) const WORKLOAD_INSIDE: &str = "workload-inside";
/// The only boolean boot key.
pub(super) const NOPVSPIN: &str = "nopvspin";
/// Keys of an `[[arm]]`, in addition to settings and boot keys.
pub(super) const ARM: &[&str] = &["name", "only"];
/// Keys of a `[[compare]]`.
pub(super) const COMPARE: &[&str] = &["name", "arm", "baseline", "of"];
/// Keys of the `[control]`, in addition to what varies.
pub(super) const CONTROL: &[&str] = &["arm"];
/// Keys of `[quick]`, in addition to settings.
pub(super) const QUICK: &[&str] = &["blocks", "grid", "arms"];
/// Keys of a `[[published]]`.
pub(super) const PUBLISHED: &[&str] = &[
    "name",
    "source",
    "figure",
    "value",
    "within",
    "machine",
    "pcpus",
    "ratio",
    "needs-pcpus",
    "compare",
    "arm",
    "share",
    "among",
    "at",
    "over",
    "control",
    "like",
    "why",
    "page",
];
/// Keys of `[publication]`, which its rows have in common.
pub(super) const PUBLICATION: &[&str] = &["source", "machine", "pcpus", "ratio", "like", "page"];
/// Keys of the control of a `[[published]]`.
pub(super) const PUBLISHED_CONTROL: &[&str] = &["compare", "at", "value"];
/// Keys of `[robust]`.
pub(super) const ROBUST: &[&str] = &["points"];
/// Most cells of an experiment, which are all made before the first one runs.
pub(super) const MOST_CELLS: usize = 10_000;
/// Least and most of what counts blocks.
pub(super) const BLOCKS: std::ops::RangeInclusive<u32> = 1..=100_000;
