//! Contract of an object, by name: the names that it defines and may use, as `include/haltkick.h` says.

use std::ops::RangeInclusive;

use crate::host::text::nearest;
use crate::image::object::member::{Member, SymbolPlace};

/// Prefix of the name of a lock that is a file.
pub const FILE_PREFIX: &str = "file:";

/// The versions of the header that are spoken here: each has all that the one before has.
const VERSIONS: RangeInclusive<u32> = 1..=3;
/// Most bytes of a lock, and what its address is a multiple of.
const MOST_LOCK_BYTES: u32 = 256;
const MOST_CPU_BYTES: u32 = 4096;

/// Stands for the memory per vCPU in the object's references.
pub(super) const CPU_AREA: &str = "hk_percpu_area";
/// Begins the name of an event that the object counts.
pub(super) const EVENT_PREFIX: &str = "hk_event_";
/// Begins the name of a point that the object passes.
pub(super) const POINT_PREFIX: &str = "hk_point_";
/// Most bytes of the name of an event or a point.
pub(super) const MOST_NAME_BYTES: usize = 31;
/// Points that have a bit in the word that names them to the guest.
pub(crate) const MOST_POINTS: usize = u64::BITS as usize;
/// Gives memory to an object's locks.
pub(super) const ALLOC: &str = "hk_alloc";
/// Bytes of that memory, for all locks.
pub(super) const HEAP_BYTES: u64 = 4 << 20;

/// The fault of a function whose symbol leads to its resolver, and its remedy.
pub(super) const INDIRECT: &str = "an indirect function (STT_GNU_IFUNC), and no loader is here to resolve it: use a plain \
                                   function, which may call what hk_init has chosen";

/// The functions of one form, by the order of their slots.
const FORMS: [[&str; 4]; 2] = [
    ["hk_lock", "hk_unlock", "hk_read_lock", "hk_read_unlock"],
    ["hk_pv_lock", "hk_pv_unlock", "hk_pv_read_lock", "hk_pv_read_unlock"],
];
const TRY_LOCK: [&str; 2] = ["hk_try_lock", "hk_pv_try_lock"];
const INIT: &str = "hk_init";

/// A function of the object: member and symbol.
pub(super) type Function = (usize, usize);

#[derive(Debug, Default)]
pub(super) struct Exports {
    /// Native form, paravirtual form; each: lock, unlock, read, read-unlock.
    pub(super) forms: [[Option<Function>; 4]; 2],
    pub(super) try_lock: [Option<Function>; 2],
    pub(super) init: Option<Function>,
    pub(super) lock_bytes: u32,
    pub(super) cpu_bytes: u32,
    /// An interrupt may come anywhere in its functions, and take another of its locks.
    pub(super) may_be_interrupted: bool,
}

impl Exports {
    pub(super) fn functions(&self) -> impl Iterator<Item = Function> + '_ {
        let rest = self.try_lock.iter().chain(std::slice::from_ref(&self.init));
        self.forms.iter().flatten().chain(rest).filter_map(|function| *function)
    }
}

/// Finds what the members define; `find` knows which symbol is meant by a name.
pub(super) fn exports(
    members: &[Member],
    find: impl Fn(&str) -> Option<(usize, usize)>,
) -> Result<Exports, String> {
    let function = |name: &str| match find(name) {
        Some((member, symbol)) if members[member].symbols[symbol].is_indirect => {
            Err(format!("has {name}, {INDIRECT}"))
        }
        Some((member, symbol)) if members[member].is_code(symbol) => Ok(Some((member, symbol))),
        Some(_) => Err(format!("has {name}, which is no function")),
        None => Ok(None),
    };
    let mut exports = Exports::default();
    for (form, names) in exports.forms.iter_mut().zip(FORMS) {
        for (slot, name) in form.iter_mut().zip(names) {
            *slot = function(name)?;
        }
    }
    for (slot, name) in exports.try_lock.iter_mut().zip(TRY_LOCK) {
        *slot = function(name)?;
    }
    exports.init = function(INIT)?;
    check_forms(members, &exports)?;
    let number = |name: &str| match find(name) {
        Some((member, symbol)) => members[member].number(symbol).map(Some).ok_or_else(|| {
            format!("has {name}, which is no constant of four bytes: write HK_LOCK(struct my_lock) once")
        }),
        None => Ok(None),
    };
    let needed = |name: &str| {
        number(name)?.ok_or_else(|| {
            format!("does not define {name}: include haltkick.h and write HK_LOCK(struct my_lock) once")
        })
    };
    let version = needed("hk_version")?;
    if !VERSIONS.contains(&version) {
        return Err(format!(
            "is written to version {version} of haltkick.h, and this haltkick links versions {} to {}",
            VERSIONS.start(),
            VERSIONS.end()
        ));
    }
    exports.lock_bytes = needed("hk_lock_size")?;
    let align = needed("hk_lock_align")?;
    if exports.lock_bytes > MOST_LOCK_BYTES || align > MOST_LOCK_BYTES || !align.is_power_of_two() {
        return Err(format!(
            "has locks of {} bytes, aligned to {align}: {MOST_LOCK_BYTES} are the most of both; the rest can be in memory that \
             hk_init takes (hk_alloc), or per vCPU (HK_PERCPU)",
            exports.lock_bytes
        ));
    }
    exports.may_be_interrupted = number("hk_may_be_interrupted")?.unwrap_or(0) != 0;
    exports.cpu_bytes = number("hk_percpu_size")?.unwrap_or(0);
    if exports.cpu_bytes > MOST_CPU_BYTES {
        return Err(format!("wants {} bytes per vCPU: {MOST_CPU_BYTES} are the most", exports.cpu_bytes));
    }
    Ok(exports)
}

/// A lock that can be taken can be released and the reverse, what is read or tried is taken, too, and there is a lock at all.
fn check_forms(members: &[Member], exports: &Exports) -> Result<(), String> {
    let tries = TRY_LOCK.iter().zip(&exports.try_lock);
    for ((names, form), (name, try_lock)) in FORMS.iter().zip(&exports.forms).zip(tries) {
        for (is, lacks) in [(0, 1), (1, 0), (2, 3), (3, 2), (2, 0)] {
            if form[is].is_some() && form[lacks].is_none() {
                return Err(lacking(members, names[lacks], &format!(" to its {}", names[is])));
            }
        }
        if try_lock.is_some() && form[0].is_none() {
            return Err(lacking(members, names[0], &format!(" to its {name}")));
        }
    }
    if exports.forms.iter().all(|form| form[0].is_none()) {
        return Err(lacking(members, "hk_lock", ""));
    }
    Ok(())
}

/// That `name` is not defined, and what is that resembles it.
fn lacking(members: &[Member], name: &str, to: &str) -> String {
    let defined = members.iter().flat_map(|member| {
        let is_function = |index: &usize| member.is_code(*index) && !member.symbols[*index].name.is_empty();
        (0..member.symbols.len()).filter(is_function).map(|index| &*member.symbols[index].name)
    });
    let own: Vec<&str> =
        defined.filter(|name| !FORMS.iter().flatten().chain(&TRY_LOCK).any(|known| known == name)).collect();
    match nearest(name, own.iter().copied()) {
        Some(similar) => format!("does not define {name}{to}: did you mean your {similar}?"),
        None => format!("does not define {name}{to}: include/haltkick.h says what a lock object defines"),
    }
}

impl Member {
    pub(super) fn is_code(&self, symbol: usize) -> bool {
        match self.symbols[symbol].place {
            SymbolPlace::Section(section) => {
                let section = &self.sections[section];
                section.is_executable() && self.symbols[symbol].value < section.size
            }
            _ => false,
        }
    }

    /// The constant of four bytes that a symbol stands for.
    fn number(&self, symbol: usize) -> Option<u32> {
        let symbol = &self.symbols[symbol];
        let SymbolPlace::Section(section) = symbol.place else { return None };
        let start = usize::try_from(symbol.value).ok()?;
        let bytes = self.data(section).get(start..start.checked_add(4)?)?;
        bytes.try_into().map(u32::from_le_bytes).ok()
    }
}
