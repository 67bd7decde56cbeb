//! Faults of locks: the races that they once had, by name, and faults that are inserted to see a test fail.

pub mod races;

pub mod mutant {
    //! Deliberate faults, each in the line that a proof or a test guards.
    //!
    //! `--cfg mutant="name"` puts one fault in, `--cfg mutant="any"` all of them, of which the environment's `MUTANT` chooses
    //! one when the tests run; `guest/mutants.sh` lists, for each name, the test that must then fail. Without either the macro
    //! here is the sound code and nothing else.
    //!
    //! It is for faults of one word: an ordering, a bit that is not looked at. What takes out or moves a statement is a patch in
    //! `guest/mutants`, so that a protocol reads as what it is.
    //!
    //! Public, though no part of the locks' interface: what is built on the locks has its faults from here, too.

    /// `mutant!("name": sound => faulty)` is `sound`.
    #[doc(hidden)]
    #[macro_export]
    macro_rules! mutant {
        ($name:literal: $sound:expr => $faulty:expr) => {
            if cfg!(mutant = $name) || $crate::mutant::is_chosen($name) { $faulty } else { $sound }
        };
    }

    pub use mutant;

    /// Whether the environment asks for this fault.
    #[cfg(mutant = "any")]
    pub fn is_chosen(name: &str) -> bool {
        extern crate std;
        static CHOSEN: std::sync::OnceLock<Option<std::string::String>> = std::sync::OnceLock::new();
        CHOSEN.get_or_init(|| std::env::var("MUTANT").ok()).as_deref() == Some(name)
    }

    /// Never, in a build without mutants.
    #[cfg(not(mutant = "any"))]
    #[inline(always)]
    pub const fn is_chosen(_: &str) -> bool {
        false
    }
}
