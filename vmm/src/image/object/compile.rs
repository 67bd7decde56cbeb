//! How a lock's source becomes an object. The build makes the lab's own arms by the same commands.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

/// Flags that the contract asks of a compiler for C, as include/haltkick.h says.
const C_FLAGS: [&str; 5] = ["-O2", "-ffreestanding", "-mgeneral-regs-only", "-mno-red-zone", "-fno-pic"];
/// Flags that it asks of rustc, as include/haltkick.rs says. The object is a static archive.
const RUST_FLAGS: [&str; 11] = [
    "--edition",
    "2024",
    "-O",
    "--target",
    "x86_64-unknown-none",
    "--crate-type",
    "staticlib",
    "-C",
    "panic=abort",
    "-C",
    "relocation-model=static",
];

/// Language of a source file, by its name's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Language {
    C,
    Rust,
}

/// Returns the language of a source; `None` for what is no source.
pub(crate) fn language(path: &Path) -> Option<Language> {
    match path.extension()?.to_str()? {
        "c" | "S" | "s" => Some(Language::C),
        "rs" => Some(Language::Rust),
        _ => None,
    }
}

/// Returns the command that compiles `source` to `object`, with debug information, where `headers` has haltkick.h. `CC` and `RUSTC` name
/// other compilers; `CFLAGS` come behind the flags here, and so win.
pub(crate) fn command(language: Language, source: &Path, headers: &Path, object: &Path) -> Command {
    let words = |name: &str| std::env::var(name).unwrap_or_default();
    let (compiler, usual) = match language {
        Language::C => (words("CC"), "cc"),
        Language::Rust => (words("RUSTC"), "rustc"),
    };
    let mut compiler = compiler.split_whitespace().map(OsString::from);
    let mut command = Command::new(compiler.next().unwrap_or_else(|| usual.into()));
    command.args(compiler);
    match language {
        Language::C => {
            command.args(C_FLAGS).args(["-g", "-Wall", "-c"]).arg("-I").arg(headers);
            command.args(words("CFLAGS").split_whitespace());
        }
        Language::Rust => _ = command.args(RUST_FLAGS).arg("-g"),
    }
    command.arg(source).arg("-o").arg(object);
    command
}
