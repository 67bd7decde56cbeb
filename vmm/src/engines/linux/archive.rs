//! An initial RAM disk that holds one program: a cpio archive of the format `newc`, which kernels unpack.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use object::LittleEndian;
use object::elf::{DT_SONAME, DynamicTag, FileHeader64, PT_INTERP};
use object::read::elf::{FileHeader as _, ProgramHeader as _};

use super::MAX_LINUX_MEMORY;
use crate::host::error::{RunError, system};
use crate::host::input;
use crate::host::memory::mapped_code;
use crate::run::asked::Program;

/// Name of the first process, as kernels look for it in an initial RAM disk.
pub const INIT: &str = "/init";
/// Directories in which the first process mounts what it needs.
const MOUNT_POINTS: [&str; 4] = ["dev", "proc", "sys", "tmp"];
const DIRECTORY: u32 = 0o040_755;
const EXECUTABLE: u32 = 0o100_755;
const LINK: u32 = 0o120_777;
const CHARACTER_DEVICE: u32 = 0o020_600;
/// Device number of the console.
const CONSOLE: (u32, u32) = (5, 1);
/// Everything begins at a multiple of as many bytes.
const ALIGNED: usize = 4;

impl Program {
    /// The program that runs here, with the shared libraries that it has loaded.
    ///
    /// # Errors
    /// What the system says of its file and its mappings.
    pub fn own() -> Result<Self, RunError> {
        let file = std::env::current_exe().map_err(system("find the file of this program"))?;
        // A static program has mapped none.
        let mut libraries = mapped_code().map_err(system("read this program's mappings"))?;
        libraries.extend(interpreter(&read(&file)?).map(PathBuf::from));
        libraries.remove(&file);
        Ok(Self { libraries: libraries.into_iter().collect(), file })
    }
}

/// The loader of shared libraries that an ELF file asks for.
fn interpreter(bytes: &[u8]) -> Option<&str> {
    let header = FileHeader64::<LittleEndian>::parse(bytes).ok()?;
    let headers = header.program_headers(LittleEndian, bytes).ok()?;
    let asks = headers.iter().find(|header| header.p_type(LittleEndian) == PT_INTERP)?;
    std::str::from_utf8(asks.interpreter(LittleEndian, bytes).ok()??).ok()
}

/// The texts with this tag in the dynamic section of an ELF file.
fn dynamic(bytes: &[u8], tag: DynamicTag) -> impl Iterator<Item = &str> {
    let table = || {
        let header = FileHeader64::<LittleEndian>::parse(bytes).ok()?;
        header.sections(LittleEndian, bytes).ok()?.dynamic_table(LittleEndian, bytes).ok()
    };
    let table = table().unwrap_or_default();
    let texts = table.iter().filter(move |entry| entry.tag == tag);
    texts.filter_map(move |entry| std::str::from_utf8(table.string(entry).ok()?).ok())
}

/// The archive with `program` as [`INIT`].
pub(crate) fn of_program(program: &Program) -> Result<Vec<u8>, RunError> {
    let mut archive = Archive::default();
    for name in MOUNT_POINTS {
        archive.directory(name);
    }
    // The kernel opens it as the first process's input and outputs.
    archive.entry("dev/console", CHARACTER_DEVICE, &[], CONSOLE);
    archive.entry(INIT, EXECUTABLE, loaded_part(&read(&program.file)?), (0, 0));
    for library in &program.libraries {
        let name = library.to_str().ok_or_else(|| {
            RunError::usage(format!("{}: its name is no UTF-8, which a RAM disk needs", library.display()))
        })?;
        let content = read(library)?;
        archive.entry(name, EXECUTABLE, &content, (0, 0));
        // The loader looks for the name that it has in others, which here may be that of a link to it.
        for alias in dynamic(&content, DT_SONAME).filter(|name| !name.contains('/')) {
            let alias = library.with_file_name(alias);
            if let Some(alias) = alias.to_str().filter(|_| !program.libraries.contains(&alias)) {
                archive.entry(alias, LINK, name.as_bytes(), (0, 0));
            }
        }
    }
    Ok(archive.end())
}

fn read(path: &Path) -> Result<Vec<u8>, RunError> {
    input::read(path, MAX_LINUX_MEMORY)
        .map_err(|error| RunError::usage(format!("{}: {error}", path.display())))
}

/// An ELF file up to the last byte that is loaded, if tables come behind it: those of debuggers may be nine tenths of it.
fn loaded_part(bytes: &[u8]) -> &[u8] {
    let end = || {
        let header = FileHeader64::<LittleEndian>::parse(bytes).ok()?;
        let headers = header.program_headers(LittleEndian, bytes).ok()?;
        let ends = headers
            .iter()
            .map(|header| header.p_offset(LittleEndian).saturating_add(header.p_filesz(LittleEndian)));
        usize::try_from(ends.max()?).ok()
    };
    // The kernel looks at segments only, and does not mind that the header still names sections.
    end().and_then(|end| bytes.get(..end)).unwrap_or(bytes)
}

#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    entries: u32,
    directories: BTreeSet<String>,
}

impl Archive {
    /// A directory, unless it is there.
    fn directory(&mut self, name: &str) {
        if self.directories.insert(name.to_owned()) {
            self.entry(name, DIRECTORY, &[], (0, 0));
        }
    }

    /// The file with this path from the root, after the directories that it lies in.
    fn entry(&mut self, path: &str, mode: u32, content: &[u8], (major, minor): (u32, u32)) {
        let name = path.trim_start_matches('/');
        if let Some((parent, _)) = name.rsplit_once('/') {
            self.directory(parent);
        }
        self.entries += 1;
        // Inode, mode, user, group, links, time, length, the archive's device, the file's device, length of the name, checksum.
        let (length, name_length) = (content.len() as u32, name.len() as u32 + 1);
        let fields = [self.entries, mode, 0, 0, 1, 0, length, 0, 0, major, minor, name_length, 0];
        self.bytes.extend(b"070701");
        fields.iter().for_each(|field| self.bytes.extend(format!("{field:08x}").bytes()));
        self.bytes.extend(name.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGNED), 0);
    }

    fn end(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[], (0, 0));
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use object::elf::DT_NEEDED;
    use vmm_sys_util::tempdir::TempDir;

    use super::*;

    /// Paths in an archive, by the rules of the format and without the writer's code.
    fn listed(archive: &[u8]) -> Vec<String> {
        let (mut at, mut found) = (0, vec![]);
        loop {
            let header = std::str::from_utf8(&archive[at..at + 110]).unwrap();
            assert_eq!((at % 4, &header[..6]), (0, "070701"));
            let field =
                |index: usize| usize::from_str_radix(&header[6 + 8 * index..14 + 8 * index], 16).unwrap();
            let (bytes, name_bytes) = (field(6), field(11));
            let name = &archive[at + 110..at + 110 + name_bytes];
            assert_eq!(name.last(), Some(&0));
            let name = String::from_utf8(name[..name_bytes - 1].to_vec()).unwrap();
            at = (at + 110 + name_bytes).next_multiple_of(4);
            if name == "TRAILER!!!" {
                return found;
            }
            found.push(name);
            at = (at + bytes).next_multiple_of(4);
        }
    }

    #[test]
    fn every_library_is_there_under_the_name_others_need() {
        let own = Program::own().unwrap();
        let directory = TempDir::new().unwrap();
        // As where `libc.so.6` is a link to `libc-2.31.so`: mappings have the latter.
        let copies = own.libraries.iter().enumerate().map(|(number, library)| {
            let copy = directory.as_path().join(format!("resolved-{number}.so"));
            std::fs::copy(library, &copy).unwrap();
            copy
        });
        let copied = Program { libraries: copies.collect(), file: own.file.clone() };
        let whole = std::fs::metadata(&own.file).unwrap().len();
        for program in [&own, &copied] {
            let archive = of_program(program).unwrap();
            assert!(archive.len() < whole as usize * 3 / 4, "{} of {whole} bytes", archive.len());
            let entries = listed(&archive);
            let is_there = |name: &str| entries.iter().any(|path| path.rsplit('/').next() == Some(name));
            let mut needed = 0;
            for file in program.libraries.iter().chain([&program.file]) {
                for name in dynamic(&read(file).unwrap(), DT_NEEDED) {
                    assert!(is_there(name), "{}: {name}: {entries:?}", file.display());
                    needed += 1;
                }
            }
            assert!(needed > 0 || program.libraries.is_empty(), "{program:?}");
        }
    }

    #[test]
    fn what_is_no_elf_file_is_taken_whole() {
        for bytes in [&b""[..], b"#!/bin/sh", b"\x7fELF\x02\x01\x01 and no more"] {
            assert_eq!((loaded_part(bytes), interpreter(bytes)), (bytes, None));
            assert_eq!(dynamic(bytes, DT_SONAME).count(), 0);
        }
    }
}
