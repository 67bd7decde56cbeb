//! Input files from users: regular ones only, and of limited length.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;

/// Opens the regular file at `path`, of at most `most` bytes. Other kinds are not even opened: opening a pipe may block forever.
///
/// # Errors
/// What the system says, and for another kind of file or a longer one a reason that does not name it.
pub fn open(path: &Path, most: u64) -> io::Result<File> {
    let regular = |metadata: fs::Metadata| match metadata.is_file() {
        false if metadata.is_dir() => Err(io::Error::other("it is no regular file but a directory")),
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

/// Reads the file at `path`. A file that grows meanwhile is read to `most`.
///
/// # Errors
/// As [`open`], and what the system says of reading.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path, most)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads the file at `path` as text.
///
/// # Errors
/// As [`read`], and [`io::ErrorKind::InvalidData`] for what is no UTF-8.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    let mut text = String::new();
    open(path, most)?.take(most).read_to_string(&mut text)?;
    Ok(text)
}

/// The text in a file of any kind, such as the pipe of `<(COMMAND)`, of at most `most` bytes.
///
/// # Errors
/// What the system says, [`io::ErrorKind::InvalidData`] for what is no UTF-8, and a reason for a longer text.
pub fn read_piped_text(path: &Path, most: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::other(format!("it has more than {most} bytes, which are the most")));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is no UTF-8 text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_of_a_bounded_length_are_read() {
        let refused = |path: &str, most| read(Path::new(path), most).unwrap_err().to_string();
        assert!(refused("/dev/zero", u64::MAX).contains("no regular file"));
        assert!(refused("/", u64::MAX).contains("no regular file"));
        // To open it would be to wait for a writer that never comes.
        let (reader, _) = io::pipe().unwrap();
        let pipe = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&reader));
        assert!(refused(&pipe, u64::MAX).contains("no regular file"));
        let own = std::env::current_exe().unwrap();
        let own = own.to_str().unwrap();
        assert!(refused(own, 100).contains("100 are the most"));
        assert!(!read(Path::new(own), u64::MAX).unwrap().is_empty());
        assert_eq!(read_text(Path::new(own), u64::MAX).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert!(read_text(Path::new("/dev/zero"), 100).unwrap_err().to_string().contains("no regular file"));
    }

    #[test]
    fn a_text_of_any_kind_of_file_is_read_to_its_bound() {
        let (mut reader, mut writer) = io::pipe().unwrap();
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&reader));
        io::Write::write_all(&mut writer, b"[base]").unwrap();
        drop(writer);
        assert_eq!(read_piped_text(Path::new(&path), 6).unwrap(), "[base]");
        assert_eq!(reader.read(&mut [0; 8]).unwrap(), 0);
        let refused = read_piped_text(Path::new("/dev/zero"), 1 << 20).unwrap_err().to_string();
        assert!(refused.contains("more than 1048576 bytes"), "{refused}");
        let broken = read_piped_text(&std::env::current_exe().unwrap(), u64::MAX).unwrap_err();
        assert_eq!(broken.kind(), io::ErrorKind::InvalidData);
    }
}
