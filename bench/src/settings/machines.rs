//! The machines of engine sim: built in, or in files.

use std::path::Path;

use haltkick_vmm::machines::{Machine, presets};
use haltkick_vmm::{input, printable};

use crate::text::nearest;

/// A built-in machine has less than a hundredth of it.
const MOST_TEXT_BYTES: u64 = 1 << 20;

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
    let text = input::read_text(path, MOST_TEXT_BYTES).map_err(|error| format!("{name}: {error}"))?;
    Machine::parse(name, &text).map_err(|error| printable(&error.to_string()))
}
