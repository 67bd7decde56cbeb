//! The machines of engine sim: built in, or in files.

use std::path::Path;

use haltkick_vmm::machines::{Machine, presets};
use haltkick_vmm::printable;

use crate::text::nearest;

/// The machine of this name, or in this file.
pub(crate) fn find(name: &str) -> Result<Machine, String> {
    if let Some(preset) = presets().iter().find(|preset| preset.name == name) {
        return Ok(preset.machine());
    }
    let path = Path::new(name);
    if path.extension().is_none() && !path.exists() {
        let names: Vec<&str> = presets().iter().map(|preset| preset.name).collect();
        return Err(nearest::unknown("machine", name, &names));
    }
    let read = std::fs::metadata(path).and_then(|metadata| match metadata.is_file() {
        true => std::fs::read_to_string(path),
        // That of a pipe may wait for ever.
        false => Err(std::io::Error::other("it is no regular file")),
    });
    let text = read.map_err(|error| format!("{name}: {error}"))?;
    Machine::parse(name, &text).map_err(|error| printable(&error.to_string()))
}
