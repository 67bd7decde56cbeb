//! `--fold governor/100ms/2%/5%`: on which vCPUs a guest runs its tasks.

use std::fmt;
use std::str::FromStr;

use haltkick_vmm::{Fold, Governor, Span};

/// How a guest folds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FoldChoice(pub(crate) Fold);

impl FromStr for FoldChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split('/').map(str::trim);
        let fold = match parts.next() {
            Some("off") => Fold::Off,
            Some("oracle") => Fold::Oracle,
            Some("governor") => {
                let mut governor = Governor::LINUX;
                if let Some(interval) = parts.next() {
                    governor.interval = interval.parse::<Span>()?.0;
                }
                if let Some(low) = parts.next() {
                    let high =
                        parts.next().ok_or("a low threshold needs a high one: governor/100ms/2%/5%")?;
                    (governor.low, governor.high) = (hundredths(low)?, hundredths(high)?);
                }
                Fold::Governor(governor)
            }
            _ => return Err(wrong(text)),
        };
        match parts.next() {
            None => Ok(Self(fold)),
            Some(_) => Err(wrong(text)),
        }
    }
}

fn wrong(text: &str) -> String {
    format!("'{text}' is no way to fold: write off, oracle, governor, or governor/INTERVAL/LOW%/HIGH%")
}

/// Hundredths of a percent.
fn hundredths(text: &str) -> Result<u32, String> {
    let percent = text.strip_suffix('%').and_then(|percent| percent.trim().parse::<f64>().ok());
    match percent.filter(|percent| (0.0..=100.0).contains(percent)) {
        Some(percent) => Ok((percent * 100.0).round() as u32),
        None => Err(format!("'{text}' is no threshold: write a share of 0% to 100%")),
    }
}

impl fmt::Display for FoldChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Fold::Off => f.write_str("off"),
            Fold::Oracle => f.write_str("oracle"),
            Fold::Governor(Governor { interval, low, high }) => {
                let [low, high] = [low, high].map(|hundredths| f64::from(hundredths) / 100.0);
                write!(f, "governor/{}/{low}%/{high}%", Span(interval))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_way_to_fold_says_what_to_write() {
        let said = |text: &str| text.parse::<FoldChoice>().unwrap_err();
        for text in ["on", "off/20ms", "governor/20ms/2%/5%/1", ""] {
            assert!(said(text).contains("governor/INTERVAL/LOW%/HIGH%"), "{}", said(text));
        }
        assert!(said("governor/20ms/2%").contains("needs a high one"));
        assert!(said("governor/20ms/2/5%").contains("'2' is no threshold"));
    }
}
