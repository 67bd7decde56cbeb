//! Figures that a host may not tell: each has its value, or the reason why it is missing.

use std::borrow::Cow;
use std::fmt::{self, Display, Formatter};

/// A value, or the reason why it is not known.
pub type Known<T> = Result<T, Unknown>;

/// The reason why a value is not known, as the end of a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown(pub Cow<'static, str>);

impl Display for Unknown {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&'static str> for Unknown {
    fn from(reason: &'static str) -> Self {
        Self(Cow::Borrowed(reason))
    }
}

impl From<String> for Unknown {
    fn from(reason: String) -> Self {
        Self(Cow::Owned(reason))
    }
}

impl std::error::Error for Unknown {}
