//! Guests that run at the same time: `--vm key=value,...` or the `[[vm]]` of a guest-set file.

use std::fmt;

pub(crate) use super::value::Vm;

impl fmt::Display for Vm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs: Vec<String> = self.pairs.iter().map(|(key, value)| format!("{key}={value}")).collect();
        f.write_str(&pairs.join(","))
    }
}

/// Returns the name of a guest without one: a, b, and so on.
pub(crate) fn default_name(index: usize) -> String {
    char::from(b'a' + (index % 26) as u8).to_string()
}
