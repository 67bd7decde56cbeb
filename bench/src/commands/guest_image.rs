//! The image to run.

use std::path::Path;

use haltkick_vmm::Image;

use crate::text::exit::Result;

/// The image to run: a file, or the one that was built with this program.
pub(crate) fn load(guest: Option<&Path>) -> Result<Image> {
    Ok(guest.map_or_else(|| Ok(Image::embedded()), Image::from_file)?)
}
