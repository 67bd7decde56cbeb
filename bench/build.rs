//! Hands the commit and the compiler to the program, so that results can name them.

use std::process::Command;

fn main() {
    // Files in which a commit or an edit changes the answer. Not all of `guest`: see vmm/build.rs.
    let edited =
        ["guest/src", "guest/grants/src", "guest/locks/src", "guest/mm/src", "hypercalls/src", "vmm/src"];
    for path in edited.map(|path| format!("../{path}")).iter().map(String::as_str).chain(["src"]) {
        println!("cargo::rerun-if-changed={path}");
    }
    // Asked of git, for in a worktree they are elsewhere: a path that does not exist would compile this crate each time.
    for name in ["HEAD", "refs/heads"] {
        if let Some(path) = first_line("git", &["rev-parse", "--path-format=absolute", "--git-path", name]) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    let rustc = std::env::var("RUSTC").expect("cargo sets RUSTC");
    export("HALTKICK_RUSTC", first_line(&rustc, &["--version"]));
    export("HALTKICK_GIT_COMMIT", first_line("git", &["describe", "--always", "--dirty", "--abbrev=12"]));
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
