//! Other machines like one of a file: its guessed figures may be other ones, and so may the choices of its `[model]`.

use toml::de::DeTable;

use super::Machine;
use crate::sourced::{FileError, each_sourced};

/// How far off figures of a grade may be: by this factor, to either side. None: read or measured.
fn spread(grade: &str) -> Option<f64> {
    match grade {
        "B" => Some(1.15),
        "C" | "D" => Some(1.3),
        "E" => Some(1.5),
        _ => None,
    }
}

/// The choices of a `[model]`, and what each may be, beginning with its default.
pub const CHOICES: &[(&str, &[&str])] = &[
    ("placement", &["last", "lowest"]),
    ("ownership", &["serial", "overlap"]),
    ("invalidation", &["free", "kicks"]),
    ("smt", &["busy", "issue"]),
];

/// A figure that was not measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Guess {
    /// Its place in the file, such as `line.hops-ns[0]`.
    pub key: String,
    /// In the unit of its key.
    pub value: f64,
    /// The least that it may be.
    pub low: f64,
    /// The most.
    pub high: f64,
    /// Place of its number in the text.
    span: std::ops::Range<usize>,
}

impl Guess {
    /// The value at this share of the way from the least to the most, each step of which is of equal proportion.
    #[must_use]
    pub fn at(&self, share: f64) -> f64 {
        if self.low > 0.0 { self.low * (self.high / self.low).powf(share) } else { self.value }
    }
}

impl Machine {
    /// The figures of grades B to E, with the bounds between which this machine would still be one.
    #[must_use]
    pub fn guesses(&self) -> Vec<Guess> {
        let Ok(file) = DeTable::parse(&self.text) else { return Vec::new() };
        let file = file.get_ref();
        let grade = |source: &str| {
            let entry = file.get("sources")?.get_ref().as_table()?.get(source)?;
            entry.get_ref().as_table()?.get("grade")?.get_ref().as_str().and_then(spread)
        };
        let mut found = Vec::new();
        each_sourced("", file, &mut |key, table, source| {
            let (Some(number), Some(spread)) = (table.get("value"), grade(source)) else { return };
            let span = number.span();
            let Ok(value) = self.text[span.clone()].replace('_', "").parse() else { return };
            let mut guess = Guess { key: key.into(), value, low: value, high: value, span };
            (guess.low, guess.high) = (self.bound(&guess, 1.0 / spread), self.bound(&guess, spread));
            found.push(guess);
        });
        found
    }

    /// Choices of its model, in the order of [`CHOICES`].
    #[must_use]
    pub fn chosen(&self) -> Vec<(&'static str, &'static str)> {
        let is_own = |key, value| self.varied(&[], &[(key, value)]).is_ok_and(|it| it.model == self.model);
        let own = |(key, values): &(&'static str, &'static [&'static str])| {
            let value = values.iter().find(|value| is_own(*key, **value))?;
            Some((*key, *value))
        };
        CHOICES.iter().filter_map(own).collect()
    }

    /// The farthest on the way to `factor` that the figure may go: some figures have bounds.
    fn bound(&self, guess: &Guess, factor: f64) -> f64 {
        let values = [1.0, 0.5, 0.25].map(|share| guess.value * factor.powf(share));
        let is_good = |value: &f64| self.varied(&[(guess, *value)], &[]).is_ok();
        values.into_iter().find(is_good).unwrap_or(guess.value)
    }

    /// This machine with other figures, and other choices, which are pairs from [`CHOICES`].
    ///
    /// # Errors
    /// If there is no such machine.
    pub fn varied(&self, figures: &[(&Guess, f64)], choices: &[(&str, &str)]) -> Result<Self, FileError> {
        let mut text = self.text.clone();
        let mut figures: Vec<_> = figures.iter().collect();
        figures.sort_by_key(|(guess, _)| std::cmp::Reverse(guess.span.start));
        for (guess, value) in figures {
            text.replace_range(guess.span.clone(), &format!("{value:.4}"));
        }
        if !choices.is_empty() {
            text = with_choices(&text, choices);
        }
        Self::parse(&self.name, &text)
    }
}

/// The text with these choices instead of its own.
fn with_choices(text: &str, choices: &[(&str, &str)]) -> String {
    const HEADING: &str = "\n[model]";
    let mut text = text.to_owned();
    for (key, value) in choices.iter().rev() {
        let own = DeTable::parse(&text)
            .ok()
            .and_then(|file| Some(file.get_ref().get("model")?.get_ref().as_table()?.get(*key)?.span()));
        let chosen = format!("{HEADING}\n{key} = \"{value}\"");
        match own {
            Some(span) => text.replace_range(span, &format!("\"{value}\"")),
            None if text.contains(HEADING) => text = text.replacen(HEADING, &chosen, 1),
            None => text += &format!("{chosen}\n"),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::presets;

    fn skylake() -> Machine {
        presets().iter().find(|preset| preset.name == "skylake-8s").expect("it is built in").machine()
    }

    #[test]
    fn figures_that_were_read_or_measured_are_no_guesses() {
        let guesses = skylake().guesses();
        let keys: Vec<&str> = guesses.iter().map(|guess| guess.key.as_str()).collect();
        assert!(keys.contains(&"line.shared-ns") && keys.contains(&"line.upgrade-hops[1]"), "{keys:?}");
        // Their sources have grade A.
        for read in ["line.socket-ns", "line.hops-ns[0]", "guest.idle[0].wake-us", "guest.exit-ns"] {
            assert!(!keys.contains(&read), "{read}");
        }
        let find = |key: &str| guesses.iter().find(|guess| guess.key == key).expect("it is a guess");
        let shared = find("line.shared-ns");
        assert!((shared.low - 5.0 / 1.3).abs() < 1e-9 && (shared.high - 5.0 * 1.3).abs() < 1e-9);
        let flat = find("line.invalidate-factor");
        assert!(flat.low >= 1.0 && flat.low < 1.35, "it invalidates at least as far as it reads: {flat:?}");
        assert!((shared.at(0.5) - 5.0).abs() < 1e-9 && (shared.at(1.0) - shared.high).abs() < 1e-9);
    }

    #[test]
    fn every_machine_is_one_at_both_ends_of_all_its_guesses() {
        for preset in presets() {
            let machine = preset.machine();
            let guesses = machine.guesses();
            assert!(guesses.len() > 5, "{}", preset.name);
            for share in [0.0, 1.0] {
                let figures: Vec<_> = guesses.iter().map(|guess| (guess, guess.at(share))).collect();
                let varied = machine.varied(&figures, &[]).unwrap_or_else(|error| panic!("{error}"));
                assert_ne!(varied.costs, machine.costs, "{} at {share}", preset.name);
            }
        }
    }

    #[test]
    fn every_choice_can_be_made_whatever_was_chosen_before() {
        let machine = skylake();
        for (key, values) in CHOICES {
            assert_eq!(machine.varied(&[], &[(key, values[0])]).unwrap().model, machine.model, "{key}");
            for value in &values[1..] {
                let other = machine.varied(&[], &[(key, value)]).unwrap();
                assert_ne!(other.model, machine.model, "{key} = {value}");
                assert!(other.chosen().contains(&(*key, *value)), "{:?}", other.chosen());
                let back = other.varied(&[], &[(key, values[0])]).unwrap();
                assert_eq!(back.model, machine.model, "{key} = {value}");
                assert_eq!(back.text.matches("[model]").count(), 1, "{}", back.text);
            }
        }
    }
}
