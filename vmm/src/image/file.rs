//! The guest image: an ELF file with a note, a lock table and a workload table. Nothing in it is believed unchecked.

use std::borrow::Cow;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, OnceLock};

use haltkick_hypercalls::{
    ABI_FINGERPRINT, ABI_VERSION, Descriptor, EVENTS_SECTION, ImageNote, LOCK_EVENTS, LOCKS_SECTION,
    LockFlags, NOTE_OWNER, NOTE_TYPE, POINTS_SECTION, TIMES, WORKLOADS_SECTION, WorkloadFlags,
};
use miniz_oxide::inflate::decompress_to_vec;
use object::read::elf::{FileHeader as _, ProgramHeader as _};
use object::{LittleEndian, elf};

use crate::host::error::RunError;
use crate::host::input;
use crate::host::text::printable;
use crate::image::object::LinkedObject;
use crate::image::sites::{self, Calls, Site};
use crate::image::symbols::{Inflated, Lines, Symbols};
use crate::image::{IMAGE_BASE, Segment};

/// Upper bound of an image's end: the VMM lays out the memory above, and 64 MiB is a hundred times what is needed.
pub(super) const IMAGE_END: u64 = IMAGE_BASE + (64 << 20);

/// Most segments: each call site is looked for in each of them, and a linker makes a handful.
const MOST_SEGMENTS: usize = 4096;

/// Most bytes of an image's file, with all that debug information takes.
const MOST_FILE_BYTES: u64 = 256 << 20;

/// A lock, a workload or a point that an image offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Name on the command line.
    pub name: String,
    /// One line of explanation.
    pub summary: String,
    /// `LockFlags`, `WorkloadFlags`, or what a vCPU does that passes the point.
    pub(crate) flags: u32,
    /// Workloads: what they report in each slot of the results' times; empty: nothing.
    pub times: Vec<String>,
}

impl Entry {
    /// Returns the flags of the entry as a lock.
    #[must_use]
    pub fn lock_flags(&self) -> LockFlags {
        LockFlags(self.flags)
    }

    /// Returns the flags of the entry as a workload.
    #[must_use]
    pub fn workload_flags(&self) -> WorkloadFlags {
        WorkloadFlags(self.flags)
    }

    /// The lock has a form for `--pv off`.
    #[must_use]
    pub fn has_native(&self) -> bool {
        self.lock_flags().has(LockFlags::HAS_NATIVE)
    }

    /// The lock is a way to serve page faults.
    #[must_use]
    pub fn serves_faults(&self) -> bool {
        self.lock_flags().has(LockFlags::SERVES_FAULTS)
    }

    /// The lock has a form for `--pv on`.
    #[must_use]
    pub fn has_paravirt(&self) -> bool {
        self.lock_flags().has(LockFlags::HAS_PARAVIRT)
    }

    /// The lock can be stopped at points of its slow path.
    #[must_use]
    pub fn has_points(&self) -> bool {
        self.lock_flags().has(LockFlags::HAS_POINTS)
    }

    /// The lock provides no mutual exclusion.
    #[must_use]
    pub fn is_lock_free(&self) -> bool {
        self.lock_flags().has(LockFlags::IS_LOCK_FREE)
    }

    /// The workload takes its lock, at least now and then.
    #[must_use]
    pub fn takes_locks(&self) -> bool {
        !self.workload_flags().has(WorkloadFlags::TAKES_NO_LOCK)
    }

    /// The workload fails, or checks something, on purpose.
    #[must_use]
    pub fn is_selftest(&self) -> bool {
        self.workload_flags().has(WorkloadFlags::IS_SELFTEST)
    }
}

/// A parsed and checked guest image.
#[derive(Clone, Debug)]
pub struct Image {
    /// Path of the file, for messages.
    pub path: PathBuf,
    /// Its locks, in the order of their index.
    pub locks: Vec<Entry>,
    /// Its workloads, in the order of their index.
    pub workloads: Vec<Entry>,
    /// The points in the slow paths of its instrumented locks, in the order of their numbers.
    pub points: Vec<Entry>,
    /// Its lock events, in the order of their slots.
    pub events: Vec<String>,
    pub(crate) entry: u64,
    pub(crate) end: u64,
    pub(crate) vector_stubs: u64,
    pub(crate) vector_stub_bytes: u64,
    pub(crate) segments: Vec<Segment>,
    /// Places that call a lock, by address.
    pub(crate) sites: Vec<Site>,
    /// Functions that the sites call: native and paravirtual form of each lock.
    pub(crate) calls: Vec<[Calls; 2]>,
    /// Objects that were linked behind the image, in the order of its last locks.
    pub(crate) objects: Vec<LinkedObject>,
    /// Read on first use: to make names of a thousand symbols takes as long as to make a guest.
    symbols: OnceLock<Arc<Symbols>>,
    /// Inflated on first use, for the same reason.
    inflated: OnceLock<Arc<Inflated>>,
    elf: Cow<'static, [u8]>,
}

impl Image {
    /// The image that was built with this library.
    ///
    /// # Panics
    /// If the build embedded something else: a test of this crate parses it.
    #[must_use]
    pub fn embedded() -> Self {
        parse(Path::new("(embedded)"), Cow::Borrowed(Self::embedded_elf()))
            .expect("the embedded image was built with this library")
    }

    /// Reads and checks an image.
    ///
    /// # Errors
    /// [`RunError::Image`] when the file cannot be read, is no image, or was built for another ABI version.
    pub fn from_file(path: &Path) -> Result<Self, RunError> {
        let bytes = input::read(path, MOST_FILE_BYTES)
            .map_err(|error| image_error(path, format!("cannot be read: {error}")))?;
        parse(path, Cow::Owned(bytes))
    }

    /// The bytes of the embedded image, as an ELF file for other tools (`perf kvm --guestvmlinux`, gdb).
    #[must_use]
    pub fn embedded_elf() -> &'static [u8] {
        include_bytes!(env!("HALTKICK_GUEST_IMAGE"))
    }

    /// The text of a lock's source file, as the debugging data of the embedded image names it.
    #[must_use]
    pub fn embedded_source(file: &str) -> Option<&'static str> {
        const SOURCES: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/sources.rs"));
        static TEXTS: LazyLock<Vec<(&str, String)>> = LazyLock::new(|| {
            let inflated = |deflated: &[u8]| String::from_utf8(decompress_to_vec(deflated).ok()?).ok();
            let texts = SOURCES.iter().map(|(name, text)| (*name, inflated(text)));
            texts.map(|(name, text)| (name, text.expect("the build wrote it"))).collect()
        });
        TEXTS.iter().find(|(name, _)| *name == file).map(|(_, text)| text.as_str())
    }

    /// Whether its built-in locks are those of the embedded image, whatever was linked behind them.
    #[must_use]
    pub fn is_embedded(&self) -> bool {
        self.path == Path::new("(embedded)")
    }

    /// The file that it was read from, with the lock objects that were linked behind it.
    #[must_use]
    pub fn elf(&self) -> &[u8] {
        &self.elf
    }

    /// Names of its functions and variables.
    #[must_use]
    pub fn symbols(&self) -> &Arc<Symbols> {
        let own = || object::File::parse(&*self.elf).map(|file| Symbols::of(&file)).unwrap_or_default();
        let all = || {
            let of_object = |object: &LinkedObject| {
                let files = object.files.iter().filter_map(|file| object::File::parse(&**file).ok());
                files.map(|file| Symbols::of(&file).of_object(&object.name)).collect::<Vec<_>>()
            };
            own().with(self.objects.iter().flat_map(of_object))
        };
        self.symbols.get_or_init(|| Arc::new(all()))
    }

    /// Source lines of its code; `None` when it was built without.
    #[must_use]
    pub fn lines(&self) -> Option<Lines<'_>> {
        let of_objects = self
            .objects
            .iter()
            .flat_map(|object| object.files.iter().map(|file| (object.addresses.clone(), &**file)));
        let inflated = self.inflated.get_or_init(|| Arc::new(Inflated::of(&self.elf)));
        Lines::of(&self.elf, inflated).map(|lines| lines.with(of_objects))
    }

    /// The function that takes form `pv` of lock number `lock` if it is free.
    pub(crate) fn try_lock(&self, lock: usize, pv: bool) -> Option<u64> {
        let object = lock.checked_sub(self.locks.len() - self.objects.len())?;
        self.objects.get(object)?.functions[8 + usize::from(pv)]
    }

    /// `len` bytes of the image as it is in the file; `None` where the file holds none.
    #[must_use]
    pub fn bytes_at(&self, address: u64, len: u64) -> Option<&[u8]> {
        self.segments.iter().find_map(|segment| segment.bytes_at(address, len))
    }
}

fn image_error(path: &Path, reason: impl Into<String>) -> RunError {
    RunError::Image { path: path.to_owned(), reason: reason.into() }
}

pub(super) fn parse(path: &Path, elf: Cow<'static, [u8]>) -> Result<Image, RunError> {
    parsed(path, elf).map_err(|reason| image_error(path, reason))
}

/// An error is the end of a sentence that begins with the image's name.
fn parsed(path: &Path, elf: Cow<'static, [u8]>) -> Result<Image, String> {
    const NOT_AN_IMAGE: &str =
        "is not an ELF file for x86-64; give the file that `cargo build` makes of guest/";
    let bytes = &*elf;
    let header = elf::FileHeader64::<LittleEndian>::parse(bytes).map_err(|_| NOT_AN_IMAGE)?;
    // A big-endian file would be read partly in its own byte order and partly as x86-64's.
    let endian = header.endian().map_err(|_| NOT_AN_IMAGE)?;
    let (machine, kind) = (header.e_machine.get(endian), header.e_type.get(endian));
    if machine != elf::EM_X86_64 || kind != elf::ET_EXEC {
        return Err(NOT_AN_IMAGE.into());
    }
    let headers = header.program_headers(endian, bytes).map_err(|_| "has broken program headers")?;
    if headers.len() > MOST_SEGMENTS {
        return Err(format!("has {} segments: {MOST_SEGMENTS} are the most", headers.len()));
    }

    let note = find_note(headers, bytes).ok_or("has no Haltkick note: it is not a Haltkick guest")?;
    check_note(&note)?;

    let (segments, end) = load_segments(headers, bytes)?;
    let inside = |address: u64, size: u64| {
        address >= IMAGE_BASE && address.checked_add(size).is_some_and(|last| last <= end)
    };
    let entry = header.e_entry.get(endian);
    let stub_bytes = u64::from(note.vector_stub_bytes);
    if !inside(entry, 1) || !inside(note.vector_stubs, stub_bytes.saturating_mul(256)) {
        return Err("has an entry point or vector stubs outside its own memory".into());
    }

    let file = object::File::parse(bytes).map_err(|_| "has broken section headers")?;
    let locks = descriptors(&file, LOCKS_SECTION)?;
    Ok(Image {
        path: path.to_owned(),
        sites: sites::sites(&file, &segments, end)?,
        calls: sites::calls(&file, &segments, locks.len())?,
        locks,
        workloads: descriptors(&file, WORKLOADS_SECTION)?,
        points: descriptors(&file, POINTS_SECTION)?,
        events: events(&file)?,
        entry,
        end,
        vector_stubs: note.vector_stubs,
        vector_stub_bytes: stub_bytes,
        segments,
        objects: vec![],
        symbols: OnceLock::new(),
        inflated: OnceLock::new(),
        elf,
    })
}

/// Refuses an image that was built for another ABI.
fn check_note(note: &ImageNote) -> Result<(), String> {
    if note.abi_version != ABI_VERSION {
        return Err(format!(
            "was built for ABI version {}, this haltkick speaks version {ABI_VERSION}: rebuild the image",
            note.abi_version
        ));
    }
    if note.fingerprint != 0 && note.fingerprint != ABI_FINGERPRINT {
        return Err(format!(
            "was built from another state of the ABI (fingerprint {:#x}) than this haltkick ({ABI_FINGERPRINT:#x}): rebuild \
             the image",
            note.fingerprint
        ));
    }
    Ok(())
}

fn find_note(headers: &[elf::ProgramHeader64<LittleEndian>], bytes: &[u8]) -> Option<ImageNote> {
    headers.iter().find_map(|header| {
        let mut notes = header.notes(LittleEndian, bytes).ok()??;
        while let Ok(Some(note)) = notes.next() {
            let owner = &NOTE_OWNER[..NOTE_OWNER.len() - 1];
            if note.name() == owner && note.n_type(LittleEndian).0 == NOTE_TYPE && note.desc().len() >= 16 {
                // Version 1 had less; what is not there is 0, and the version says so.
                let told = [note.desc(), &[0; 24]].concat();
                return Some(ImageNote {
                    abi_version: sites::word(&told, 0, 4) as u32,
                    vector_stub_bytes: sites::word(&told, 4, 4) as u32,
                    vector_stubs: sites::word(&told, 8, 8),
                    fingerprint: sites::word(&told, 16, 8),
                });
            }
        }
        None
    })
}

/// The loadable segments with their zero-filled tails left out (guest memory starts zeroed), and the end of all.
fn load_segments(
    headers: &[elf::ProgramHeader64<LittleEndian>],
    bytes: &[u8],
) -> Result<(Vec<Segment>, u64), String> {
    let endian = LittleEndian;
    let (mut segments, mut end) = (Vec::<Segment>::new(), IMAGE_BASE);
    let mut taken: Vec<Range<u64>> = Vec::new();
    for header in headers.iter().filter(|header| header.p_type(endian) == elf::PT_LOAD) {
        let (address, size) = (header.p_vaddr(endian), header.p_memsz(endian));
        let data = header.data(endian, bytes).map_err(|()| "is cut short: a segment is missing")?;
        let last = address.checked_add(size).filter(|&last| address >= IMAGE_BASE && last <= IMAGE_END);
        let (Some(last), true) = (last, data.len() as u64 <= size) else {
            return Err(format!(
                "has a segment at {address:#x} that is not within {IMAGE_BASE:#x}..{IMAGE_END:#x}"
            ));
        };
        // Each copies its bytes: those that overlap could name the same ones many thousand times.
        let place = taken.partition_point(|other| other.end <= address);
        if size > 0 && taken.get(place).is_some_and(|other| other.start < last) {
            return Err(format!("has segments that overlap at {address:#x}"));
        }
        if size > 0 {
            taken.insert(place, address..last);
        }
        end = end.max(last);
        let executable = header.p_flags(endian) & elf::PF_X != elf::ProgramFlags(0);
        segments.push(Segment { address, executable, bytes: data.to_vec() });
    }
    if segments.is_empty() {
        return Err("has nothing to load".into());
    }
    Ok((segments, end))
}

pub(super) fn text(field: &[u8]) -> String {
    let used = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
    printable(&String::from_utf8_lossy(&field[..used]))
}

/// The records of a section that an image must have.
fn needed<'a>(file: &object::File<'a>, name: &str, size: usize) -> Result<Vec<&'a [u8]>, String> {
    let records = sites::records(file, name, size)?;
    if records.is_empty() {
        return Err(format!("has no section {name} of {size}-byte records"));
    }
    Ok(records)
}

fn descriptors(file: &object::File<'_>, name: &str) -> Result<Vec<Entry>, String> {
    use std::mem::offset_of;
    let entry = |record: &[u8]| {
        let (flags, times) = (offset_of!(Descriptor, flags), &record[offset_of!(Descriptor, times)..]);
        Entry {
            name: text(&record[offset_of!(Descriptor, name)..offset_of!(Descriptor, summary)]),
            summary: text(&record[offset_of!(Descriptor, summary)..flags]),
            flags: sites::word(record, flags, 4) as u32,
            times: times.chunks_exact(16).take(TIMES).map(text).collect(),
        }
    };
    Ok(needed(file, name, size_of::<Descriptor>())?.into_iter().map(entry).collect())
}

fn events(file: &object::File<'_>) -> Result<Vec<String>, String> {
    let names: Vec<_> = needed(file, EVENTS_SECTION, 32)?.into_iter().map(text).collect();
    if names.len() > LOCK_EVENTS {
        return Err(format!("has more than {LOCK_EVENTS} lock events"));
    }
    Ok(names)
}
