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

/// Declares the statuses, each with its number and its text for users.
macro_rules! statuses {
    ($($(#[$more:meta])* $status:ident = $number:literal, $text:literal;)+) => {
        /// Reason for refusing an operation: a status of the public grant-table interface. A refused caller finds every count as
        /// it was.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(i16)]
        pub enum Status {
            $(#[doc = $text] #[doc = ""] $(#[$more])* $status = $number,)+
        }

        impl fmt::Display for Status {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$status => $text,)+
                })
            }
        }
    };
}

statuses! {
    /// The type or the domain is wrong, the entry does not stand still, or a pin counter is full.
    GeneralError = -1, "not granted, unstable, or meaningless flags";
    BadDomain = -2, "no such domain";
    BadReference = -3, "no such reference";
    BadHandle = -4, "no such mapping";
    NoHandle = -7, "no handle left";
    PermissionDenied = -8, "granted for reading only";
    /// Also of a page that is not the granter's.
    BadPage = -9, "no such page, or it is in use";
    BadCopyArgument = -10, "the copy leaves the page";
    Again = -12, "in use, try again";
    NoSpace = -13, "the table cannot grow that far";
}
