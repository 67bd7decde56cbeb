//! Files of `haltkick run --guest-set`: guests that run at the same time, and what they have in common.

use std::path::Path;

use super::reader::Reader;
use super::source::Source;
use crate::settings::Settings;
use crate::text::exit::Result;

/// The guests and the settings of a guest-set file.
pub(crate) fn read(path: &Path) -> Result<Settings> {
    let source = Source::read(path, "give a readable file")?;
    let tree = source.tree()?;
    let top = Reader::new(&source, tree.get_ref(), tree.span());
    top.format()?;
    let patch = top.table("settings")?.map(|mut table| table.patch()).transpose()?.unwrap_or_default();
    let vm = top.tables("vm")?.iter().map(Reader::vm).collect::<Result<Vec<_>>>()?;
    top.finish(&["format", "settings", "vm"])?;
    if vm.is_empty() {
        return Err(source.complain(None, "no [[vm]]: a guest set has at least one"));
    }
    let mut settings = patch.settings;
    settings.put_guests(vm);
    Ok(settings)
}
