//! How an operation fails: the statuses of the public grant-table interface.

use core::fmt;

/// Reason for refusing an operation. A refused caller finds every count as it was.
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
