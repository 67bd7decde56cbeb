//! Text in lines that fit a terminal.

/// Widest line.
pub(crate) const WIDTH: usize = 100;

/// Words in lines of at most [`WIDTH`] columns, those after the first indented.
pub(crate) fn wrap(words: &str, indent: usize) -> Vec<String> {
    lines(words, 0, indent)
}

/// Words in lines of at most [`WIDTH`] columns, all of them indented.
pub(crate) fn paragraph(words: &str, indent: usize) -> Vec<String> {
    lines(words, indent, indent)
}

fn lines(words: &str, first_indent: usize, indent: usize) -> Vec<String> {
    let indent_of = |line: usize| if line == 0 { first_indent } else { indent };
    let mut lines = vec![String::new()];
    let mut width = 0;
    for word in words.split_whitespace() {
        let length = word.chars().count();
        let separator = usize::from(width > 0);
        let limit = WIDTH - indent_of(lines.len() - 1);
        if width > 0 && width + separator + length > limit {
            lines.push(String::new());
            width = 0;
        }
        if let Some(line) = lines.last_mut() {
            if width > 0 {
                line.push(' ');
                width += 1;
            }
            line.push_str(word);
            width += length;
        }
    }
    for (i, line) in lines.iter_mut().enumerate() {
        line.insert_str(0, &" ".repeat(indent_of(i)));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_is_wider_than_a_terminal_and_no_word_is_lost() {
        let words = "figure ".repeat(60);
        let lines = wrap(&words, 4);
        assert!(lines.iter().all(|line| line.chars().count() <= WIDTH), "{lines:?}");
        assert!(lines[1].starts_with("    figure"));
        assert_eq!(lines.join(" ").split_whitespace().count(), 60);
    }
}
