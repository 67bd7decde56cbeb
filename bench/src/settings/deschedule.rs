//! `--deschedule holder,rate=100,for=2ms,at=handed-over`: which vCPUs to stop on purpose, as people write it.

use std::time::Duration;

use crate::text::nearest;
use haltkick_vmm::{Deschedule, HowOften, Span, Target};

/// Unless told otherwise: often enough to be seen, seldom enough to leave the guest its work.
const DEFAULT: (HowOften, Duration) = (HowOften::PerSecond(100.0), Duration::from_millis(1));

/// A policy, or none, so that an arm can go without.
pub(crate) fn read(text: &str) -> Result<Option<Deschedule>, String> {
    if text == "none" {
        return Ok(None);
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
    Ok(Some(Deschedule { target, how_often, length, at }))
}

fn number(text: &str, most: f64) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value <= most => Ok(value),
        _ => Err(format!("'{text}' is no number above 0 and at most {most}")),
    }
}

/// Partner of [`read`]: a policy in full.
pub(crate) fn written(policy: &Deschedule) -> String {
    let Deschedule { target, how_often, length, at } = policy;
    let how_often = match how_often {
        HowOften::PerSecond(rate) => format!("rate={rate}"),
        HowOften::Probability(chance) => format!("prob={chance}"),
    };
    let at = at.as_ref().map_or(String::new(), |at| format!(",at={at}"));
    format!("{},{how_often},for={}{at}", target.name(), Span(*length))
}
