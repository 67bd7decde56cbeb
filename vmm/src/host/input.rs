//! Files that somebody hands us: regular ones only, and no more of them than there can be sense in.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;

/// Opens the regular file at `path`, of at most `most` bytes. Nothing else is even opened: that of a pipe may wait for ever.
pub(crate) fn open(path: &Path, most: u64) -> io::Result<File> {
    let regular = |metadata: fs::Metadata| match metadata.is_file() {
        false => Err(io::Error::other("it is no regular file")),
        true if metadata.len() > most => {
            Err(io::Error::other(format!("it has {} bytes, and {most} are the most", metadata.len())))
        }
        true => Ok(()),
    };
    regular(fs::metadata(path)?)?;
    let file = File::open(path)?;
    // It may have become another one meanwhile.
    regular(file.metadata()?)?;
    Ok(file)
}

/// What is in it. One that grows meanwhile is read to `most`.
pub(crate) fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path, most)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_of_a_bounded_length_are_read() {
        let refused = |path: &str, most| read(Path::new(path), most).unwrap_err().to_string();
        assert!(refused("/dev/zero", u64::MAX).contains("no regular file"));
        assert!(refused("/", u64::MAX).contains("no regular file"));
        let own = std::env::current_exe().unwrap();
        let own = own.to_str().unwrap();
        assert!(refused(own, 100).contains("100 are the most"));
        assert!(!read(Path::new(own), u64::MAX).unwrap().is_empty());
    }
}
