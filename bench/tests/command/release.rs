//! Parts of a release: its version, and where that stands.

use crate::support::{apply, code, haltkick, stdout, trial};

#[apply(trial)]
fn the_version_names_the_commit_and_the_abi_of_guests() {
    let output = haltkick(&["--version"]);
    let expected = format!(
        "; guest ABI {}, fingerprint {:016x})\n",
        haltkick_vmm::ABI_VERSION,
        haltkick_vmm::ABI_FINGERPRINT
    );
    let told = stdout(&output);
    let start = format!("haltkick {} (commit ", env!("CARGO_PKG_VERSION"));
    assert!(code(&output) == 0 && told.starts_with(&start) && told.ends_with(&expected), "{told}");
}

#[apply(trial)]
fn the_changelog_and_the_citation_know_the_version() {
    let read = |name: &str| {
        let path = format!("{}/../{name}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
    };
    let version = env!("CARGO_PKG_VERSION");
    let has_line = |text: &str, line: String| text.lines().any(|other| other == line);
    assert!(
        has_line(&read("CHANGELOG.md"), format!("## {version}")),
        "CHANGELOG.md has no section {version}"
    );
    assert!(
        has_line(&read("CITATION.cff"), format!("version: {version}")),
        "CITATION.cff has another version"
    );
}
