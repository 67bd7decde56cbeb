//! The files that an object is made of: itself, or the members of a static archive.

use std::path::Path;

use object::read::archive::ArchiveFile;

use crate::host::text::printable;
use crate::image::object::member::{Member, Room};

/// The name of an object in messages: that of its file.
pub(super) fn name_of(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |name| printable(&name.to_string_lossy()))
}

/// The members of a file that holds `bytes`.
///
/// # Errors
/// What is wrong, as the end of a sentence that begins with the object's name.
pub(super) fn members_of(bytes: Vec<u8>) -> Result<Vec<Member>, String> {
    if bytes.starts_with(b"!<thin>\n") {
        return Err(
            "is a thin archive, which holds names of files and not the files: make it without T".into()
        );
    }
    if !bytes.starts_with(b"!<arch>\n") {
        return Ok(vec![Member::read(bytes)?]);
    }
    let broken = |_| "is a broken archive".to_owned();
    let archive = ArchiveFile::parse(&*bytes).map_err(broken)?;
    let mut members = Vec::new();
    let mut room = Room::of(bytes.len());
    for member in archive.members() {
        let member = member.map_err(broken)?;
        // The parser reads each name to its end, and members may share a long one.
        room.take_name(member.name().len()).ok_or_else(|| format!("is broken: {}", Room::USED_UP))?;
        let data = member.data(&*bytes).map_err(broken)?;
        let inside = printable(&String::from_utf8_lossy(member.name()));
        // Members that compilers add to their archives hold no code: Rust's metadata.
        if !inside.ends_with(".o") {
            continue;
        }
        let read = Member::read(data.to_vec());
        members.push(read.map_err(|reason| format!("has a member {inside} that {reason}"))?);
    }
    match members.is_empty() {
        true => Err("is an archive without object files".into()),
        false => Ok(members),
    }
}
