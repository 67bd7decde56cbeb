//! Figures as people read them: three significant digits and a unit. Shares and amounts of memory as people write them.

use std::fmt;
use std::str::FromStr;

/// `value` with an SI prefix: `598 k`, `1.23 M`, `0.5`.
pub(crate) fn si(value: f64) -> String {
    scaled(value, ["G", "M", "k"]).unwrap_or_else(|| significant(value))
}

/// `value` in the largest of these units of a thousand million, a million and a thousand that it has one of.
fn scaled(value: f64, units: [&str; 3]) -> Option<String> {
    let mut scales = [1e9, 1e6, 1e3].into_iter().zip(units);
    let (factor, unit) = scales.find(|(factor, _)| value.abs() >= factor * 0.9995)?;
    Some(format!("{} {unit}", significant(value / factor)))
}

/// Four digits near 1, where the third one matters; three elsewhere, and zeros rather than a prefix: `3650`.
pub(crate) fn factor(value: f64) -> String {
    if (0.9..1.1).contains(&value) {
        return format!("{value:.3}");
    }
    if (999.5..99_950.0).contains(&value) {
        let digit = 10f64.powf(value.log10().floor() - 2.0);
        return format!("{:.0}", (value / digit).round() * digit);
    }
    si(value).replace(' ', "")
}

/// A count: exact below 1000, three digits and a prefix above.
pub(crate) fn count(value: u64) -> String {
    if value < 1000 { value.to_string() } else { si(value as f64) }
}

/// How the names of those lock events begin that are times, summed in nanoseconds.
pub(crate) const LATENCIES: &str = "_latency_";

/// A lock event as people read it: a time of those that are times, else a count.
pub(crate) fn event(name: &str, value: f64) -> String {
    if name.contains(LATENCIES) { time_ns(value) } else { si(value) }
}

/// A time in nanoseconds with the unit that suits it: `1.05 us`, `33 ms`.
pub(crate) fn time_ns(ns: f64) -> String {
    scaled(ns, ["s", "ms", "us"]).unwrap_or_else(|| format!("{} ns", significant(ns)))
}

/// A length of time as one waits for it: `45 s`, `2 min 5 s`.
pub(crate) fn patience(seconds: f64) -> String {
    let seconds = seconds.max(0.0).round() as u64;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s} s"),
        (0, m, s) => format!("{m} min {s} s"),
        (h, m, _) => format!("{h} h {m} min"),
    }
}

/// A figure without the zeros after its decimal point, for the ticks of a scale: `1.00 k` becomes `1 k`.
pub(crate) fn short(figure: &str) -> String {
    let is_of_unit = |letter: char| !letter.is_ascii_digit() && !['.', '-'].contains(&letter);
    let (number, unit) = figure.split_at(figure.find(is_of_unit).unwrap_or(figure.len()));
    match number.contains('.') {
        true => format!("{}{unit}", number.trim_end_matches('0').trim_end_matches('.')),
        false => figure.into(),
    }
}

/// A share as a percentage, in three significant digits.
pub(crate) fn percent(share: f64) -> String {
    format!("{} %", significant(share * 100.0))
}

/// A share above 0, written as a percentage.
pub(crate) fn percentage(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').ok_or("write a percentage, such as 2%")?;
    match number.trim().parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent < 1000.0 => Ok(percent / 100.0),
        _ => Err(format!("'{text}' is no percentage above 0: write it as 2%")),
    }
}

/// A share above 0 that is not all, written as a percentage.
pub(crate) fn part(text: &str) -> Result<f64, String> {
    match percentage(text)? {
        share if share < 1.0 => Ok(share),
        _ => Err(format!("'{text}' is not below 100%")),
    }
}

/// Three significant digits, no exponent.
pub(crate) fn significant(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return if value == 0.0 { "0".into() } else { value.to_string() };
    }
    let magnitude = value.abs().log10().floor() as i32;
    let decimals = (2 - magnitude).clamp(0, 12) as usize;
    let text = format!("{value:.decimals$}");
    // 9.996 rounds to 10.00: one digit too many.
    let digits = text.chars().filter(char::is_ascii_digit).skip_while(|c| *c == '0').count();
    if digits > 3 && decimals > 0 { format!("{value:.*}", decimals - 1) } else { text }
}

/// An amount of memory that was written with its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemorySize {
    pub(crate) bytes: u64,
}

/// Units, long and short, with their length in bytes, largest first. (MB is a million bytes to some: it is refused.)
const UNITS: [(&str, &str, u64); 3] = [("GiB", "G", 1 << 30), ("MiB", "M", 1 << 20), ("KiB", "K", 1 << 10)];

impl FromStr for MemorySize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let example = "write a whole number and a unit, such as 64MiB";
        let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
        let Some((_, _, unit_bytes)) =
            UNITS.iter().find(|(long, short, _)| [*long, *short].contains(&unit.trim_start()))
        else {
            return Err(format!("'{text}' has no unit of KiB, MiB or GiB, in short K, M or G: {example}"));
        };
        let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(*unit_bytes));
        bytes.map(|bytes| Self { bytes }).ok_or_else(|| format!("'{text}' is no amount of memory: {example}"))
    }
}

impl fmt::Display for MemorySize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, _, unit_bytes) =
            UNITS.iter().find(|(.., unit)| self.bytes.is_multiple_of(*unit)).unwrap_or(&UNITS[2]);
        write!(f, "{}{name}", self.bytes / unit_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_the_digits_and_the_unit_that_suit_them() {
        assert_eq!([0.0, 0.0123, 0.9996, 9.996, 12.34].map(si), ["0", "0.0123", "1.00", "10.0", "12.3"]);
        assert_eq!([999.6, 1e3, 598_412.0, 1_234_567.0].map(si), ["1.00 k", "1.00 k", "598 k", "1.23 M"]);
        let ticks = ["1.00 k", "0.100", "10.0 us", "100", "2.50 M"].map(short);
        assert_eq!(ticks, ["1 k", "0.1", "10 us", "100", "2.5 M"]);
        // Factors near 1 have another digit, and large factors are written out.
        assert_eq!([0.9996, 1.0449, 1.234, 0.0447].map(factor), ["1.000", "1.045", "1.23", "0.0447"]);
        assert_eq!([999.6, 3_652.0, 22_249.0, 222e3].map(factor), ["1000", "3650", "22200", "222k"]);
        assert_eq!([0, 999, 12_345].map(count), ["0", "999", "12.3 k"]);
        assert_eq!([15.0, 1_049.0, 33e6, 2e9].map(time_ns), ["15.0 ns", "1.05 us", "33.0 ms", "2.00 s"]);
        assert_eq!([44.6, 125.0, 3720.0].map(patience), ["45 s", "2 min 5 s", "1 h 2 min"]);
    }
}
