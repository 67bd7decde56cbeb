//! Puts linked objects behind an image: an ELF file with more segments, and with the table filled in by which the guest calls
//! them. Their locks are entries behind those of the image's own.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::mem::offset_of;
use std::path::Path;

use haltkick_hypercalls::{
    ACTIVITY_ANY, IMPORTS_SECTION, Import, LockFlags, LockObject, LockObjects, MAX_OBJECTS, OBJECTS_SECTION,
};
use object::{Object as _, ObjectSection as _};

use crate::host::error::RunError;
use crate::host::text::printable;
use crate::image::file::{Entry, IMAGE_END, Image, parse, text};
use crate::image::object::{ARMS, FILE_PREFIX, LinkedObject, Offer, Wanted};
use crate::image::sites::{Calls, word};

impl Image {
    /// This image with the locks behind its own that these names ask for, each once: `file:PATH` is a lock object or its source, and
    /// an [arm](crate::Arm) is linked where the image has no lock of that name. All other names are those of the image's own locks, or of none.
    ///
    /// # Errors
    /// [`RunError::LockObject`] for a file that is no lock object, [`RunError::Image`] for an image that takes none.
    pub fn with_locks<'a>(self, names: impl IntoIterator<Item = &'a str>) -> Result<Self, RunError> {
        let mut wanted: Vec<Wanted> = Vec::new();
        for name in names {
            if wanted.iter().any(|known| known.name == name) {
                continue;
            }
            let is_own = self.locks.iter().any(|lock| lock.name == name);
            let arm = || ARMS.iter().find(|arm| arm.name == name && !is_own).map(Wanted::arm);
            let file = name.strip_prefix(FILE_PREFIX).map(|path| Wanted::file(Path::new(path)));
            wanted.extend(file.or_else(arm));
        }
        if wanted.is_empty() { Ok(self) } else { self.with_linked(&wanted) }
    }

    pub(super) fn with_linked(self, wanted: &[Wanted]) -> Result<Self, RunError> {
        let path = self.path.clone();
        let refuse = |reason: String| RunError::Image { path: path.clone(), reason };
        let room = Room::of(self.elf()).map_err(refuse)?;
        if wanted.len() > MAX_OBJECTS {
            return Err(refuse(format!(
                "has room for {MAX_OBJECTS} lock objects at a time, and these are {}",
                wanted.len()
            )));
        }
        let (mut end, mut events, mut linked) = (self.end, self.events.clone(), Vec::new());
        let mut points: Vec<String> = self.points.iter().map(|point| point.name.clone()).collect();
        for wanted in wanted {
            let (imports, events, points) = (&room.imports, &mut events, &mut points);
            let mut offer = Offer { imports, events, points, has_points: false, takes_memory: false };
            let object = named(&wanted.path)
                .and_then(|()| wanted.link(end, &mut offer))
                .map_err(|reason| RunError::LockObject { path: wanted.path.clone(), reason })?;
            end = object.addresses.end;
            if end > IMAGE_END {
                return Err(refuse("has no room for so many lock objects: measure fewer at a time".into()));
            }
            linked.push(object);
        }
        let elf = attached(self.elf(), &room, end, &linked).map_err(refuse)?;
        let mut image = parse(&path, Cow::Owned(elf))?;
        for (wanted, object) in wanted.iter().zip(&linked) {
            image.locks.push(entry(wanted, object));
            image.calls.push([object.calls(0), object.calls(1)]);
        }
        image.events = events;
        let of_objects = points.split_off(image.points.len());
        let summary = "a point of a lock object";
        let point = |name| Entry { name, summary: summary.into(), flags: ACTIVITY_ANY, times: vec![] };
        image.points.extend(of_objects.into_iter().map(point));
        image.objects = linked;
        Ok(image)
    }
}

impl LinkedObject {
    /// How sites call one of its forms. One without readers of its own has readers that exclude each other.
    fn calls(&self, form: usize) -> Calls {
        let function = |slot: usize| self.functions[4 * form + slot];
        let functions = [function(0), function(1), function(2).or(function(0)), function(3).or(function(1))];
        Calls { functions, lock_bytes: self.lock_bytes, cpu_bytes: self.cpu_bytes }
    }
}

/// Refuses a file whose lock could not be asked for: the name of a lock is a line of text. What stands for bytes that are no text is
/// in the names of no other files.
fn named(path: &Path) -> Result<(), String> {
    match path.to_str() {
        Some(name) if name == printable(name) && !name.contains(char::REPLACEMENT_CHARACTER) => Ok(()),
        _ => {
            Err("has a name that is no UTF-8, or has control characters: rename it, or give a link to it"
                .into())
        }
    }
}

fn entry(wanted: &Wanted, object: &LinkedObject) -> Entry {
    let has = |function: usize| object.functions[function].is_some();
    let flags = LockFlags::NONE
        .with_if(has(0), LockFlags::HAS_NATIVE)
        .with_if(has(4), LockFlags::HAS_PARAVIRT)
        .with_if(has(2) || has(6), LockFlags::HAS_READERS)
        .with_if(object.may_be_interrupted, LockFlags::MAY_BE_INTERRUPTED)
        .with_if(has(8), LockFlags::HAS_TRY)
        .with_if(has(9), LockFlags::HAS_PARAVIRT_TRY)
        .with_if(object.has_points, LockFlags::HAS_POINTS);
    Entry { name: wanted.name.clone(), summary: wanted.summary.clone(), flags: flags.0, times: vec![] }
}

struct Room {
    imports: BTreeMap<String, u64>,
    /// Offset of the table of objects in the image's file.
    table: usize,
}

impl Room {
    fn of(elf: &[u8]) -> Result<Self, String> {
        const NONE: &str = "takes no lock objects: it was built before there were any";
        let file = object::File::parse(elf).map_err(|_| NONE)?;
        let table = file.section_by_name(OBJECTS_SECTION).ok_or(NONE)?;
        let range = table.file_range().filter(|range| range.1 == size_of::<LockObjects>() as u64);
        let (start, length) = range.ok_or("has a table of lock objects that is of another size")?;
        let end = start.checked_add(length).filter(|&end| end <= elf.len() as u64);
        end.ok_or("is cut short: its table of lock objects is missing")?;
        let imports =
            file.section_by_name(IMPORTS_SECTION).and_then(|section| section.data().ok()).ok_or(NONE)?;
        let rows = imports.chunks_exact(size_of::<Import>());
        let row = |row: &[u8]| (text(&row[..32]), word(row, 32, 8));
        Ok(Self { imports: rows.map(row).collect(), table: start as usize })
    }
}

/// The file with the objects in it: what is loaded at its end, and behind that the headers of all segments.
fn attached(elf: &[u8], room: &Room, end: u64, objects: &[LinkedObject]) -> Result<Vec<u8>, String> {
    const PAGE: usize = 4096;
    /// Length of a segment's header, and where the file's own header has their place and their number (ELF-64 object file format).
    const BYTES: usize = 56;
    const PLACE: usize = 32;
    const NUMBER: usize = 56;
    /// From this number on, the number itself is in another place.
    const NUMBER_ELSEWHERE: usize = 0xffff;
    let (start, number) = (word(elf, PLACE, 8) as usize, word(elf, NUMBER, 2) as usize);
    let parts = objects.iter().flat_map(|object| &object.parts);
    let all = number + parts.clone().count();
    if all >= NUMBER_ELSEWHERE {
        return Err("has too many segments to take lock objects".into());
    }
    let mut file = elf.to_vec();
    write_table(&mut file[room.table..], end, objects);
    let mut headers = elf[start..start + number * BYTES].to_vec();
    for part in parts {
        // In the file as in memory relative to pages, as loaders that map files want it.
        file.resize(file.len().next_multiple_of(PAGE), 0);
        headers.extend(object::elf::PT_LOAD.0.to_le_bytes());
        headers.extend(part.rights.0.to_le_bytes());
        let (offset, bytes) = (file.len() as u64, part.bytes.len() as u64);
        let words = [offset, part.address, part.address, bytes, part.memory_bytes, PAGE as u64];
        headers.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        file.extend_from_slice(&part.bytes);
    }
    file.resize(file.len().next_multiple_of(8), 0);
    let place = file.len() as u64;
    file.extend_from_slice(&headers);
    file[PLACE..PLACE + 8].copy_from_slice(&place.to_le_bytes());
    file[NUMBER..NUMBER + 2].copy_from_slice(&(all as u16).to_le_bytes());
    Ok(file)
}

/// Fills in what the guest reads: a [`LockObjects`].
fn write_table(table: &mut [u8], end: u64, objects: &[LinkedObject]) {
    // Its functions stand one behind the other.
    const { assert!(offset_of!(LockObject, try_lock) == 64 && offset_of!(LockObject, init) == 80) };
    let mut put = |at: usize, value: u64, bytes: usize| {
        table[at..at + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
    };
    put(offset_of!(LockObjects, end), end, 8);
    for (number, object) in objects.iter().enumerate() {
        let base = offset_of!(LockObjects, objects) + number * size_of::<LockObject>();
        for (slot, function) in object.functions.iter().enumerate() {
            put(base + offset_of!(LockObject, functions) + 8 * slot, function.unwrap_or(0), 8);
        }
        put(base + offset_of!(LockObject, lock_bytes), object.lock_bytes.into(), 4);
        put(base + offset_of!(LockObject, cpu_bytes), object.cpu_bytes.into(), 4);
        put(base + offset_of!(LockObject, heap), object.heap.start, 8);
        put(base + offset_of!(LockObject, heap) + 8, object.heap.end, 8);
    }
}
