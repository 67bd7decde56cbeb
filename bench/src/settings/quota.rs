//! `--quota 200us/1ms+100us`: CPU time of a guest in each period; `inherited`: that of the control group that haltkick was started in.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use haltkick_vmm::{Bandwidth, Quota, Span};

/// A quota, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QuotaChoice(pub(crate) Option<Quota>);

impl FromStr for QuotaChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self(None));
        }
        if text == "inherited" {
            return Ok(Self(Some(Quota::Inherited)));
        }
        let (share, burst) = match text.split_once('+') {
            None => (text, Duration::ZERO),
            Some((share, burst)) => (share, burst.trim().parse::<Span>()?.0),
        };
        let (run, period) = share.split_once('/').ok_or_else(|| {
            format!("'{share}' is no quota: write RUN/PERIOD, such as 200us/1ms, none or inherited")
        })?;
        let [run, period] = [run, period].map(|time| time.trim().parse::<Span>());
        Ok(Self(Some(Quota::Own(Bandwidth { run: run?.0, period: period?.0, burst }))))
    }
}

impl fmt::Display for QuotaChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Bandwidth { run, period, burst } = match self.0 {
            None => return f.write_str("none"),
            Some(Quota::Inherited) => return f.write_str("inherited"),
            Some(Quota::Own(quota)) => quota,
        };
        write!(f, "{}/{}", Span(run), Span(period))?;
        if burst.is_zero() { Ok(()) } else { write!(f, "+{}", Span(burst)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_quota_says_what_to_write() {
        let said = |text: &str| text.parse::<QuotaChoice>().unwrap_err();
        assert_eq!(said("50%"), "'50%' is no quota: write RUN/PERIOD, such as 200us/1ms, none or inherited");
        assert!(said("1/10ms").contains('1') && said("1ms/").contains("a number"), "{}", said("1ms/"));
    }
}
