//! Builds the guest image for `x86_64-unknown-none` and hands its path to the crate, which embeds it.

use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "src/image/object/compile.rs"]
mod compile;

const TARGET: &str = "x86_64-unknown-none";
/// Files that go into this crate besides the image's sources, which Cargo names.
const INPUTS: [&str; 6] = [
    "src/image/small.S",
    "../include/haltkick.h",
    "../include/haltkick.rs",
    "../guest/arms",
    "../Cargo.toml",
    "../Cargo.lock",
];
/// With this in the environment the guest keeps its assertions and overflow checks.
const CHECKED: &str = "HALTKICK_GUEST_CHECKED";

fn main() {
    // Both paths come from the environment, never from the machine that compiled this program: a copied target
    // directory must not watch, or build, the tree that it was copied from.
    let manifest_dir = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    let root = Path::new(&manifest_dir).parent().expect("vmm/ lies in the workspace").to_owned();
    for input in INPUTS {
        println!("cargo::rerun-if-changed={input}");
    }

    println!("cargo::rerun-if-env-changed={CHECKED}");
    let profile = if std::env::var_os(CHECKED).is_some() { "guest-checked" } else { "guest" };

    let out_dir = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    // A target directory of its own: the outer cargo holds the lock of the usual one while this runs.
    let target_dir = out_dir.join("guest");
    let mut cargo = Command::new(std::env::var_os("CARGO").expect("cargo sets CARGO"));
    cargo
        .current_dir(&root)
        .args(["build", "--locked", "--package", "haltkick-guest", "--profile", profile, "--target", TARGET])
        .arg("--target-dir")
        .arg(&target_dir)
        // Flags and wrappers of the outer build (clippy, a model checker's cfg) are not for the guest.
        .env("CARGO_ENCODED_RUSTFLAGS", flags(&root))
        .env_remove("RUSTFLAGS")
        .env_remove("RUSTC_WRAPPER")
        .env_remove("RUSTC_WORKSPACE_WRAPPER");
    let output = cargo.output().expect("cargo can be run, since it runs this");
    let stderr = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        // One line says what to do; what the inner cargo says of it would bury that.
        if stderr.contains("can't find crate for `core`") {
            println!(
                "cargo::error=the guest needs the target {TARGET}: run `rustup target add {TARGET}`, then this again"
            );
            std::process::exit(1);
        }
        panic!("building the guest failed:\n{stderr}");
    }
    let image = target_dir.join(TARGET).join(profile).join("haltkick-guest");
    println!("cargo::rustc-env=HALTKICK_GUEST_IMAGE={}", image.display());
    let made_of = made_of(&root, &image);
    std::fs::write(out_dir.join("sources.rs"), sources(&root, &out_dir, &made_of))
        .expect("the folder that cargo gives can be written");
    std::fs::write(out_dir.join("arms.rs"), arms(&root, &out_dir))
        .expect("the folder that cargo gives can be written");
    // For tests; it takes no time.
    compile(&root, &root.join("vmm/src/image/small.S"), &out_dir.join("small.o"));
}

/// The files that the image was made of, by Cargo's list next to it (`image: source source ...`). Cargo watches them and the manifests of
/// their crates. Not the whole folder `guest`: an edit of a test or a page there would compile this crate, and all that use it, anew.
fn made_of(root: &Path, image: &Path) -> Vec<String> {
    let list = std::fs::read_to_string(image.with_extension("d")).expect("Cargo lists the image's sources");
    // As Cargo writes it, which has come there by links, and spaces.
    let root = root.canonicalize().expect("it has been built there").display().to_string();
    let before_each = format!(" {}/", root.replace(' ', "\\ "));
    let sources: Vec<_> = list.trim_end().split(&before_each).skip(1).map(str::to_owned).collect();
    assert!(!sources.is_empty(), "the image was made of sources in {root}: {list}");
    for source in &sources {
        println!("cargo::rerun-if-changed=../{source}");
        if let Some((folder, _)) = source.split_once("/src/") {
            println!("cargo::rerun-if-changed=../{folder}/Cargo.toml");
        }
    }
    sources
}

/// The guest's flags: a static image below 2 GiB, symbols that name the lock that a function was compiled for, and source files named
/// from the root of the workspace, wherever that was built.
fn flags(root: &Path) -> String {
    [
        "-Crelocation-model=static",
        "-Csymbol-mangling-version=v0",
        // Every function begins a cache line, so that what one costs does not depend on those before it.
        "-Cllvm-args=-align-all-functions=6",
        // Debugging data are three quarters of the file, and a sixth of them remains; without -O2 the linker compresses in haste.
        "-Clink-arg=--compress-debug-sections=zlib",
        "-Clink-arg=-O2",
        &format!("--remap-path-prefix={}/=", root.display()),
        // Crates of others, wherever cargo keeps them.
        &format!("--remap-path-prefix={}=/cargo", cargo_home().display()),
    ]
    .join("\u{1f}")
}

/// The lock objects of guest/arms, compiled: a slice of rows.
fn arms(root: &Path, out_dir: &Path) -> String {
    let arm = |source: PathBuf| {
        let name = source.file_stem().expect("a source has a name").to_string_lossy();
        let object = out_dir.join(format!("{name}.o"));
        compile(root, &source, &object)?;
        let text = std::fs::read_to_string(&source).expect("the sources can be read");
        let first = text.lines().next().unwrap_or_default();
        let summary = first.trim_start_matches(['/', '*', '!', ' ']).trim_end_matches(['*', '/', ' ']);
        let object = object.display().to_string();
        Some(format!("Arm {{ name: {name:?}, summary: {summary:?}, object: include_bytes!({object:?}) }},\n"))
    };
    format!("&[\n{}]", files_of_arms(root).into_iter().filter_map(arm).collect::<String>())
}

fn files_of_arms(root: &Path) -> Vec<PathBuf> {
    let folder = std::fs::read_dir(root.join("guest/arms")).expect("the sources can be read");
    let mut files: Vec<_> = folder.map(|entry| entry.expect("the sources can be read").path()).collect();
    files.sort();
    files
}

/// Compiles a lock's source in the workspace; `None`: it is no source.
fn compile(root: &Path, source: &Path, object: &Path) -> Option<()> {
    let language = compile::language(source)?;
    // From the root, so that debugging data name sources alike wherever that lies.
    let relative = source.strip_prefix(root).expect("it lies in there");
    let mut command = compile::command(language, relative, Path::new("include"), object);
    command.current_dir(root);
    match language {
        compile::Language::C => command.arg(format!("-ffile-prefix-map={}=/", root.display())),
        compile::Language::Rust => command.arg(format!("--remap-path-prefix={}=/", root.display())),
    };
    let compiler = command.get_program().to_string_lossy().into_owned();
    let output = command.output().unwrap_or_else(|error| panic!("{compiler} cannot be run: {error}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(())
}

/// The text of the locks' sources, compressed, by the names that the image's debugging data gives them: a slice of pairs.
fn sources(root: &Path, out_dir: &Path, made_of: &[String]) -> String {
    let of_locks = made_of.iter().filter(|source| source.starts_with("guest/locks/src/"));
    let pair = |(number, path): (usize, PathBuf)| {
        let name = path.strip_prefix(root).expect("it lies in there").display().to_string();
        let text = std::fs::read_to_string(&path).expect("the sources can be read");
        let deflated = out_dir.join(format!("source-{number}.deflated"));
        std::fs::write(&deflated, miniz_oxide::deflate::compress_to_vec(text.as_bytes(), 9))
            .expect("the folder that cargo gives can be written");
        format!("({name:?}, include_bytes!({:?})),\n", deflated.display().to_string())
    };
    let files = files_of_arms(root).into_iter().chain(of_locks.map(|source| root.join(source)));
    format!("&[\n{}]", files.enumerate().map(pair).collect::<String>())
}

/// Cargo's folder of downloads.
fn cargo_home() -> PathBuf {
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cargo");
    std::env::var_os("CARGO_HOME").map_or_else(home, PathBuf::from)
}
