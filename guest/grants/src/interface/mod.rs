//! Arguments and results of operations.

mod status;

pub use status::Status;

/// For the device to reach.
pub const DEVICE_MAP: u32 = 1 << 0;
/// For CPUs to reach.
pub const HOST_MAP: u32 = 1 << 1;
/// For reading only.
pub const READONLY_MAP: u32 = 1 << 2;

/// Arguments of a map, and what the mapping then stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapRequest {
    /// The granting domain.
    pub granter: u16,
    /// The entry of its table.
    pub reference: u32,
    /// [`HOST_MAP`] and its siblings.
    pub flags: u32,
}

/// Purpose of a mapping, from checked flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access(u32);

impl Access {
    /// Refuses unknown flags, and mappings for neither host nor device.
    pub(crate) fn from_flags(flags: u32) -> Result<Self, Status> {
        let known = flags & !(DEVICE_MAP | HOST_MAP | READONLY_MAP) == 0;
        if known && flags & (DEVICE_MAP | HOST_MAP) != 0 {
            Ok(Self(flags))
        } else {
            Err(Status::GeneralError)
        }
    }

    pub(crate) fn is_write(self) -> bool {
        self.0 & READONLY_MAP == 0
    }

    /// Returns the sum that a pin for this purpose adds to the four counters: host writes in bits 0 to 7, host
    /// reads, device writes, device reads.
    pub(crate) fn increment(self) -> u32 {
        let kind = if self.is_write() { 0 } else { 8 };
        let one = |flag: u32, base: u32| if self.0 & flag != 0 { 1 << (base + kind) } else { 0 };
        one(HOST_MAP, 0) + one(DEVICE_MAP, 16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_use_has_a_counter_of_its_own() {
        let increment = |flags| Access::from_flags(flags).map(Access::increment);
        assert_eq!(increment(HOST_MAP), Ok(1));
        assert_eq!(increment(HOST_MAP | READONLY_MAP), Ok(1 << 8));
        assert_eq!(increment(DEVICE_MAP), Ok(1 << 16));
        assert_eq!(increment(DEVICE_MAP | HOST_MAP | READONLY_MAP), Ok(1 << 24 | 1 << 8));
    }
}
