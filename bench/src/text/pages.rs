//! The pages of the documentation that tables and help texts name.

/// The page on the columns and marks of a table.
pub(crate) const READING_A_TABLE: &str = "docs/reading-a-table.md";
/// The page on exit codes and messages, and what to do about them.
pub(crate) const TROUBLESHOOTING: &str = "docs/troubleshooting.md";
/// The page on what spoils measurements on large machines, and on how to prepare one.
pub(crate) const BIG_HOSTS: &str = "docs/big-hosts.md";
/// Pages that the help names, each with its subject.
pub(crate) const FOR_THE_HELP: &[(&str, &str)] = &[
    ("docs/tutorial.md", "from a first run to a finding"),
    (READING_A_TABLE, "columns, intervals and marks"),
    ("docs/experiment-files.md", "experiments of your own"),
    ("docs/measuring.md", "how figures are made, and what they are worth"),
    (TROUBLESHOOTING, "exit codes and messages, and what to do about them"),
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
