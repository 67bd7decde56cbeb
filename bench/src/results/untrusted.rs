//! Checks of what is read back from files of results, which may come from anywhere.

use serde_json::Value;

use crate::text::output::clean as clean_text;

/// The value that a text in JSON has. Names, titles and reasons in it go to terminals, so none keeps a control character but the ends
/// of lines.
///
/// # Errors
/// Where the text is no JSON.
pub(crate) fn json(text: &str) -> serde_json::Result<Value> {
    let mut value = serde_json::from_str(text)?;
    clean(&mut value);
    Ok(value)
}

fn clean(value: &mut Value) {
    match value {
        Value::String(text) if !is_clean(text) => *text = clean_text(text),
        Value::Array(values) => values.iter_mut().for_each(clean),
        Value::Object(fields) => {
            fields.values_mut().for_each(clean);
            if !fields.keys().all(|name| is_clean(name)) {
                *fields = std::mem::take(fields)
                    .into_iter()
                    .map(|(name, value)| (clean_text(&name), value))
                    .collect();
            }
        }
        _ => {}
    }
}

/// Control characters are those below 0x20, and 0x7f to 0x9f, of which UTF-8 begins the bytes with 0xc2. Hardly any text of a file
/// has a byte of either kind, and it is the bytes that are looked at fast.
fn is_clean(text: &str) -> bool {
    !text.bytes().any(|byte| byte.is_ascii_control() || byte == 0xc2) || !text.contains(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_control_character_comes_out_of_a_file_but_ends_of_lines() {
        let text = r#"{"a\u001bb": ["\u0007", {"c": "one\ntwo\u009b31m"}, "x\u007fy"], "d": 18446744073709551615, "e": "1 µs"}"#;
        let value = json(text).unwrap().to_string();
        let whole = ["\\u001b", "\\u0007", "\u{9b}", "\u{7f}"].iter().all(|control| !value.contains(control));
        assert!(whole && value.contains("one\\ntwo") && value.contains("18446744073709551615"), "{value}");
        assert!(value.contains("1 µs") && value.starts_with("{\"a\u{fffd}b\":"), "{value}");
    }
}
