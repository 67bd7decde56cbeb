//! Values outside of their range.

/// Says the range where `value` is outside.
pub(super) fn in_range<T: PartialOrd + Default>(
    value: &T,
    least: &T,
    most: &T,
    show: impl Fn(&T) -> String,
) -> Result<(), String> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    let (value, most) = (show(value), show(most));
    Err(match *least == T::default() {
        true => format!("{value} is out of range: {most} at most"),
        false => format!("{value} is out of range: {} to {most}", show(least)),
    })
}
