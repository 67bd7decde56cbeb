//! The pages of the documentation that tables and help texts name.

/// What the columns and marks of a table mean.
pub(crate) const READING_A_TABLE: &str = "docs/reading-a-table.md";
/// What to do about a message.
pub(crate) const TROUBLESHOOTING: &str = "docs/troubleshooting.md";
/// What spoils measurements on large machines, and how to prepare one.
pub(crate) const BIG_HOSTS: &str = "docs/big-hosts.md";
/// What the help names.
pub(crate) const FOR_THE_HELP: &[(&str, &str)] = &[
    ("docs/tutorial.md", "from a first run to a finding"),
    (READING_A_TABLE, "columns, intervals and marks"),
    ("docs/experiment-files.md", "experiments of your own"),
    ("docs/measuring.md", "how figures are made, and what they are worth"),
    (TROUBLESHOOTING, "messages, and what to do about them"),
    ("docs/exit-codes.md", "exit codes"),
    ("docs/glossary.md", "words"),
];

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_page_that_is_named_is_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let of_help = FOR_THE_HELP.iter().map(|(page, _)| *page);
        for page in of_help.chain([READING_A_TABLE, TROUBLESHOOTING, BIG_HOSTS]) {
            assert!(root.join(page).is_file(), "{page}");
        }
    }
}
