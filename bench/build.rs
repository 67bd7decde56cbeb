//! Hands the commit and the compiler to the program, so that results can name them.

use std::path::Path;
use std::process::Command;

fn main() {
    // Files in which a commit or an edit changes the answer. Not all of `guest`: see vmm/build.rs.
    let edited =
        ["guest/src", "guest/grants/src", "guest/locks/src", "guest/mm/src", "hypercalls/src", "vmm/src"];
    for path in edited.map(|path| format!("../{path}")).iter().map(String::as_str).chain(["src"]) {
        println!("cargo::rerun-if-changed={path}");
    }
    // The log of HEAD is that of this worktree alone; commits of other branches compile nothing. Without a log, all branches count.
    let moves = git_path("logs/HEAD").or_else(|| git_path("refs/heads"));
    for path in git_path("HEAD").into_iter().chain(moves) {
        println!("cargo::rerun-if-changed={path}");
    }
    let rustc = std::env::var("RUSTC").expect("cargo sets RUSTC");
    export("HALTKICK_RUSTC", first_line(&rustc, &["--version"]));
    export("HALTKICK_GIT_COMMIT", first_line("git", &["describe", "--always", "--dirty", "--abbrev=12"]));
}

/// Where git has the file `name`, which is elsewhere in a worktree; `None` if there is none, which would compile this crate each time.
fn git_path(name: &str) -> Option<String> {
    let path = first_line("git", &["rev-parse", "--path-format=absolute", "--git-path", name])?;
    Path::new(&path).exists().then_some(path)
}

fn first_line(program: &str, arguments: &[&str]) -> Option<String> {
    let output =
        Command::new(program).args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.lines().next()?.to_owned())
}

fn export(name: &str, value: Option<String>) {
    if let Some(value) = value {
        println!("cargo::rustc-env={name}={value}");
    }
}
