//! Traces that `haltkick run --trace` writes: the tracks of vCPUs, whose slices say what each does.

use std::collections::HashMap;

use super::Spells;

/// Fields of the messages, as `vmm/src/observe/trace` writes them.
mod field {
    pub(super) const PACKET: u64 = 1;
    pub(super) const TIMESTAMP: u64 = 8;
    pub(super) const TRACK_EVENT: u64 = 11;
    pub(super) const INTERNED: u64 = 12;
    pub(super) const TRACK: u64 = 60;
    /// Fields of tracks.
    pub(super) const UUID: u64 = 1;
    pub(super) const NAME: u64 = 2;
    /// Fields of events.
    pub(super) const TYPE: u64 = 9;
    pub(super) const NAME_IID: u64 = 10;
    pub(super) const TRACK_UUID: u64 = 11;
}

const BEGIN: u64 = 1;
const END: u64 = 2;
const INSTANT: u64 = 3;

/// Instants of a run that tell what its trace lacks, by how they begin, and what that means.
const LACKS: [(&str, &str); 2] = [
    ("lost reports", "reports of the host's switches were lost: record fewer vCPUs, or --sched vmm"),
    ("without who ran", "the host's switches are not in it: record as root, or --sched vmm"),
];

/// Names of slices in which a vCPU would rather run. What follows a colon says what it was doing.
const ABSENT: [&str; 3] = ["preempted", "descheduled", "ready"];

/// A field's value.
#[derive(Clone, Copy)]
enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// Fields of a message, until one of them is none.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn bytes(&mut self, count: u64) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(usize::try_from(count).ok()?)?;
        self.0 = rest;
        Some(bytes)
    }

    fn field(&mut self) -> Option<(u64, Value<'a>)> {
        let key = self.varint()?;
        let value = match key & 7 {
            0 => Value::Number(self.varint()?),
            1 => Value::Bytes(self.bytes(8)?),
            2 => {
                let count = self.varint()?;
                Value::Bytes(self.bytes(count)?)
            }
            5 => Value::Bytes(self.bytes(4)?),
            _ => return None,
        };
        Some((key >> 3, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Value<'a>), String>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field.ok_or_else(|| "it ends in the midst of a packet, or is no Perfetto trace".into()))
    }
}

/// Numbers and bytes of a message's fields, the last of each.
fn message(bytes: &[u8]) -> Result<HashMap<u64, Value<'_>>, String> {
    Fields(bytes).collect()
}

fn number(message: &HashMap<u64, Value<'_>>, field: u64) -> Option<u64> {
    match message.get(&field)? {
        Value::Number(number) => Some(*number),
        Value::Bytes(_) => None,
    }
}

fn bytes<'a>(message: &HashMap<u64, Value<'a>>, field: u64) -> Option<&'a [u8]> {
    match message.get(&field)? {
        Value::Bytes(bytes) => Some(bytes),
        Value::Number(_) => None,
    }
}

/// Whether the bytes begin as a trace does: with a packet.
pub(super) fn looks_like(bytes: &[u8]) -> bool {
    bytes.first().is_some_and(|&first| u64::from(first) == field::PACKET << 3 | 2)
}

/// Tracks and names that the packets have declared so far.
#[derive(Default)]
struct Declared<'a> {
    names: HashMap<u64, &'a [u8]>,
    vcpus: HashMap<u64, u32>,
    run: Option<u64>,
    opened_ns: Option<u64>,
}

pub(super) fn read(bytes_of_file: &[u8]) -> Result<Spells, String> {
    let (mut spells, mut declared) = (Spells::default(), Declared::default());
    for packet in Fields(bytes_of_file) {
        let (number, Value::Bytes(packet)) = packet? else { continue };
        if number == field::PACKET {
            declared.packet(&message(packet)?, &mut spells)?;
        }
    }
    if declared.vcpus.is_empty() {
        return Err("it has no tracks of the vCPUs of one guest: record it by `haltkick run --trace`".into());
    }
    // Events before the first that is kept are unknown.
    let first_ns = spells.first_ns.unwrap_or(0);
    spells.window_ns = spells.window_ns.map(|(from_ns, until_ns)| (from_ns.max(first_ns), until_ns));
    Ok(spells)
}

impl<'a> Declared<'a> {
    fn packet(&mut self, packet: &HashMap<u64, Value<'a>>, spells: &mut Spells) -> Result<(), String> {
        if let Some(track) = bytes(packet, field::TRACK) {
            self.track(&message(track)?);
        }
        if let Some(interned) = bytes(packet, field::INTERNED)
            && let Some(entry) = bytes(&message(interned)?, 2)
        {
            let entry = message(entry)?;
            if let (Some(iid), Some(name)) = (number(&entry, 1), bytes(&entry, 2)) {
                self.names.insert(iid, name);
            }
        }
        match (bytes(packet, field::TRACK_EVENT), number(packet, field::TIMESTAMP)) {
            (Some(event), Some(at_ns)) => self.event(&message(event)?, at_ns, spells),
            _ => Ok(()),
        }
    }

    fn track(&mut self, track: &HashMap<u64, Value<'a>>) {
        let (Some(uuid), Some(name)) = (number(track, field::UUID), bytes(track, field::NAME)) else {
            return;
        };
        let name = std::str::from_utf8(name).unwrap_or_default();
        if let Some(vcpu) = name.strip_prefix("vCPU ").and_then(|number| number.parse().ok()) {
            self.vcpus.insert(uuid, vcpu);
        } else if name == "run" {
            self.run = Some(uuid);
        }
    }

    fn event(
        &mut self,
        event: &HashMap<u64, Value<'a>>,
        at_ns: u64,
        spells: &mut Spells,
    ) -> Result<(), String> {
        let name =
            number(event, field::NAME_IID).and_then(|iid| self.names.get(&iid).copied()).unwrap_or_default();
        let name = std::str::from_utf8(name).unwrap_or_default();
        let track = number(event, field::TRACK_UUID);
        let vcpu = track.and_then(|track| self.vcpus.get(&track).copied());
        match (vcpu, number(event, field::TYPE)) {
            (Some(vcpu), Some(BEGIN)) => {
                let does = name.split(':').next().unwrap_or_default();
                spells.is_absent(vcpu, at_ns, ABSENT.contains(&does))
            }
            (Some(vcpu), Some(END)) => spells.is_absent(vcpu, at_ns, false),
            (None, Some(BEGIN)) if track == self.run && name == "window" => {
                self.opened_ns = Some(at_ns);
                Ok(())
            }
            (None, Some(END)) if track == self.run => {
                spells.window_ns = self.opened_ns.take().map(|opened_ns| (opened_ns, at_ns));
                Ok(())
            }
            (None, Some(INSTANT)) if track == self.run => {
                let lacks = LACKS.iter().filter(|(begins, _)| name.starts_with(begins));
                lacks.for_each(|(_, means)| spells.doubt(means, 0, 1));
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
