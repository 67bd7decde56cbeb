//! An experiment's directory: whole files appear complete or not at all, records are appended one by one. Files that were named for what
//! comes at the end.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use haltkick_vmm::{input, printable};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::record::{Record, SCHEMA, SCHEMA_VERSION};
use crate::text::exit::{Exit, Failure, Result};
use crate::text::output::{clean, talk, to_json};
use crate::text::timestamp;

pub(crate) const MANIFEST: &str = "manifest.json";
/// Parent of the directories that are not named on the command line.
pub(crate) const DEFAULT_PARENT: &str = "experiments-out";
const RUNS: &str = "runs.jsonl";
/// The longest file with records; that of a run of few vCPUs has about 10 KiB.
const MOST_RUNS_BYTES: u64 = 2 << 30;
/// Further than any experiment goes, and so far from the ends of the numbers that hold them that two hundred directories can be merged.
pub(crate) const MOST_BLOCK: u32 = 1 << 24;
const MOST_INDEX: u64 = 1 << 40;

/// A directory that takes results. As long as this lives, no other process takes it for one of its own.
#[derive(Debug)]
pub(crate) struct Directory {
    pub(crate) path: PathBuf,
    /// `runs.jsonl`, locked by the process that adds to it.
    runs: PathBuf,
    file: File,
}

impl Directory {
    /// The path of a directory that this makes, for a command without `--output`: named by what it is for and by the time, with a
    /// number behind that if another process was there in the same second.
    pub(crate) fn fresh(name: &str) -> Result<PathBuf> {
        let parent = Path::new(DEFAULT_PARENT);
        fs::create_dir_all(parent).map_err(|error| unwritable(parent, &error))?;
        Self::fresh_in(parent, &format!("{name}-{}", timestamp::for_file_name(SystemTime::now())))
    }

    fn fresh_in(parent: &Path, named: &str) -> Result<PathBuf> {
        let numbers = std::iter::once(String::new()).chain((2..).map(|number: u32| format!("-{number}")));
        for path in numbers.map(|number| parent.join(format!("{named}{number}"))) {
            match fs::create_dir(&path) {
                Ok(()) => return Ok(path),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(unwritable(&path, &error)),
            }
        }
        unreachable!("numbers do not end")
    }

    /// The path of a new directory: the given one, or a [fresh](Self::fresh) one.
    pub(crate) fn anew(given: Option<&Path>, name: &str) -> Result<PathBuf> {
        let Some(path) = given else { return Self::fresh(name) };
        // Files and commands name the paths in it, in lines of text.
        if path.to_str().is_none_or(|name| printable(name) != name) {
            return Err(Failure::usage(format!(
                "--output: {}: a name that is no UTF-8, or has control characters: choose another",
                printable(&path.to_string_lossy())
            )));
        }
        let parent = path.parent().unwrap_or(Path::new(""));
        let made = fs::create_dir_all(parent).and_then(|()| fs::create_dir(path));
        made.map(|()| path.to_owned()).map_err(|error| {
            let path = path.display();
            Failure::usage(match error.kind() {
                ErrorKind::AlreadyExists => format!("--output: {path} is there already: choose another name"),
                _ => format!("--output: {path}: {error}"),
            })
        })
    }

    /// A new or empty directory.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        fs::create_dir_all(path).map_err(|error| unwritable(path, &error))?;
        refuse_taken(path)?;
        let directory = Self::open(path)?;
        refuse_taken(path)?; // somebody may have been faster, and be done
        Ok(directory)
    }

    /// A directory that holds an experiment, to add to it. What a killed run left of a line is cut off.
    pub(crate) fn reopen(path: &Path) -> Result<Self> {
        let directory = Self::open(path)?;
        let failed = |error| unwritable(&directory.runs, &error);
        let bytes = input::read(&directory.runs, MOST_RUNS_BYTES).map_err(failed)?;
        let complete = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        if complete < bytes.len() {
            directory.file.set_len(complete as u64).map_err(failed)?;
        }
        Ok(directory)
    }

    fn open(path: &Path) -> Result<Self> {
        let runs = path.join(RUNS);
        let no_links = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
        let file = OpenOptions::new().create(true).append(true).custom_flags(no_links).open(&runs);
        let file = file.map_err(|error| unwritable(path, &error))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Failure::usage(format!(
                    "another haltkick writes to {}: wait until it has ended, or choose another --output directory",
                    path.display()
                )));
            }
            // One that cannot be locked at all is taken as it is.
            Err(TryLockError::Error(error)) => talk(&format!(
                "{} cannot be locked ({error}): see to it that no other haltkick writes there",
                path.display()
            )),
        }
        Ok(Self { path: path.to_owned(), runs, file })
    }

    pub(crate) fn has_manifest(&self) -> bool {
        self.path.join(MANIFEST).exists()
    }

    /// Removes what was made for an experiment of which nothing was measured.
    pub(crate) fn discard(self) {
        let is_empty = fs::metadata(&self.runs).is_ok_and(|file| file.len() == 0);
        if is_empty && !self.has_manifest() {
            let _ = fs::remove_file(&self.runs);
        }
        let _ = fs::remove_dir(&self.path); // fails, rightly, if the directory holds something else
    }

    /// Writes a whole file: under another name first, so that no reader sees half of it.
    pub(crate) fn write(&self, name: &str, content: &str) -> Result<()> {
        write_whole(&self.path.join(name), content.as_bytes())
    }

    /// Has the records so far written to the disk.
    pub(crate) fn sync(&self) -> Result<()> {
        self.file.sync_all().map_err(|error| Failure::internal(format!("{}: {error}", self.runs.display())))
    }

    /// Appends the records of one run, a line each: all of them or nothing. They may be lost in a power cut until
    /// [`Directory::sync`].
    pub(crate) fn append(&mut self, json_lines: &str) -> Result<()> {
        let before = self.file.metadata().map(|file| file.len());
        if let Ok(length) = before
            && length + json_lines.len() as u64 >= MOST_RUNS_BYTES
        {
            let path = self.runs.display();
            return Err(Failure::internal(format!(
                "{path}: it has {length} bytes, and {MOST_RUNS_BYTES} are the most: begin another directory"
            )));
        }
        let appended = self.file.write_all(format!("{json_lines}\n").as_bytes());
        appended.map_err(|error| {
            let _ = before.and_then(|length| self.file.set_len(length));
            Failure::internal(format!("{}: {error}", self.runs.display()))
        })
    }
}

fn refuse_taken(path: &Path) -> Result<()> {
    // An empty runs.jsonl alone is what a run leaves that was killed before its first record.
    let has_records = fs::metadata(path.join(RUNS)).is_ok_and(|runs| runs.len() > 0);
    if path.join(MANIFEST).exists() || has_records {
        return Err(Failure::usage(format!(
            "{} already holds an experiment: choose another --output directory",
            path.display()
        )));
    }
    Ok(())
}

/// Writes a file so that it is there completely or not at all, also after a power cut.
pub(crate) fn write_whole(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(format!(".partial-{}", std::process::id()));
    let partial = PathBuf::from(partial);
    let mut file = create_anew(&partial)
        .map_err(|error| Failure::internal(format!("{}: {error}", partial.display())))?;
    let written = file.write_all(content.as_ref()).and_then(|()| file.sync_all());
    written.and_then(|()| fs::rename(&partial, path)).and_then(|()| sync_names_beside(path)).map_err(
        |error| {
            let _ = fs::remove_file(&partial);
            Failure::internal(format!("{}: {error}", path.display()))
        },
    )
}

/// Has the names in the directory of `path` written to the disk.
fn sync_names_beside(path: &Path) -> io::Result<()> {
    let is_here = |parent: &&Path| !parent.as_os_str().is_empty();
    match File::open(path.parent().filter(is_here).unwrap_or(Path::new(".")))?.sync_all() {
        // Some file systems do that by themselves.
        Err(error) if error.kind() == ErrorKind::InvalidInput => Ok(()),
        synced => synced,
    }
}

/// Lines of JSON for records, without the files that they read: the manifest has these.
pub(crate) fn lines(records: &[Record]) -> Result<String> {
    let line = |record: &Record| to_json(&Record { files: BTreeMap::new(), ..record.clone() });
    Ok(records.iter().map(line).collect::<Result<Vec<_>>>()?.join("\n"))
}

/// Records in the order in which they were made. A last line without its end is the mark of a killed run and is left out.
pub(crate) fn read_records(directory: &Path) -> Result<Vec<Record>> {
    let path = &directory.join(RUNS);
    if !path.exists() {
        let message =
            format!("{}: no such file: give a directory that `haltkick bench` made", path.display());
        return Err(Failure::usage(message));
    }
    let text = input::read_text(path, MOST_RUNS_BYTES)
        .map_err(|error| Failure::usage(format!("{}: {error}: make it readable", path.display())))?;
    let complete = text.rfind('\n').map_or("", |end| &text[..=end]);
    complete.lines().enumerate().map(|(i, line)| parse_record(path, i + 1, line)).collect()
}

pub(crate) fn parse_record(path: &Path, line_number: usize, line: &str) -> Result<Record> {
    let remedy = "remove the line, restore the file, or use the haltkick that wrote it";
    read_record(line).map_err(|reason| {
        Failure::usage(printable(&format!("{}:{line_number}: {reason}: {remedy}", path.display())))
    })
}

/// Reads a record from a text that may come from anywhere; or returns the reason, for a terminal.
pub(crate) fn read_record(line: &str) -> std::result::Result<Record, String> {
    let record: Record = read_json(line.as_bytes(), (SCHEMA, SCHEMA_VERSION), clean)?;
    if let Some(fault) = record.settings.fault() {
        return Err(fault.into());
    }
    // Blocks and places in the order are counted on where directories are merged.
    match &record.place {
        Some(place) if place.block > MOST_BLOCK || place.order_index > MOST_INDEX => Err(format!(
            "block {} and index {}, of which {MOST_BLOCK} and {MOST_INDEX} are the most",
            place.block, place.order_index
        )),
        _ => Ok(record),
    }
}

/// Reads a value of this schema and version from a text in JSON; or returns the reason, for a terminal. Names, titles and reasons in it
/// go to terminals, so each is as `clean` returns it.
pub(super) fn read_json<T: DeserializeOwned>(
    text: &[u8],
    (schema, version): (&str, u32),
    clean: fn(&str) -> String,
) -> std::result::Result<T, String> {
    let mut value: Value = serde_json::from_slice(text).map_err(|error| format!("no JSON ({error})"))?;
    clean_value(&mut value, clean);
    let found = value["schema"].as_str().unwrap_or("nothing");
    if found != schema {
        return Err(printable(&format!("schema is '{found}', not '{schema}'")));
    }
    let found = &value["schema_version"];
    if *found != version {
        let commit = value["facts"]["tool.git_commit"]["value"].as_str();
        let commit = commit.map_or(String::new(), |commit| format!(" by commit {commit}"));
        return Err(printable(&format!(
            "version {found} of {schema}{commit}, where this haltkick reads version {version}"
        )));
    }
    serde_json::from_value(value).map_err(|error| printable(&format!("broken ({error})")))
}

/// Replaces each text and name in `value` by what `clean` makes of it. Plain ones stay as they are.
fn clean_value(value: &mut Value, clean: fn(&str) -> String) {
    match value {
        Value::String(text) if !is_plain(text) => *text = clean(text),
        Value::Array(values) => values.iter_mut().for_each(|value| clean_value(value, clean)),
        Value::Object(fields) => {
            fields.values_mut().for_each(|value| clean_value(value, clean));
            if !fields.keys().all(|name| is_plain(name)) {
                *fields =
                    std::mem::take(fields).into_iter().map(|(name, value)| (clean(&name), value)).collect();
            }
        }
        _ => {}
    }
}

/// Whether a text is printable ASCII, as nearly all texts of a file are: it needs no cleaning, and bytes are looked at fast.
fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii() && !byte.is_ascii_control())
}

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    let hint = match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            ": choose a writable one with --output"
        }
        ErrorKind::AlreadyExists | ErrorKind::NotADirectory => {
            ": a file is in the way, choose another --output"
        }
        _ => "",
    };
    Failure { exit: Exit::Usage, message: format!("output directory {}: {error}{hint}", path.display()) }
}

/// A new file under a name that others can predict: it is written through no link, and replaces only what an earlier process of
/// this user left.
pub(crate) fn create_anew(path: &Path) -> io::Result<File> {
    if let Ok(there) = fs::symlink_metadata(path)
        && there.is_file()
        && there.uid() == rustix::process::geteuid().as_raw()
    {
        fs::remove_file(path)?;
    }
    OpenOptions::new().append(true).create_new(true).open(path)
}

/// A file that was named for what comes at the end. It is opened at the start: a long run is not lost to a wrong path, and a process that
/// runs guests opens no such file later. What is in it stays until something else is written.
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
        self.fill(|mut file| file.write_all(content))
    }

    /// As [`Self::write`], what `writes` puts there.
    pub(crate) fn fill<T>(&self, writes: impl FnOnce(&File) -> io::Result<T>) -> Result<T> {
        self.empty().and_then(|()| writes(&self.file)).map_err(|error| {
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
    use crate::measure::synthetic::{Scratch, Sketch, World};
    use crate::results::manifest::Manifest;
    use crate::text::output::to_indented_json;

    #[test]
    fn a_directory_is_refused_while_another_process_writes_to_it() {
        let scratch = Scratch::new("locked");
        let first = Directory::create(scratch.path()).unwrap();
        for second in [Directory::create, Directory::reopen] {
            let message = second(scratch.path()).unwrap_err().message;
            assert!(message.starts_with("another haltkick writes to "), "{message}");
        }
        drop(first);
        Directory::reopen(scratch.path()).unwrap();
    }

    #[test]
    fn commands_of_one_second_have_a_directory_each() {
        let scratch = Scratch::new("fresh");
        let make = || Directory::fresh_in(scratch.path(), "bench-20261128T083100Z").unwrap();
        let made: std::collections::BTreeSet<PathBuf> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| [make(), make()])).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(made.len(), 16, "{made:?}");
        for number in [2, 16] {
            let numbered = scratch.path().join(format!("bench-20261128T083100Z-{number}"));
            assert!(made.contains(&numbered), "{made:?}");
        }
        made.iter().for_each(|path| drop(Directory::create(path).unwrap()));
    }

    #[test]
    fn a_directory_that_is_there_or_has_no_name_is_refused() {
        use std::os::unix::ffi::OsStrExt as _;
        let scratch = Scratch::new("anew");
        let new = scratch.path().join("deep/new");
        assert_eq!(Directory::anew(Some(&new), "judge").unwrap(), new);
        for (name, expected) in [
            (&b"deep/new"[..], "is there already: choose another name"),
            (b"l\xe4ock", "no UTF-8, or has control characters"),
            (b"two\nlines", "no UTF-8, or has control characters"),
        ] {
            let path = scratch.path().join(std::ffi::OsStr::from_bytes(name));
            let message = Directory::anew(Some(&path), "judge").unwrap_err().message;
            assert!(message.contains(expected) && !message.contains('\n'), "{message}");
        }
    }

    #[test]
    fn records_of_no_experiment_are_refused_and_what_is_read_is_text() {
        let text = r#"{"a\u001bb": ["\u0007", {"c": "one\ntwo\u009b31m"}, "x\u007fy", "z\u202e"], "d": 18446744073709551615, "e": "1 µs"}"#;
        let mut value = serde_json::from_str(text).unwrap();
        clean_value(&mut value, clean);
        let value = value.to_string();
        assert!(
            ["\\u001b", "\\u0007", "\u{9b}", "\u{7f}", "\u{202e}"].iter().all(|it| !value.contains(it)),
            "{value}"
        );
        let kept = ["{\"a\u{fffd}b\":", "one\\ntwo", "18446744073709551615", "1 µs"];
        assert!(kept.iter().all(|it| value.contains(it)), "{value}");
        let scratch = Scratch::new("untrusted");
        let plan = Sketch::two().plan(1);
        let mut record = World::new(1).records(&plan).remove(0);
        let read = |record: &Record| parse_record(Path::new("runs.jsonl"), 7, &to_json(record).unwrap());
        record.place.as_mut().unwrap().arm = "a\u{1b}]0;b".into();
        assert!(!read(&record).unwrap().place.unwrap().arm.contains('\u{1b}'));
        record.place.as_mut().unwrap().block = u32::MAX;
        let refused = read(&record).unwrap_err().message;
        assert!(refused.starts_with("runs.jsonl:7: block 4294967295"), "{refused}");
        let mut manifest = World::new(1).manifest(&plan);
        let read = |manifest: &Manifest| {
            scratch.put(MANIFEST, to_indented_json(manifest).unwrap());
            Manifest::read(scratch.path())
        };
        manifest.outline.title = "a\u{7}title".into();
        assert!(!read(&manifest).unwrap().outline.title.contains('\u{7}'));
        manifest.outline.trial_blocks = Some(0);
        assert!(read(&manifest).unwrap_err().message.contains("trials of 0 blocks"));
    }

    #[test]
    fn no_more_records_are_written_than_are_read_back() {
        let scratch = Scratch::new("largest");
        let mut directory = Directory::create(scratch.path()).unwrap();
        let runs = scratch.path().join(RUNS);
        let file = OpenOptions::new().write(true).open(&runs).unwrap();
        file.set_len(MOST_RUNS_BYTES - 4).unwrap();
        directory.append("abc").unwrap();
        let message = directory.append("").unwrap_err().message;
        assert!(message.contains("it has 2147483648 bytes, and 2147483648 are the most"), "{message}");
        assert_eq!(fs::metadata(&runs).unwrap().len(), MOST_RUNS_BYTES);
    }

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
    }
}
