//! Text that people type and read: names that were mistyped, durations, and text from untrusted sources, made safe for a terminal.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// `text` without what a terminal would take for a command: control characters but for the tab, and those that change the order
/// in which the others are read. Every text of a guest and of its image passes here, once, where it comes in.
#[must_use]
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\t' || reorders(c) { '\u{fffd}' } else { c }).collect()
}

/// Unicode's bidirectional controls, and its separators of lines.
fn reorders(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns the name closest to a mistyped `wanted`, if one is close enough to have been meant.
#[must_use]
pub fn nearest<'a>(wanted: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Edits (insert, delete, replace, swap neighbours), case ignored; none for an abbreviation.
    let distance = |name: &str| match wanted.len() >= 3 && name.starts_with(wanted) {
        true => 0,
        false => strsim::osa_distance(&wanted.to_lowercase(), &name.to_lowercase()),
    };
    names
        .into_iter()
        .map(|name| (distance(name), name))
        .filter(|(distance, name)| *distance <= 1 + name.len().min(wanted.len()) / 3)
        .min()
        .map(|(_, name)| name)
}

/// A length of time as people write it: a number and a unit, never a number alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

/// Units with their length in nanoseconds, longest first.
const UNITS: [(&str, u64); 7] = [
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("ns", 1),
];

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let unit = unit.trim_start();
        if number.is_empty() {
            return Err(format!(
                "'{text}' is no duration: write a number and a unit, such as 1us, 500ms or 2s"
            ));
        }
        if unit.is_empty() {
            return Err(format!("'{text}' has no unit: write {text}ns, {text}us, {text}ms or {text}s"));
        }
        let Some((_, unit_ns)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err(format!("unknown unit '{unit}' in '{text}': use ns, us, ms, s, m or h"));
        };
        scale(number, *unit_ns)
            .map(|ns| Self(Duration::from_nanos(ns)))
            .ok_or_else(|| format!("'{text}' is no duration of whole nanoseconds below 584 years"))
    }
}

/// `number` (decimal) times `unit_ns`, if that is a whole number of nanoseconds.
fn scale(number: &str, unit_ns: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole = if whole.is_empty() && !fraction.is_empty() { 0 } else { whole.parse::<u64>().ok()? };
    let mut ns = whole.checked_mul(unit_ns)?;
    let mut digit_ns = unit_ns;
    for digit in fraction.chars() {
        let digit = u64::from(digit.to_digit(10)?);
        if digit != 0 && (digit_ns == 0 || !digit_ns.is_multiple_of(10)) {
            return None;
        }
        digit_ns /= 10;
        ns = ns.checked_add(digit * digit_ns)?;
    }
    Some(ns)
}

impl fmt::Display for Span {
    /// The shortest exact form.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.0.as_nanos();
        if ns == 0 {
            return f.write_str("0s");
        }
        let (name, unit_ns) =
            UNITS[2..].iter().find(|(_, unit_ns)| ns >= u128::from(*unit_ns)).unwrap_or(&("ns", 1));
        let unit_ns = u128::from(*unit_ns);
        let digits = unit_ns.ilog10() as usize;
        let fraction = format!("{:0digits$}", ns % unit_ns);
        match fraction.trim_end_matches('0') {
            "" => write!(f, "{}{name}", ns / unit_ns),
            fraction => write!(f, "{}.{fraction}{name}", ns / unit_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_and_commands_to_a_terminal_do_not() {
        assert_eq!(printable("Grüße\tan alle: 1 µs ≤ 2"), "Grüße\tan alle: 1 µs ≤ 2");
        for command in
            ["\u{1b}[2J", "\u{9b}2J", "a\rb", "a\nb", "\u{7}", "\u{8}", "\u{7f}", "\u{202e}a", "\u{2066}"]
        {
            let shown = printable(command);
            assert!(shown.contains('\u{fffd}'), "{command:?} shows as {shown:?}");
            assert!(!shown.chars().any(|c| c.is_control() || reorders(c)), "{shown:?}");
        }
    }

    #[test]
    fn a_number_with_a_unit_is_read_and_printed_exactly() {
        for (text, ns, printed) in [
            ("0s", 0, "0s"),
            ("1ns", 1, "1ns"),
            ("999ns", 999, "999ns"),
            ("1us", 1_000, "1us"),
            ("1\u{b5}s", 1_000, "1us"),
            ("1.03us", 1_030, "1.03us"),
            ("999.999us", 999_999, "999.999us"),
            ("1.5ms", 1_500_000, "1.5ms"),
            ("0.5 s", 500_000_000, "500ms"),
            (".5s", 500_000_000, "500ms"),
            ("1.000000001s", 1_000_000_001, "1.000000001s"),
            ("2s", 2_000_000_000, "2s"),
            ("5m", 300_000_000_000, "300s"),
            ("1h", 3_600_000_000_000, "3600s"),
        ] {
            let span: Span = text.parse().unwrap();
            assert_eq!((span.0.as_nanos(), &*span.to_string()), (ns, printed), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_refused() {
        let parse = |text: &str| text.parse::<Span>();
        assert_eq!(parse("500").unwrap_err(), "'500' has no unit: write 500ns, 500us, 500ms or 500s");
        for text in
            "|us|-1us|1 parsec|1.5ns|1.05ns|0.0001us|0.00001us|1..2s|1.2.3s|.s|99999999999h".split('|')
        {
            assert!(parse(text).is_err(), "{text:?} was accepted");
        }
    }
}
