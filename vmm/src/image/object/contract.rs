//! Contract of an object, by name: the names that it defines and may use, as `include/haltkick.h` says.

use std::ops::RangeInclusive;

use crate::host::text::nearest;
use crate::image::object::member::{Member, SectionId, SymbolPlace};

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

/// The functions of a lock, in the order of a `LockObject`: four of the native form, four of the paravirtual one, what tries either, and
/// what makes a lock.
const FUNCTIONS: [&str; 11] = [
    "hk_lock",
    "hk_unlock",
    "hk_read_lock",
    "hk_read_unlock",
    "hk_pv_lock",
    "hk_pv_unlock",
    "hk_pv_read_lock",
    "hk_pv_read_unlock",
    "hk_try_lock",
    "hk_pv_try_lock",
    "hk_init",
];

#[derive(Debug, Default)]
pub(super) struct Exports {
    /// By their place in [`FUNCTIONS`]: the section and the offset there.
    pub(super) functions: [Option<(SectionId, u64)>; FUNCTIONS.len()],
    pub(super) lock_bytes: u32,
    pub(super) cpu_bytes: u32,
    /// An interrupt may come anywhere in its functions, and take another of its locks.
    pub(super) may_be_interrupted: bool,
}

/// Finds what the members define; `find` knows which symbol is meant by a name.
pub(super) fn exports(
    members: &[Member],
    find: impl Fn(&str) -> Option<(usize, usize)>,
) -> Result<Exports, String> {
    let function = |name: &str| {
        let Some((member, symbol)) = find(name) else { return Ok(None) };
        let found = &members[member].symbols[symbol];
        match found.place {
            _ if found.is_indirect => Err(format!("has {name}, {INDIRECT}")),
            SymbolPlace::Section(section) if members[member].is_code(symbol) => {
                Ok(Some((SectionId { member, section }, found.value)))
            }
            _ => Err(format!("has {name}, which is no function")),
        }
    };
    let mut exports = Exports::default();
    for (slot, name) in exports.functions.iter_mut().zip(FUNCTIONS) {
        *slot = function(name)?;
    }
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
    /// Functions of the native form and those that they need; the paravirtual form's are as many places behind them.
    const NEEDS: [(usize, usize, usize); 6] =
        [(0, 1, 4), (1, 0, 4), (2, 3, 4), (3, 2, 4), (2, 0, 4), (8, 0, 1)];
    let has = |function: usize| exports.functions[function].is_some();
    for form in [0, 1] {
        for (is, needs, behind) in NEEDS {
            let (is, needs) = (is + form * behind, needs + form * 4);
            if has(is) && !has(needs) {
                return Err(lacking(members, FUNCTIONS[needs], &format!(" to its {}", FUNCTIONS[is])));
            }
        }
    }
    if !has(0) && !has(4) {
        return Err(lacking(members, FUNCTIONS[0], ""));
    }
    Ok(())
}

/// That `name` is not defined, and what is that resembles it.
fn lacking(members: &[Member], name: &str, to: &str) -> String {
    let defined = members.iter().flat_map(|member| {
        let is_function = |index: &usize| member.is_code(*index) && !member.symbols[*index].name.is_empty();
        (0..member.symbols.len()).filter(is_function).map(|index| &*member.symbols[index].name)
    });
    match nearest(name, defined.filter(|name| !FUNCTIONS.contains(name))) {
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
