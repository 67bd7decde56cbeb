//! A file that was named for what comes at the end. It is opened at the start: a long run is not lost to a wrong path, and
//! a process that runs guests opens no such file later.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::text::exit::{Failure, Result};

/// A new file under a name that others can predict: it is written through no link, and replaces only what an earlier process of
/// this user left.
pub(crate) fn create_anew(path: &Path) -> io::Result<File> {
    if let Ok(there) = fs::symlink_metadata(path)
        && there.is_file()
        && there.uid() == rustix::process::geteuid().as_raw()
    {
        fs::remove_file(path)?;
    }
    OpenOptions::new().write(true).create_new(true).open(path)
}

/// The open file. What is in it stays until something else is written.
#[derive(Debug)]
pub(crate) struct OpenedFile {
    pub(crate) path: PathBuf,
    file: File,
}

impl OpenedFile {
    /// Opens `path`, which `option` names.
    pub(crate) fn open(option: &str, path: &Path) -> Result<Self> {
        let file =
            OpenOptions::new().write(true).create(true).truncate(false).open(path).map_err(|error| {
                let path = path.display();
                Failure::usage(format!("{option}: {path}: {error}: choose a file that can be written"))
            })?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Writes `content` in place of what was there. Of what does not fit on the disk nothing is left.
    pub(crate) fn write(&self, content: &[u8]) -> Result<()> {
        let written = self.empty().and_then(|()| (&self.file).write_all(content));
        written.map_err(|error| {
            // It is told already that there is no content; what is left of it would look like some.
            let _ = self.empty();
            Failure::internal(format!("{}: {error}", self.path.display()))
        })
    }

    fn empty(&self) -> io::Result<()> {
        // A pipe or a terminal has nothing to be emptied.
        if self.file.metadata()?.is_file() { self.file.set_len(0) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::synthetic::Scratch;

    #[test]
    fn a_file_keeps_its_content_until_a_shorter_or_longer_one() {
        let scratch = Scratch::new("opened");
        let path = scratch.path().join("table.md");
        fs::write(&path, "an old table").unwrap();
        let opened = OpenedFile::open("--export", &path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "an old table");
        opened.write(b"new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        OpenedFile::open("--folded", Path::new("/dev/null"))
            .unwrap()
            .write(b"a device is not emptied")
            .unwrap();
        let error = OpenedFile::open("--export", &scratch.path().join("none/table.md")).unwrap_err();
        let message = error.message;
        assert!(message.starts_with("--export: ") && message.contains("none/table.md: No such file"));
    }
}
