//! The bytes of an object: a file's own, or what a compiler makes of it. It does so each time, since that takes less than a guest takes to
//! start.
//! The lab's own objects have been made so by the build, of guest/arms ([`ARMS`]): locks with a name that is linked where it is asked for.

use std::io::{self, ErrorKind, Write as _};
use std::path::Path;

use vmm_sys_util::tempdir::TempDir;

use crate::host::input;
use crate::host::text::printable;
use crate::image::object::compile::{self, Language};

/// The header of the contract, as it was when this was built.
pub const HEADER: &str = include_str!("../../../../include/haltkick.h");

/// Most bytes of an object's file. A static archive of Rust's holds all of its core library.
const MOST_FILE_BYTES: u64 = 256 << 20;

/// Reads an object's file, or compiles it.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, String> {
    match compile::language(path) {
        Some(language) => compiled(path, language),
        None => input::read(path, MOST_FILE_BYTES).map_err(|error| format!("cannot be read: {error}")),
    }
}

/// Compiles a source file, and returns the bytes of the object. What the compiler warns of goes to the terminal.
fn compiled(path: &Path, language: Language) -> Result<Vec<u8>, String> {
    let place = std::env::temp_dir();
    let scratch = |error: io::Error| format!("cannot be compiled in {}: {error}", place.display());
    let folder = TempDir::new_with_prefix(place.join("haltkick-compile-"));
    let folder = folder.map_err(|error| scratch(error.into()))?;
    let object = folder.as_path().join("lock.o");
    std::fs::write(folder.as_path().join("haltkick.h"), HEADER).map_err(scratch)?;
    if !path.is_file() {
        return Err("cannot be read: there is no such file".into());
    }
    let mut command = compile::command(language, path, folder.as_path(), &object);
    let compiler = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| lacking(&compiler, language, &error))?;
    let words: String =
        String::from_utf8_lossy(&output.stderr).lines().map(|line| printable(line) + "\n").collect();
    if !output.status.success() {
        let target = match language {
            Language::Rust if words.contains("E0463") => {
                "\nrustc has no x86_64-unknown-none here: run `rustup target add x86_64-unknown-none`"
            }
            _ => "",
        };
        return Err(format!("is not compiled by {compiler}:\n{}{target}", words.trim_end()));
    }
    // A failure to write loses the compiler's warnings alone.
    _ = io::stderr().write_all(words.as_bytes());
    input::read(&object, MOST_FILE_BYTES)
        .map_err(|error| format!("was compiled, and the object cannot be read: {error}"))
}

fn lacking(compiler: &str, language: Language, error: &io::Error) -> String {
    let (package, name) = match language {
        Language::C => ("`apt install gcc` or your distribution's like", "CC"),
        Language::Rust => ("https://rustup.rs", "RUSTC"),
    };
    match error.kind() {
        ErrorKind::NotFound => format!(
            "needs a compiler, and there is no {compiler}: get it with {package}, name another one in {name}, or give the object"
        ),
        _ => format!("cannot be compiled: {compiler} cannot be run: {error}"),
    }
}

/// A lock object that is named like a lock of the image.
#[derive(Debug)]
pub struct Arm {
    /// Name on the command line: that of its source without the end.
    pub name: &'static str,
    /// One line of explanation: the first of its source.
    pub summary: &'static str,
    pub(crate) object: &'static [u8],
}

/// All of them, by name.
pub static ARMS: &[Arm] = include!(concat!(env!("OUT_DIR"), "/arms.rs"));
