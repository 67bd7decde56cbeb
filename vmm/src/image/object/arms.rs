//! The lab's own lock objects, which the build makes of guest/arms: locks with a name that is linked where it is asked for.

/// A lock object that is named like a lock of the image.
#[derive(Debug)]
pub struct Arm {
    /// Name on the command line: that of its source without the end.
    pub name: &'static str,
    /// One line of explanation: the first of its source.
    pub summary: &'static str,
    pub(crate) object: &'static [u8],
}

/// All of them, by name.
pub static ARMS: &[Arm] = include!(concat!(env!("OUT_DIR"), "/arms.rs"));
