//! Resolution of an object's names, and the set of its sections that are needed at all: those that its exports lead to.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use haltkick_hypercalls::LOCK_EVENTS;
use object::elf;

use crate::host::text::nearest;
use crate::image::object::contract::{
    ALLOC, CPU_AREA, EVENT_PREFIX, INDIRECT, MOST_NAME_BYTES, MOST_POINTS, POINT_PREFIX,
};
use crate::image::object::member::{Kind, Member, SectionId, Symbol, SymbolPlace};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Target {
    /// An offset in a section.
    Place(SectionId, u64),
    /// Zeros that several members may share, by the symbol that defines them.
    Common(usize, usize),
    CpuArea,
    /// A number: the address of a function of the image, or what else it has for objects.
    Number(u64),
}

/// The offer of an image to the objects that are linked behind it.
pub(crate) struct Offer<'a> {
    pub(crate) imports: &'a BTreeMap<String, u64>,
    /// The events that can be counted, by their slots. Those of objects are added.
    pub(crate) events: &'a mut Vec<String>,
    /// The points of locks, by their numbers. Those of objects are added.
    pub(crate) points: &'a mut Vec<String>,
    /// The object passes points.
    pub(crate) has_points: bool,
    /// It takes memory for its locks.
    pub(crate) takes_memory: bool,
}

#[derive(Default)]
pub(super) struct Resolved {
    pub(super) reached: BTreeSet<SectionId>,
    /// Zeros by the symbol that defines them: size and alignment.
    pub(super) common: BTreeMap<(usize, usize), (u64, u64)>,
    /// Meanings of the symbols to which sections that are needed refer.
    pub(super) targets: HashMap<(usize, usize), Target>,
    /// Targets whose values code reads from memory.
    pub(super) table: BTreeSet<Target>,
}

/// Gives zeros of one name that several members define the size and the alignment of the largest of them.
pub(super) fn join_zeros(members: &mut [Member]) {
    let is_joined = |symbol: &Symbol| symbol.is_global && symbol.place == SymbolPlace::Common;
    let mut largest: HashMap<String, (u64, u64)> = HashMap::new();
    for symbol in members.iter().flat_map(|member| &member.symbols).filter(|symbol| is_joined(symbol)) {
        let (size, align) = largest.entry(symbol.name.clone()).or_insert((0, 1));
        (*size, *align) = ((*size).max(symbol.size), (*align).max(symbol.value));
    }
    for symbol in members.iter_mut().flat_map(|member| &mut member.symbols).filter(|symbol| is_joined(symbol))
    {
        (symbol.size, symbol.value) = largest[&symbol.name];
    }
}

/// Which symbol is meant by a name that is visible to all members: the first that is not weak, as in a search of an archive.
pub(super) fn definitions(members: &[Member]) -> HashMap<&str, (usize, usize)> {
    let mut definitions: HashMap<&str, (usize, usize)> = HashMap::new();
    for (number, member) in members.iter().enumerate() {
        for (index, symbol) in member.symbols.iter().enumerate() {
            let is_defined =
                matches!(symbol.place, SymbolPlace::Section(_) | SymbolPlace::Number | SymbolPlace::Common);
            if !is_defined || !symbol.is_global || symbol.name.is_empty() {
                continue;
            }
            let known = definitions.entry(&symbol.name).or_insert((number, index));
            let rank = |(member, symbol): (usize, usize)| {
                let symbol = &members[member].symbols[symbol];
                (symbol.is_weak, symbol.place == SymbolPlace::Common)
            };
            if rank((number, index)) < rank(*known) {
                *known = (number, index);
            }
        }
    }
    definitions
}

/// Resolves what the sections in `open` refer to, and so on.
pub(super) fn resolve(
    members: &[Member],
    definitions: &HashMap<&str, (usize, usize)>,
    mut open: Vec<SectionId>,
    offer: &mut Offer<'_>,
) -> Result<Resolved, String> {
    let mut resolved = Resolved::default();
    while let Some(needed) = open.pop() {
        if !resolved.reached.insert(needed) {
            continue;
        }
        let SectionId { member, section } = needed;
        check_section(&members[member], section)?;
        for relocation in &members[member].sections[section].relocations {
            let from = |reason: String| {
                format!("{reason} (at {})", members[member].describe(section, relocation.at))
            };
            let kind = Kind::of(relocation.kind).map_err(from)?;
            let key = (member, relocation.symbol);
            let target = match resolved.targets.get(&key) {
                Some(&known) => known,
                None => target(members, definitions, key, offer, &mut resolved.common).map_err(from)?,
            };
            if kind.is_through_table {
                resolved.table.insert(target);
            }
            if resolved.targets.insert(key, target).is_none()
                && let Target::Place(place, _) = target
            {
                open.push(place);
            }
        }
    }
    Ok(resolved)
}

/// Members of which anything is needed have no functions that a program calls before `main`.
pub(super) fn check_constructors(members: &[Member], reached: &BTreeSet<SectionId>) -> Result<(), String> {
    let needed: BTreeSet<usize> = reached.iter().map(|id| id.member).collect();
    for member in needed.into_iter().map(|number| &members[number]) {
        let Some(section) = member.sections.iter().find(|section| section.is_of_constructors) else {
            continue;
        };
        let first = section.relocations.first().and_then(|relocation| {
            let symbol = member.symbols.get(relocation.symbol)?;
            let SymbolPlace::Section(code) = symbol.place else { return Some(symbol.name.clone()) };
            let offset = symbol.value.wrapping_add_signed(relocation.addend);
            Some(member.describe(code, offset).trim_end_matches("+0x0").to_owned())
        });
        let named = first.map_or_else(String::new, |name| format!(" {name}"));
        return Err(format!(
            "has a constructor{named} ({}), which is never called: do its work in hk_init",
            section.name
        ));
    }
    Ok(())
}

/// A section that is to be loaded is one that can be.
fn check_section(member: &Member, section: usize) -> Result<(), String> {
    let section = &member.sections[section];
    let wrong = |what: &str| Err(format!("has a section {} {what}", section.name));
    if section.has(elf::SHF_TLS) {
        return wrong("of thread-local variables, and there are no threads: use HK_PERCPU");
    }
    if !section.has(elf::SHF_ALLOC) {
        return wrong("that it refers to and that is not to be loaded");
    }
    if !section.align.is_power_of_two() || section.align > 4096 {
        return wrong(&format!("aligned to {}: 4096 is the most", section.align));
    }
    Ok(())
}

/// Returns the meaning of a symbol that is referred to.
fn target(
    members: &[Member],
    definitions: &HashMap<&str, (usize, usize)>,
    (number, index): (usize, usize),
    offer: &mut Offer<'_>,
    common: &mut BTreeMap<(usize, usize), (u64, u64)>,
) -> Result<Target, String> {
    let symbol = members[number]
        .symbols
        .get(index)
        .ok_or_else(|| format!("is broken: a relocation is of symbol {index}, which there is not"))?;
    // A name that all members see is what all of them see.
    let (number, index) = match definitions.get(&*symbol.name) {
        Some(&definition) if symbol.is_global => definition,
        _ => (number, index),
    };
    let found = &members[number].symbols[index];
    if found.is_indirect {
        return Err(format!("refers to {}, {INDIRECT}", found.name));
    }
    match found.place {
        SymbolPlace::Section(section) => {
            if found.value > members[number].sections[section].size {
                return Err(format!("is broken: {} lies outside its section", found.name));
            }
            Ok(Target::Place(SectionId { member: number, section }, found.value))
        }
        SymbolPlace::Number => Ok(Target::Number(found.value)),
        SymbolPlace::Common => {
            let (size, align) = (found.size, found.value);
            if !align.is_power_of_two() || align > 4096 {
                return Err(format!("has {} aligned to {align}: 4096 is the most", found.name));
            }
            common.insert((number, index), (size, align));
            Ok(Target::Common(number, index))
        }
        // Symbol 0 stands for nothing: the addend is all.
        SymbolPlace::Nowhere => Ok(Target::Number(0)),
        SymbolPlace::Elsewhere => import(&symbol.name, symbol.is_weak, offer),
    }
}

fn import(name: &str, is_weak: bool, offer: &mut Offer<'_>) -> Result<Target, String> {
    if name == CPU_AREA {
        return Ok(Target::CpuArea);
    }
    if let Some(event) = name.strip_prefix(EVENT_PREFIX) {
        return number(event, (offer.events, LOCK_EVENTS), ("counts an event", "slots"));
    }
    if let Some(point) = name.strip_prefix(POINT_PREFIX) {
        offer.has_points = true;
        let point = point.replace('_', "-");
        return number(&point, (offer.points, MOST_POINTS), ("passes a point", "numbers"));
    }
    offer.takes_memory |= name == ALLOC;
    match offer.imports.get(name) {
        Some(&value) => Ok(Target::Number(value)),
        None if is_weak => Ok(Target::Number(0)),
        None if name == "_GLOBAL_OFFSET_TABLE_" => {
            Err("refers to a global offset table by its name: compile with -fno-pic".into())
        }
        None => Err(match nearest(name, offer.imports.keys().map(String::as_str)) {
            Some(known) => format!("refers to {name}, which is not defined: did you mean {known}?"),
            None => {
                format!("refers to {name}, which is not defined: include/haltkick.h has all that there is")
            }
        }),
    }
}

/// The number of `name` among those that are `known`: its own, or a new one below `most`. `does` and `numbers` are for messages.
fn number(
    name: &str,
    (known, most): (&mut Vec<String>, usize),
    (does, numbers): (&str, &str),
) -> Result<Target, String> {
    if let Some(number) = known.iter().position(|it| it == name) {
        return Ok(Target::Number(number as u64));
    }
    if name.is_empty() || name.len() > MOST_NAME_BYTES {
        return Err(format!("{does} `{name}`: a name has {MOST_NAME_BYTES} letters at most"));
    }
    if known.len() >= most {
        return Err(format!("{does} `{name}`, and all {most} {numbers} are taken"));
    }
    known.push(name.to_owned());
    Ok(Target::Number(known.len() as u64 - 1))
}
