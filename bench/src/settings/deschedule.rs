//! `--deschedule holder,rate=100,for=2ms,at=handed-over`: which vCPUs to stop on purpose, as people write it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::text::nearest;
use haltkick_vmm::{Deschedule, HowOften, Span, Target};

/// A policy as it was written, or `none`, so that an arm can go without.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Policy(pub(crate) Option<Deschedule>);

/// Unless told otherwise: often enough to be seen, seldom enough to leave the guest its work.
const DEFAULT: (HowOften, Duration) = (HowOften::PerSecond(100.0), Duration::from_millis(1));

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self(None));
        }
        let mut parts = text.split(',').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let Some((_, target)) = Target::NAMES.into_iter().find(|(known, _)| *known == name) else {
            return Err(nearest::unknown_of_few("policy", name, &Target::NAMES.map(|(name, _)| name)));
        };
        let (mut how_often, mut length, mut at) = (None, None, None);
        for part in parts {
            let Some((key, value)) = part.split_once('=') else {
                return Err(format!("'{part}' is no option: write rate=N, prob=P, for=TIME or at=POINT"));
            };
            let given_before = match key {
                "rate" => how_often.replace(HowOften::PerSecond(number(value, 1e6)?)).is_some(),
                "prob" => how_often.replace(HowOften::Probability(number(value, 1.0)?)).is_some(),
                "for" => length.replace(value.parse::<Span>()?.0).is_some(),
                "at" => at.replace(value.to_owned()).is_some(),
                _ => return Err(nearest::unknown("option", key, &["rate", "prob", "for", "at"])),
            };
            if given_before {
                return Err(format!("'{part}' says a second time how often, for how long, or where"));
            }
        }
        let (often, long) = DEFAULT;
        let (how_often, length) = (how_often.unwrap_or(often), length.unwrap_or(long));
        Ok(Self(Some(Deschedule { target, how_often, length, at })))
    }
}

/// A number above 0 and at most `most`.
fn number(text: &str, most: f64) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value <= most => Ok(value),
        _ => Err(format!("'{text}' is no number above 0 and at most {most}")),
    }
}

impl fmt::Display for Policy {
    /// In full, so that it reads back as the same.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(Deschedule { target, how_often, length, at }) = &self.0 else { return f.write_str("none") };
        let name = target.name();
        match how_often {
            HowOften::PerSecond(rate) => write!(f, "{name},rate={rate}")?,
            HowOften::Probability(chance) => write!(f, "{name},prob={chance}")?,
        }
        write!(f, ",for={}", Span(*length))?;
        at.as_ref().map_or(Ok(()), |at| write!(f, ",at={at}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_is_refused_with_what_would() {
        for (text, complaint) in [
            ("owner", "unknown policy 'owner': there is holder, head, waiter, random"),
            ("holdr", "unknown policy 'holdr': did you mean 'holder'? There is holder, head, waiter, random"),
            ("", "unknown policy '': there is holder, head, waiter, random"),
            ("holder,often", "'often' is no option: write rate=N, prob=P, for=TIME or at=POINT"),
            ("holder,rat=1", "unknown option 'rat': did you mean 'rate'?"),
            ("holder,rate=0", "'0' is no number above 0 and at most 1000000"),
            ("holder,rate=NaN", "'NaN' is no number above 0 and at most 1000000"),
            ("holder,prob=2", "'2' is no number above 0 and at most 1"),
            ("holder,for=5", "'5' has no unit: write 5ns, 5us, 5ms or 5s"),
            ("holder,rate=1,prob=1", "'prob=1' says a second time how often, for how long, or where"),
        ] {
            assert_eq!(text.parse::<Policy>().unwrap_err(), complaint, "{text}");
        }
    }
}
