//! Amounts of memory as people write them: a whole number and a unit.

use std::fmt;
use std::str::FromStr;

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
    fn an_amount_is_that_of_its_unit() {
        for (text, bytes) in [("64MiB", 64 << 20), ("2GiB", 2 << 30), ("100KiB", 100 << 10)] {
            assert_eq!(text.parse::<MemorySize>().unwrap().bytes, bytes);
        }
    }

    #[test]
    fn what_is_no_amount_is_refused_with_an_example() {
        for text in ["64", "64MB", "MiB", "-1MiB", "99999999999999GiB", ""] {
            assert!(text.parse::<MemorySize>().unwrap_err().contains("such as 64MiB"), "{text}");
        }
    }
}
