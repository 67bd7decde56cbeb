//! Permitted names of the figures that a guest says of itself.

/// How the name of a figure begins that is an event of the kernel's locks.
pub(crate) const LOCK_EVENT: &str = "lock_event.";
/// A name that is longer is none.
const LONGEST_NAME: usize = 64;

/// Whether `name` may be that of a figure.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
    if (1..=LONGEST_NAME).contains(&name.len()) && name.bytes().all(is_allowed) {
        return Ok(());
    }
    Err(format!("a name that is not 1 to {LONGEST_NAME} characters of a-z, 0-9, _ and -"))
}
