//! libFuzzer by cargo-fuzz: what it is told, and what it says.

use std::io::{self, BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

/// The longest input of each target that needs more than others: the shorter, the more executions. Texts are long enough for what
/// is built in.
const LONGEST: [(&str, u32); 8] = [
    ("scheduler", 1024),
    ("experiment", 4096),
    ("machine", 2048),
    ("schedule", 2048),
    ("record", 64),
    ("kernel", 512),
    ("outcome", 512),
    ("shared", 512),
];
const LONGEST_OF_OTHERS: u32 = 256;
/// An execution that takes longer has failed. Busy hosts take their time.
const TIMEOUT_S: u32 = 60;

/// Result of some time with a target.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Done {
    pub(crate) executions: u64,
    pub(crate) seconds: f64,
    /// Edges of code that all inputs together reach.
    pub(crate) edges: u64,
    /// No execution failed.
    pub(crate) held: bool,
}

fn cargo_fuzz() -> Command {
    let mut command = Command::new("cargo");
    // The toolchain of the cargo which started this program.
    command.env_remove("RUSTUP_TOOLCHAIN").args(["+nightly", "fuzz"]);
    command
}

/// All that there are.
pub(crate) fn targets() -> io::Result<Vec<String>> {
    let listed = cargo_fuzz().arg("list").output()?;
    if !listed.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&listed.stderr).into_owned()));
    }
    Ok(String::from_utf8_lossy(&listed.stdout).lines().map(str::to_owned).collect())
}

/// Runs one target for `seconds`.
pub(crate) fn run(target: &str, seconds: u64) -> io::Result<Done> {
    let longest = LONGEST.iter().find(|(name, _)| *name == target).map_or(LONGEST_OF_OTHERS, |row| row.1);
    let mut child = cargo_fuzz()
        .args(["run", "--sanitizer", "none", "--no-trace-compares", target, "--"])
        .arg(format!("-max_len={longest}"))
        // The effect of these two on the choice of the next input costs a tenth of the executions.
        .args(["-entropic=0", "-reduce_inputs=0"])
        .arg(format!("-timeout={TIMEOUT_S}"))
        .arg(format!("-max_total_time={seconds}"))
        .stderr(Stdio::piped())
        .spawn()?;
    let mut done = Done::default();
    let mut began = Instant::now();
    for line in BufReader::new(child.stderr.take().expect("it is piped")).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        // The compiler's time does not count for the target.
        if line.starts_with("INFO: Running with") {
            began = Instant::now();
        }
        if !done.hear(&line) {
            eprintln!("{line}");
        }
    }
    done.seconds = began.elapsed().as_secs_f64();
    done.held = child.wait()?.success();
    eprintln!("{target}: {} executions, {} edges", done.executions, done.edges);
    Ok(done)
}

impl Done {
    /// One line of libFuzzer's: `#524288 pulse cov: 1312 ft: 2044 corp: ...`. Whether it is one.
    fn hear(&mut self, line: &str) -> bool {
        let Some(said) = line.strip_prefix('#') else { return false };
        let mut words = said.split_ascii_whitespace();
        let Some(executions) = words.next().and_then(|word| word.parse().ok()) else { return false };
        self.executions = executions;
        let is_edges = |word: &&str| *word == "cov:";
        if let Some(edges) = words.skip_while(|word| !is_edges(word)).nth(1) {
            self.edges = edges.parse().unwrap_or(self.edges);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libfuzzers_lines_tell_executions_and_edges_and_others_are_left_alone() {
        let mut done = Done::default();
        assert!(done.hear("#2\tINITED cov: 149 ft: 150 corp: 1/1b exec/s: 0 rss: 40Mb"));
        assert!(done.hear("#73353\tDONE   cov: 1312 ft: 5100 corp: 431/9Kb lim: 1024 exec/s: 152 rss: 60Mb"));
        assert_eq!((done.executions, done.edges), (73353, 1312));
        assert!(!done.hear("thread 'main' panicked at #1"));
        assert!(!done.hear("#a frame"));
        assert_eq!((done.executions, done.edges), (73353, 1312));
    }
}
