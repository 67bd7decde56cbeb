//! The page on stderr about a guest that failed.

use std::fmt::Write as _;

use haltkick_vmm::{Explanation, printable};

/// The guest's last lines, and the activity of every vCPU.
pub(crate) fn story(console: &str, explanation: Option<&Explanation>) -> String {
    const LAST_LINES: usize = 20;
    let mut story = String::new();
    let lines: Vec<_> = console.lines().collect();
    if !lines.is_empty() {
        let from = lines.len().saturating_sub(LAST_LINES);
        let _ = match from {
            0 => writeln!(story, "console of the guest:"),
            _ => writeln!(story, "console of the guest, last {LAST_LINES} lines:"),
        };
        lines[from..].iter().for_each(|line| _ = writeln!(story, "  {}", printable(line)));
        story.push('\n');
    }
    if let Some(explanation) = explanation {
        let _ = write!(story, "{explanation}");
    }
    story
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_cannot_speak_to_the_terminal() {
        assert_eq!(story("one\n\u{1b}[2Jtwo\n", None), "console of the guest:\n  one\n  \u{fffd}[2Jtwo\n\n");
    }

    #[test]
    fn of_a_long_console_the_end_is_shown() {
        let console: String = (0..100).map(|i| format!("line {i}\n")).collect();
        let told = story(&console, None);
        assert!(told.contains("last 20 lines") && told.contains("line 99") && !told.contains("line 79\n"));
    }
}
