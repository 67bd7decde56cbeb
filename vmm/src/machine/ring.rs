//! The ring that a guest runs in, and which one to choose on a host whose KVM interprets one of them.

/// The privilege ring that the guest runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ring {
    /// Measure which ring this host's KVM runs natively; ring 0 if both are.
    Auto,
    /// Kernel mode.
    Ring0,
    /// User mode.
    Ring3,
}

/// Instructions a second below which a ring is called interpreted: a tenth of the slowest emulated CPU seen, five
/// times the fastest interpreter.
const NATIVE_AT_LEAST: f64 = 10e6;

/// Whether a ring of this many instructions a second runs natively.
pub(crate) fn is_native(instructions_per_second: f64) -> bool {
    instructions_per_second >= NATIVE_AT_LEAST
}

/// Picks the ring for `asked`, given how fast ring 0 is.
pub(crate) fn choose(asked: Ring, ring0_rate: Option<f64>) -> (Ring, String) {
    match (asked, ring0_rate) {
        (Ring::Auto, Some(rate)) if !is_native(rate) => {
            (Ring::Ring3, format!("ring 0 is interpreted here ({:.1} M instructions/s)", rate / 1e6))
        }
        (Ring::Auto, _) => (Ring::Ring0, "ring 0 is native here".into()),
        (ring, _) => (ring, "asked for".into()),
    }
}
