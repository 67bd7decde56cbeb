//! Arguments and results of operations.

use core::fmt;

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

/// Reason for refusing an operation: a status of the public grant-table interface. A refused caller finds every count as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i16)]
pub enum Status {
    /// The granter does not permit this now: wrong type, wrong domain, an entry that does not stand still; or the
    /// operation's flags mean nothing; or a pin counter is full.
    GeneralError = -1,
    /// There is no such domain.
    BadDomain = -2,
    /// The reference is beyond the granter's table.
    BadReference = -3,
    /// The handle names no mapping.
    BadHandle = -4,
    /// The mapping domain has no handle left.
    NoHandle = -7,
    /// Writing was asked for where only reading is granted.
    PermissionDenied = -8,
    /// The frame does not exist, is not the granter's, or is in use by others.
    BadPage = -9,
    /// Offset and length leave the page.
    BadCopyArgument = -10,
    /// In use: to be tried again.
    Again = -12,
    /// The table cannot grow that far.
    NoSpace = -13,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::GeneralError => "not granted, unstable, or meaningless flags",
            Self::BadDomain => "no such domain",
            Self::BadReference => "no such reference",
            Self::BadHandle => "no such mapping",
            Self::NoHandle => "no handle left",
            Self::PermissionDenied => "granted for reading only",
            Self::BadPage => "no such page, or it is in use",
            Self::BadCopyArgument => "the copy leaves the page",
            Self::Again => "in use, try again",
            Self::NoSpace => "the table cannot grow that far",
        })
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
