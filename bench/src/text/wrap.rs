//! Text in lines that fit a terminal.

use std::borrow::Cow;

use textwrap::{Options, WordSeparator, WordSplitter, WrapAlgorithm};

/// Widest line.
pub(crate) const WIDTH: usize = 100;

/// Words in lines of at most [`WIDTH`] columns, those after the first indented.
pub(crate) fn wrap(words: &str, indent: usize) -> Vec<String> {
    lines(words, 0, indent)
}

/// As [`wrap`], the first line indented, too.
pub(crate) fn lines(words: &str, first_indent: usize, indent: usize) -> Vec<String> {
    let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
    let (first_indent, indent) = (" ".repeat(first_indent), " ".repeat(indent));
    // Words stay whole: a path or a command is copied from here.
    let options = Options::new(WIDTH)
        .initial_indent(&first_indent)
        .subsequent_indent(&indent)
        .break_words(false)
        .word_separator(WordSeparator::AsciiSpace)
        .word_splitter(WordSplitter::NoHyphenation)
        .wrap_algorithm(WrapAlgorithm::FirstFit);
    textwrap::wrap(&words, options).into_iter().map(Cow::into_owned).collect()
}
