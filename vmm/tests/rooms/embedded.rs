//! Inputs of the embedded image, and the files that `vmm/build.rs` watches.

use std::collections::BTreeSet;
use std::fs;

use super::source::root;

/// The folders of those of our crates that `folder` uses, itself included; what only its tests use is not in the image.
fn crates(folder: &str, found: &mut BTreeSet<String>) {
    if !found.insert(folder.to_owned()) {
        return;
    }
    let manifest = fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap();
    let lines = manifest.lines().skip_while(|line| *line != "[dependencies]").skip(1);
    for line in lines.take_while(|line| !line.starts_with('[')) {
        let name = line.split(['.', ' ', '=']).next().and_then(|name| name.strip_prefix("haltkick-"));
        let Some(name) = name else { continue };
        let places = [format!("guest/{name}"), name.to_owned()];
        let place = places.iter().find(|place| root().join(place).join("Cargo.toml").exists());
        crates(place.unwrap_or_else(|| panic!("{folder}: where is {name}?")), found);
    }
}

#[test]
fn an_edit_of_any_crate_in_the_image_builds_it_anew() {
    let mut used = BTreeSet::new();
    crates("guest", &mut used);
    assert!(used.contains("guest/locks") && used.contains("hypercalls"), "{used:?}");
    let script = fs::read_to_string(root().join("vmm/build.rs")).unwrap();
    for part in used.iter().flat_map(|of| [format!("{of}/Cargo.toml"), format!("{of}/src")]) {
        assert!(script.contains(&format!("\"../{part}\"")), "vmm/build.rs does not watch {part}");
    }
}
