//! How the command ends: one exit code per kind of ending, one line per failure.

use std::fmt;

use haltkick_vmm::{Refused, RunError, printable};

/// Exit codes, as documented in `--help`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Did what was asked.
    Done = 0,
    /// A fault of Haltkick or of the system below it.
    Internal = 1,
    /// The command line makes no sense.
    Usage = 2,
    /// The experiment file makes no sense.
    BadExperiment = 3,
    /// The host lacks something that is needed.
    HostLacks = 4,
    /// The guest failed: panic, exception, triple fault, exclusion violated.
    GuestFailed = 5,
    /// The guest made no progress until the watchdog ended the run.
    NoProgress = 6,
    /// Finished, but the figures are not valid.
    Untrusted = 7,
    /// `compare` found a regression.
    Regression = 8,
    /// `bisect` cannot tell: git skips the commit.
    CannotTell = 125,
    /// `bisect` was asked for what makes no sense: git ends the bisection.
    EndsBisection = 129,
    /// Ctrl-C; what was measured so far is kept.
    Interrupted = 130,
}

/// A failure: where it leads, and one line that says what, where, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) message: String,
}

impl Exit {
    /// The word of `bisect` that makes git look at earlier commits. Its failures never end with this code.
    pub(crate) const BAD: Self = Self::Internal;
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { exit: Exit::Usage, message: message.into() }
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self { exit: Exit::Internal, message: message.into() }
    }

    pub(crate) fn lacking(message: impl Into<String>) -> Self {
        Self { exit: Exit::HostLacks, message: message.into() }
    }

    /// A failure that says what is wrong with an experiment, in words of its file.
    pub(crate) fn experiment(message: impl AsRef<str>) -> Self {
        Self { exit: Exit::BadExperiment, message: printable(message.as_ref()) }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        Self::usage(format!("--{refused}"))
    }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        Self::from(&error)
    }
}

impl From<&RunError> for Failure {
    fn from(error: &RunError) -> Self {
        let message = error.to_string();
        let exit = match error {
            RunError::Guest { source, .. } => Self::from(&**source).exit,
            RunError::Usage(_) | RunError::Image { .. } | RunError::LockObject { .. } => Exit::Usage,
            RunError::HostLacks(_) | RunError::SliceTooShort(_) => Exit::HostLacks,
            RunError::GuestPanic { .. }
            | RunError::GuestException { .. }
            | RunError::GuestFailed { .. }
            | RunError::ExclusionViolated(_)
            | RunError::LeftBehind(_)
            | RunError::Overtaken(_) => Exit::GuestFailed,
            RunError::NoProgress(_) => Exit::NoProgress,
            RunError::Interrupted => Exit::Interrupted,
            RunError::System { .. } => Exit::Internal,
        };
        Self { exit, message }
    }
}
