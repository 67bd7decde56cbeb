//! Tests that register themselves where they stand: `#[apply(trial)]` above a function. Each has the name of its function, and
//! may find that it cannot be made here.

use std::fmt::Display;
use std::io::Write as _;

use haltkick_vmm::{Accelerator, Sched};
use libtest_mimic::{Arguments, Completion, Conclusion, Trial};

/// Why a test did not pass.
#[derive(Debug)]
pub enum Failed {
    /// Something does not hold.
    Because(String),
    /// Something that the test needs is missing here.
    Skipped(String),
}

/// The result of a test.
pub type Check = Result<(), Failed>;

impl<E: Display> From<E> for Failed {
    fn from(error: E) -> Self {
        Self::Because(error.to_string())
    }
}

/// The end of a test that may be skipped, or that fails by panics alone.
pub trait Verdict {
    /// The end as a result.
    fn verdict(self) -> Check;
}

impl Verdict for () {
    fn verdict(self) -> Check {
        Ok(())
    }
}

impl Verdict for Check {
    fn verdict(self) -> Check {
        self
    }
}

/// Ends a test that cannot be made here: `reason` says what is missing, such as the error of something that it needs.
pub fn skip<T>(reason: impl Display) -> Result<T, Failed> {
    Err(Failed::Skipped(reason.to_string()))
}

/// A trial with a name of its own.
pub fn named<V: Verdict>(name: String, test: impl Fn() -> V + Send + 'static) -> Trial {
    let run = move || match test().verdict() {
        Ok(()) => Ok(Completion::Completed),
        Err(Failed::Skipped(reason)) => Ok(Completion::ignored_with(reason)),
        Err(Failed::Because(reason)) => Err(reason.into()),
    };
    Trial::ignorable_test(name, run)
}

/// The trials of one function.
#[doc(hidden)]
pub struct Registered {
    pub module: &'static str,
    pub name: &'static str,
    pub trials: fn(String) -> Vec<Trial>,
}

inventory::collect!(Registered);

/// Returns all trials of this program, in the order of their names. Under `by_file` the name of a function's file precedes its own.
pub fn trials(by_file: bool) -> Vec<Trial> {
    let named = |test: &Registered| match test.module.rsplit("::").next().filter(|_| by_file) {
        Some(file) => format!("{file}::{}", test.name),
        None => test.name.into(),
    };
    let registered = inventory::iter::<Registered>.into_iter();
    let mut trials: Vec<_> = registered.flat_map(|test| (test.trials)(named(test))).collect();
    trials.sort_by(|one, other| one.name().cmp(other.name()));
    trials
}

/// A parameter of a test that makes one test of each of its values.
#[doc(hidden)]
pub trait Parameter: Copy + Send + 'static {
    /// The values, and what stands before and behind the function's name under each.
    const VALUES: [(&'static str, Self, &'static str); 2];
}

impl Parameter for Sched {
    const VALUES: [(&'static str, Self, &'static str); 2] =
        [("", Self::Vmm, "_under_sched_vmm"), ("", Self::Host, "_under_sched_host")];
}

impl Parameter for Accelerator {
    const VALUES: [(&'static str, Self, &'static str); 2] =
        [("", Self::Tcg, ""), ("with_kvm_", Self::Kvm, "")];
}

/// Returns a trial of each value of the parameter.
pub fn each<P: Parameter, V: Verdict>(
    name: &str,
    test: impl Fn(P) -> V + Clone + Send + 'static,
) -> Vec<Trial> {
    let trial = |(before, value, behind)| {
        let test = test.clone();
        named(format!("{before}{name}{behind}"), move || test(value))
    };
    P::VALUES.map(trial).into()
}

/// Registers a function as a test: without parameter, or with a scheduler or accelerator as its only one. One that returns trials
/// registers these, which have names of their own.
#[macro_export]
macro_rules! trial {
    ($(#[$attribute:meta])* fn $name:ident() -> Vec<Trial> $body:block) => {
        $(#[$attribute])*
        fn $name() -> Vec<Trial> $body
        $crate::trial!(@ $name, |_| $name());
    };
    ($(#[$attribute:meta])* fn $name:ident() $($body:tt)*) => {
        $(#[$attribute])*
        fn $name() $($body)*
        $crate::trial!(@ $name, |name| vec![$crate::named(name, $name)]);
    };
    ($(#[$attribute:meta])* fn $name:ident($parameter:ident: $type:ty) $($body:tt)*) => {
        $(#[$attribute])*
        fn $name($parameter: $type) $($body)*
        $crate::trial!(@ $name, |name| $crate::each::<$type, _>(&name, $name));
    };
    (@ $name:ident, $trials:expr) => {
        $crate::inventory::submit! {
            $crate::Registered { module: module_path!(), name: stringify!($name), trials: $trials }
        }
    };
}

/// The trials that a machine of `just test-nested` runs: those that `HALTKICK_TESTS` names, with commas between them, or all where it is
/// not set. Names that are no test's would leave something untested without a word.
pub fn chosen(mut trials: Vec<Trial>) -> Vec<Trial> {
    let Ok(names) = std::env::var("HALTKICK_TESTS") else {
        return trials;
    };
    let names: Vec<_> = names.split(',').collect();
    trials.retain(|trial| names.contains(&trial.name()));
    assert_eq!(trials.len(), names.len(), "HALTKICK_TESTS has names that are no test's, or a name twice");
    trials
}

/// Makes trials one after the other: a guest takes all pCPUs, so that in parallel they would only measure each other, and on threads the
/// image's addresses, which are there once in a process. If something is `lacking` here, `what` they test is skipped. How it went on
/// `engine` is noted: `ENGINE passed COUNT`, or `ENGINE skipped REASON`. `bench/tests/ran-on.sh` makes the last line of `just test` of it.
pub fn conclude(trials: Vec<Trial>, what: &str, engine: &str, lacking: Option<&str>) -> Conclusion {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    if let Some(reason) = lacking {
        eprintln!("{what} are skipped, not tested: {reason}");
    }
    let flag = |trial: Trial| if lacking.is_some() { trial.with_ignored_flag(true) } else { trial };
    let conclusion = libtest_mimic::run(&arguments, trials.into_iter().map(flag).collect());
    // In the emulated machine of `just test-nested` the file would be lost; the suite notes that itself.
    if !crate::nested() && !conclusion.has_failed() {
        note(&match lacking {
            Some(reason) => format!("{engine} skipped {reason}"),
            None => format!("{engine} passed {}", conclusion.num_passed),
        });
    }
    conclusion
}

/// Notes for the last line of `just test` what was tested, in the file that `HALTKICK_RAN_ON` names.
pub fn note(line: &str) {
    let Some(file) = std::env::var_os("HALTKICK_RAN_ON") else { return };
    let file = std::fs::OpenOptions::new().create(true).append(true).open(file);
    file.and_then(|mut file| writeln!(file, "{line}")).expect("the file of HALTKICK_RAN_ON");
}
