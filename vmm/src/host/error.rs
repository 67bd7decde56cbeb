//! Why a run ended without an outcome. `bench` maps each kind to an exit code.
//! Figures that a host may not tell have a value, or the reason why it is missing: [`Known`].

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::host::text::printable;

/// A request that makes no sense: a setting, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Name of the setting, which the message does not repeat; empty where the message says it all.
    pub about: &'static str,
    /// One line that says the mistake and what to write instead.
    pub message: String,
}

impl Refused {
    /// A refusal of a setting.
    pub fn new(about: &'static str, message: impl Into<String>) -> Self {
        Self { about, message: message.into() }
    }

    /// Refuses a setting if it `is_wrong`.
    pub(crate) fn when(is_wrong: bool, about: &'static str, message: impl Into<String>) -> Result<(), Self> {
        if is_wrong { Err(Self::new(about, message)) } else { Ok(()) }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.about {
            "" => f.write_str(&self.message),
            about => write!(f, "{about}: {}", self.message),
        }
    }
}

impl From<Refused> for RunError {
    fn from(refused: Refused) -> Self {
        Self::Usage(refused)
    }
}

impl RunError {
    /// A refusal that says in words of its own what it is about.
    pub fn usage(message: impl Into<String>) -> Self {
        Refused::new("", message).into()
    }
}

/// Why a run ended without an outcome. Every message is one line: what, where, what to do.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The request makes no sense; exit code 2.
    #[error("{0}")]
    Usage(Refused),
    /// The host, or its simulated CPU, lacks something; exit code 4. Says what and how to get it.
    #[error("{0}")]
    HostLacks(String),
    /// The host takes longer to enter a guest than a slice lasts; exit code 4.
    #[error("{0}")]
    SliceTooShort(String),
    /// The guest image cannot be used; exit code 2.
    #[error("guest image {path}: {reason}", path = path.display())]
    Image {
        /// Path of the image.
        path: PathBuf,
        /// The fault of the image and its remedy.
        reason: String,
    },
    /// A lock object cannot be linked; exit code 2.
    #[error("lock object {path} {reason}", path = printable(&path.to_string_lossy()))]
    LockObject {
        /// Its file.
        path: PathBuf,
        /// The fault of the object and its remedy.
        reason: String,
    },
    /// The guest panicked; exit code 5.
    #[error("guest panicked on vCPU {vcpu} at {place}: {message}")]
    GuestPanic {
        /// The vCPU that panicked.
        vcpu: u32,
        /// The panic's message.
        message: String,
        /// Source file and line of the panic.
        place: String,
    },
    /// The guest took an exception that it does not handle; exit code 5.
    #[error("guest exception on vCPU {vcpu}: {name} {place}")]
    GuestException {
        /// The vCPU that took it.
        vcpu: u32,
        /// Mnemonic of the vector, such as `#PF`.
        name: &'static str,
        /// Vector, error code, the instruction pointer as symbol+offset where known, and for `#PF` the address.
        place: String,
    },
    /// The guest or KVM ended the vCPU in a way that the VMM does not expect; exit code 5.
    #[error("guest failed on vCPU {vcpu}: {reason}")]
    GuestFailed {
        /// The vCPU.
        vcpu: u32,
        /// The event and its place.
        reason: String,
    },
    /// Two vCPUs were inside one critical section, or updates were lost; exit code 5.
    #[error("mutual exclusion violated: {0}")]
    ExclusionViolated(String),
    /// A lock was not free, or had a sleeper, after all vCPUs had left it; exit code 5.
    #[error("left behind by a vCPU that is gone: {0}")]
    LeftBehind(String),
    /// A vCPU was overtaken more often than the lock promises; exit code 5.
    #[error("promised order broken: {0}")]
    Overtaken(String),
    /// No vCPU moved for the watchdog's time, or all vCPUs sleep; exit code 6.
    #[error("no progress: {0}")]
    NoProgress(String),
    /// A request to stop (Ctrl-C) came; exit code 130.
    #[error("interrupted")]
    Interrupted,
    /// One of several guests failed; what its failure leads to.
    #[error("guest `{name}`: {source}")]
    Guest {
        /// Its name.
        name: String,
        /// The failure.
        source: Box<RunError>,
    },
    /// A system call failed that should not; exit code 1.
    #[error("{what}: {source}")]
    System {
        /// The call and what it was for.
        what: String,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Turns an error of a system call into one that says what it was for. Where memory is limited, the host lacks it.
pub(crate) fn system<E: Into<io::Error>>(what: &str) -> impl FnOnce(E) -> RunError + '_ {
    move |error| {
        let (what, source) = (what.to_owned(), error.into());
        match source.raw_os_error() {
            Some(libc::ENOMEM) => RunError::HostLacks(format!("{what}: {source}: see {MEMORY_LIMITS}")),
            _ => RunError::System { what, source },
        }
    }
}

/// Turns the error of a thread that was not started into one that says which limits there are.
pub(crate) fn no_thread(what: &str) -> impl FnOnce(io::Error) -> RunError + '_ {
    move |error| {
        RunError::HostLacks(format!(
            "{what}: {error}: see {MEMORY_LIMITS}, and those on threads: ulimit -u, pids.max"
        ))
    }
}

/// The places of limits on memory, as the end of a sentence.
pub const MEMORY_LIMITS: &str = "the limits on memory: ulimit -v, and memory.max of the control group";

/// A value, or the reason why it is not known.
pub type Known<T> = Result<T, Unknown>;

/// The reason why a value is not known, as the end of a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unknown(pub Cow<'static, str>);

impl<T: Into<Cow<'static, str>>> From<T> for Unknown {
    fn from(reason: T) -> Self {
        Self(reason.into())
    }
}
