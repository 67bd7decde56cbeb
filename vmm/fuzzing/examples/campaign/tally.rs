//! The counts of all calls.

use std::collections::BTreeMap;
use std::path::Path;
use std::{fmt, fs, io};

use crate::fuzzer::Done;

/// By target: executions, seconds, and the edges that the last call reached.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Tally(BTreeMap<String, (u64, f64, u64)>);

impl Tally {
    /// Reads the file, if there is one.
    pub(crate) fn read(path: &Path) -> io::Result<Self> {
        match fs::read_to_string(path) {
            Ok(text) => Self::parse(&text)
                .ok_or_else(|| io::Error::other(format!("{}: is no tally of this program", path.display()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let row = |line: &str| {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let [target, executions, seconds, edges] = words[..] else { return None };
            let counts = (executions.parse().ok()?, seconds.parse().ok()?, edges.parse().ok()?);
            Some((target.to_owned(), counts))
        };
        text.lines().map(row).collect::<Option<_>>().map(Self)
    }

    fn text(&self) -> String {
        let row = |(target, (executions, seconds, edges)): (&String, &(u64, f64, u64))| {
            format!("{target} {executions} {seconds:.1} {edges}\n")
        };
        self.0.iter().map(row).collect()
    }

    /// Keeps it: whole, or as it was.
    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        let new = path.with_extension("tally.new");
        fs::write(&new, self.text())?;
        fs::rename(new, path)
    }

    pub(crate) fn add(&mut self, target: &str, done: &Done) {
        let row = self.0.entry(target.to_owned()).or_default();
        *row = (row.0 + done.executions, row.1 + done.seconds, row.2.max(done.edges));
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| target | executions | per second | edges |\n| --- | --- | --- | --- |")?;
        for (target, (executions, seconds, edges)) in &self.0 {
            let rate = *executions as f64 / seconds.max(1e-3);
            writeln!(f, "| `{target}` | {executions} | {rate:.0} | {edges} |")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_go_on_from_one_call_to_the_next() {
        let mut first = Tally::default();
        first.add("image", &Done { executions: 7, seconds: 2.0, edges: 30, held: true });
        let mut second = Tally::parse(&first.text()).expect("it was just written");
        assert_eq!(second, first);
        second.add("image", &Done { executions: 13, seconds: 2.0, edges: 20, held: false });
        second.add("shared", &Done { executions: 1, seconds: 0.0, edges: 2, held: true });
        let table = second.to_string();
        assert!(table.contains("| `image` | 20 | 5 | 30 |\n| `shared` | 1 | 1000 | 2 |"), "{table}");
    }

    #[test]
    fn a_file_that_is_no_tally_is_refused() {
        assert_eq!(Tally::parse("image 7 2.0\n"), None);
        assert_eq!(Tally::parse("image seven 2.0 30\n"), None);
    }
}
