//! The image to run.

use std::path::Path;

use haltkick_vmm::{Engine, Image};

use crate::text::exit::{Failure, Result};

/// The image to run: a file, or the one that was built with this program.
pub(crate) fn load(guest: Option<&Path>) -> Result<Image> {
    Ok(guest.map_or_else(|| Ok(Image::embedded()), Image::from_file)?)
}

/// Refuses to run the code of a file in this process, unless somebody says that it may do what its user may.
pub(crate) fn check_trust(
    guest: Option<&Path>,
    trusted: bool,
    mut engines: impl Iterator<Item = Engine>,
) -> Result<()> {
    match guest.filter(|_| !trusted && engines.any(|engine| engine == Engine::Threads)) {
        None => Ok(()),
        Some(path) => Err(Failure::usage(format!(
            "--engine threads runs the code of {} in this process, with all your rights: use --engine kvm, or --trust-image if you \
             know where it is from",
            path.display()
        ))),
    }
}
