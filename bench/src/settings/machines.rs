//! The machines of engine sim, and the hosts that schedule there: built in, or in files.

use std::path::Path;

use haltkick_vmm::hosts::{self, Host};
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
    let names: Vec<&str> = presets().iter().map(|preset| preset.name).collect();
    let text = read("machine", name, &names)?;
    Machine::parse(name, &text).map_err(|error| printable(&error.to_string()))
}

/// The host of this name, or in this file.
pub(crate) fn find_host(name: &str) -> Result<Host, String> {
    if let Some(preset) = hosts::presets().iter().find(|preset| preset.name == name) {
        return Ok(preset.host());
    }
    let names: Vec<&str> = hosts::presets().iter().map(|preset| preset.name).collect();
    let text = read("host", name, &names)?;
    Host::parse(name, &text).map_err(|error| printable(&error.to_string()))
}

/// The text of a file that is not built in.
fn read(kind: &str, name: &str, names: &[&str]) -> Result<String, String> {
    let path = Path::new(name);
    let is_path = name.contains('/') || path.extension().is_some_and(|it| it == "toml") || path.exists();
    if !is_path {
        return Err(nearest::unknown(kind, name, names));
    }
    input::read_text(path, MOST_TEXT_BYTES).map_err(|error| format!("{name}: {error}"))
}
