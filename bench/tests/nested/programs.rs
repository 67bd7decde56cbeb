//! The test programs: built by cargo as `cargo test --workspace` builds them, and asked for their tests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::group::{Group, told};

/// Paths of the test programs, by target, and of the `haltkick` command, which some of them start.
pub(crate) struct Programs {
    pub(crate) tests: BTreeMap<String, PathBuf>,
    pub(crate) haltkick: PathBuf,
}

/// Cargo's message about each thing that it has built; other messages are ignored.
#[derive(Deserialize)]
struct Message {
    target: Option<Target>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

impl Programs {
    /// Builds the programs of these groups, in `root`. The suite has copies of its own in `work`, so that a build
    /// meanwhile does not change the programs that it runs.
    pub(crate) fn build(root: &Path, work: &Path, groups: &[Group]) -> Result<Self, String> {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        // The packages that `just test-host` names, so that nothing is built twice with other features.
        cargo.args(["test", "--no-run", "--workspace", "--exclude", "haltkick-guest"]);
        cargo.args(["--message-format", "json-render-diagnostics", "--quiet"]).current_dir(root);
        for group in groups {
            cargo.args(["--test", group.target]);
        }
        let mut tests = BTreeMap::new();
        let mut haltkick = None;
        for line in told(cargo.stdin(Stdio::null()))?.lines() {
            let Ok(Message { target: Some(target), executable: Some(executable) }) =
                serde_json::from_str(line)
            else {
                continue;
            };
            match target.kind.first().map(String::as_str) {
                Some("test") => {
                    let copy = work.join(&target.name);
                    let copied = std::fs::copy(&executable, &copy);
                    copied.map_err(|error| format!("failed to copy {}: {error}", executable.display()))?;
                    tests.insert(target.name, copy);
                }
                Some("bin") if target.name == "haltkick" => haltkick = Some(executable),
                _ => {}
            }
        }
        Ok(Self { tests, haltkick: haltkick.ok_or("cargo has built no haltkick")? })
    }

    pub(crate) fn of(&self, group: &Group) -> Result<&Path, String> {
        let program = self.tests.get(group.target).map(PathBuf::as_path);
        program.ok_or_else(|| format!("cargo has built no test {}", group.target))
    }

    /// The names of a group's tests, in the order in which the program has them.
    pub(crate) fn tests(&self, group: &Group) -> Result<Vec<String>, String> {
        let mut program = Command::new(self.of(group)?);
        program.arg("--list").env("HALTKICK_NESTED", "1").env_remove("HALTKICK_TESTS");
        let list = told(program.stdin(Stdio::null()).stderr(Stdio::null()))?;
        let tests = list.lines().filter_map(|line| line.strip_suffix(": test"));
        Ok(tests.filter(|test| (group.takes)(test)).map(String::from).collect())
    }
}
