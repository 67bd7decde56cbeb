//! Shares as people write them: a percentage with its sign.

/// A share above 0, written as a percentage.
pub(crate) fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').ok_or("write a percentage, such as 2%")?;
    match number.trim().parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent < 1000.0 => Ok(percent / 100.0),
        _ => Err(format!("'{text}' is no percentage above 0: write it as 2%")),
    }
}

/// A share above 0 that is not all, written as a percentage.
pub(crate) fn part(text: &str) -> Result<f64, String> {
    match percent(text)? {
        share if share < 1.0 => Ok(share),
        _ => Err(format!("'{text}' is not below 100%")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentage_bears_its_sign_and_a_part_is_not_all() {
        assert_eq!((percent("2%"), part("99%"), percent("150%")), (Ok(0.02), Ok(0.99), Ok(1.5)));
        for text in ["2", "%", "-1%", "0%", "x%"] {
            assert!(percent(text).is_err() && part(text).is_err(), "{text} was accepted");
        }
        assert!(part("100%").is_err() && part("150%").is_err());
    }
}
