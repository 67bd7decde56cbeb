//! The sources of a crate: their files, and the module that each of them is.

use std::fs;
use std::path::{Path, PathBuf};

/// One file.
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    /// The names that lead to its module from the root of its crate.
    pub(crate) module: Vec<String>,
    pub(crate) text: String,
}

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the workspace").to_owned()
}

/// All files under `folder` of the workspace.
pub(crate) fn sources(folder: &str) -> Vec<Source> {
    let top = root().join(folder);
    let source = |path: PathBuf| {
        let module = module(path.strip_prefix(&top).expect("it lies there"));
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Source { path: path.strip_prefix(root()).expect("it lies there").to_owned(), module, text }
    };
    files(&top).into_iter().map(source).collect()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let of = |path: PathBuf| if path.is_dir() { files(&path) } else { vec![path] };
    // Build output is not source.
    let paths = entries.map(|entry| entry.unwrap().path()).filter(|path| !path.ends_with("target"));
    let mut files: Vec<_> = paths.flat_map(of).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    files.sort();
    files
}

/// The module of a file, by its path below the sources of its crate.
fn module(path: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        path.with_extension("").iter().map(|name| name.to_string_lossy().into_owned()).collect();
    if names.last().is_some_and(|name| ["mod", "lib", "main"].contains(&name.as_str())) {
        names.pop();
    }
    names
}
