//! Places in a lock as its author knows them: lines of the author's own files, whatever was inlined there or has called it.

use crate::image::file::Image;
use crate::image::sites::{Calls, Operation};
use crate::image::symbols::{Frame, Lines};

/// Folder with the sources of the built-in locks.
pub const LOCK_SOURCES: &str = "guest/locks/src/";
/// Files by which lock objects are written, which are no author's.
const INTERFACES: [&str; 2] = ["haltkick.h", "haltkick.rs"];

/// The author's view of one form of a lock.
pub struct Author<'a> {
    image: &'a Image,
    lines: Option<Lines<'a>>,
    lock: usize,
    pv: bool,
}

impl<'a> Author<'a> {
    /// The view of form `pv` of lock number `lock`.
    #[must_use]
    pub fn new(image: &'a Image, lock: usize, pv: bool) -> Self {
        Self { image, lines: image.lines(), lock, pv }
    }

    /// The author's functions that the code at `address` belongs to, innermost first; empty for code of others.
    #[must_use]
    pub fn frames(&self, address: u64) -> Vec<Frame> {
        self.folded(address).map_or_else(|| self.told(address), |frame| vec![frame])
    }

    /// The functions of the author that debugging data name.
    fn told(&self, address: u64) -> Vec<Frame> {
        let is_in_object = self.image.objects.iter().any(|object| object.addresses.contains(&address));
        let is_authors = |frame: &Frame| {
            frame.line.is_some_and(|line| line > 0)
                && frame.file.as_deref().is_some_and(|file| match is_in_object {
                    true => !INTERFACES.contains(&file.rsplit('/').next().unwrap_or_default()),
                    false => file.starts_with(LOCK_SOURCES),
                })
                && !frame.is_library()
        };
        self.all_frames(address).into_iter().filter(is_authors).collect()
    }

    /// All functions that the code at `address` belongs to, innermost first.
    #[must_use]
    pub fn all_frames(&self, address: u64) -> Vec<Frame> {
        self.lines.as_ref().map(|lines| lines.frames(address)).unwrap_or_default()
    }

    /// The first line of the author's in the function that begins at `address`; none without debugging data.
    #[must_use]
    pub fn first_line(&self, address: u64) -> Option<Frame> {
        const LONGEST: u64 = 4096;
        let size = self.image.symbols().at(address).map_or(1, |(symbol, _)| symbol.size.clamp(1, LONGEST));
        // The function itself, not what was inlined into it.
        (address..address + size)
            .find_map(|at| if at == address { self.frames(at) } else { self.told(at) }.pop())
    }

    /// The function that has just returned to `address`, where a vCPU has taken the lock.
    #[must_use]
    pub fn taken_by(&self, address: u64) -> Option<u64> {
        let site = self.image.sites.iter().find(|site| {
            let takes = matches!(site.operation, Operation::Lock | Operation::Read);
            takes && address > site.address && address <= site.address + site.bytes
        })?;
        self.image.calls(self.lock, self.pv)?.function(site.operation)
    }

    /// The author's line of a function that the compiler has folded with an equal one of another lock: debugging data know one of them.
    fn folded(&self, address: u64) -> Option<Frame> {
        const LONGEST: u64 = 16;
        let calls = self.image.calls(self.lock, self.pv)?;
        let [lock, unlock, _, read_unlock] = calls.functions;
        let releases = [(unlock, "unlock"), (read_unlock, "read_unlock")];
        let (function, name) = releases.into_iter().find_map(|(function, name)| {
            Some((function?, name)).filter(|(start, _)| (*start..*start + LONGEST).contains(&address))
        })?;
        let others = self.image.calls.iter().enumerate().filter(|(lock, _)| *lock != self.lock);
        let is_shared = |forms: &[Calls; 2]| {
            let has_it = |form: &Calls| [form.functions[1], form.functions[3]].contains(&Some(function));
            forms.iter().any(has_it)
        };
        others.map(|(_, forms)| forms).find(|forms| is_shared(forms))?;
        let lock = lock.filter(|lock| *lock != function).and_then(|lock| self.first_line(lock))?;
        if self.told(address).iter().any(|frame| frame.file == lock.file) {
            return None;
        }
        let text = Image::embedded_source(lock.file.as_deref()?)?;
        let line = text.lines().position(|line| line.trim_start().starts_with(&format!("fn {name}(")))?;
        Some(Frame { function: Some(name.into()), file: lock.file, line: Some(line as u32 + 1) })
    }
}
