//! What is read back from files of results, which may be anybody's.

use haltkick_vmm::printable;
use serde_json::Value;

/// The value that a text in JSON has. Names, titles and reasons in it go to terminals, so none keeps a control character but the ends
/// of lines.
///
/// # Errors
/// Where the text is no JSON.
pub(crate) fn json(text: &str) -> serde_json::Result<Value> {
    serde_json::from_str(text).map(clean)
}

fn clean(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(lines(text)),
        Value::Array(values) => Value::Array(values.into_iter().map(clean).collect()),
        Value::Object(fields) => {
            Value::Object(fields.into_iter().map(|(name, value)| (lines(name), clean(value))).collect())
        }
        plain => plain,
    }
}

fn lines(text: String) -> String {
    if !text.contains(char::is_control) {
        return text;
    }
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_control_character_comes_out_of_a_file_but_ends_of_lines() {
        let text = r#"{"a\u001bb": ["\u0007", {"c": "one\ntwo\u009b31m"}], "d": 18446744073709551615}"#;
        let value = json(text).unwrap().to_string();
        let whole = ["\\u001b", "\\u0007", "\u{9b}"].iter().all(|control| !value.contains(control));
        assert!(whole && value.contains("one\\ntwo") && value.contains("18446744073709551615"), "{value}");
    }
}
