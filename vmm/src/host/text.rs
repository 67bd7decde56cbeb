//! Text from untrusted sources, made safe for a terminal.

/// `text` without what a terminal would take for a command: control characters but for the tab, and those that change the order
/// in which the others are read. Every text of a guest and of its image passes here, once, where it comes in.
#[must_use]
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\t' || reorders(c) { '\u{fffd}' } else { c }).collect()
}

/// Unicode's bidirectional controls, and its separators of lines.
fn reorders(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_and_commands_to_a_terminal_do_not() {
        assert_eq!(printable("Grüße\tan alle: 1 µs ≤ 2"), "Grüße\tan alle: 1 µs ≤ 2");
        for command in
            ["\u{1b}[2J", "\u{9b}2J", "a\rb", "a\nb", "\u{7}", "\u{8}", "\u{7f}", "\u{202e}a", "\u{2066}"]
        {
            let shown = printable(command);
            assert!(shown.contains('\u{fffd}'), "{command:?} shows as {shown:?}");
            assert!(!shown.chars().any(|c| c.is_control() || reorders(c)), "{shown:?}");
        }
    }
}
