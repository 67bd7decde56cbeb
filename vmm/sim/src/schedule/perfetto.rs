//! Traces that `haltkick run --trace` writes: their messages, and the tracks of vCPUs, whose slices say what each does.
//!
//! Names and numbers of fields are those of `protos/perfetto/trace/trace_packet.proto` and its neighbours (Apache-2.0). A test of
//! the command reads traces with definitions of its own.
#![expect(missing_docs, reason = "Perfetto documents the fields of its messages")]

use std::collections::{BTreeMap, HashMap};

use prost::Message;

use super::Spells;

/// Kinds of a [`TrackEvent`].
pub const BEGIN: i32 = 1;
/// The slice that is open on the track ends.
pub const END: i32 = 2;
pub const INSTANT: i32 = 3;

/// A packet: a file of a trace is a sequence of these.
#[derive(Clone, PartialEq, Message)]
pub struct TracePacket {
    #[prost(message, optional, tag = "6")]
    pub clock_snapshot: Option<ClockSnapshot>,
    #[prost(uint64, optional, tag = "8")]
    pub timestamp: Option<u64>,
    #[prost(uint32, tag = "10")]
    pub trusted_packet_sequence_id: u32,
    #[prost(message, optional, tag = "11")]
    pub track_event: Option<TrackEvent>,
    #[prost(message, optional, tag = "12")]
    pub interned_data: Option<InternedData>,
    #[prost(uint32, tag = "13")]
    pub sequence_flags: u32,
    #[prost(message, optional, tag = "59")]
    pub trace_packet_defaults: Option<TracePacketDefaults>,
    #[prost(message, optional, tag = "60")]
    pub track_descriptor: Option<TrackDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TracePacketDefaults {
    #[prost(uint32, tag = "58")]
    pub timestamp_clock_id: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct ClockSnapshot {
    #[prost(message, repeated, tag = "1")]
    pub clocks: Vec<Clock>,
    #[prost(uint32, tag = "2")]
    pub primary_trace_clock: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct Clock {
    #[prost(uint32, tag = "1")]
    pub clock_id: u32,
    #[prost(uint64, tag = "2")]
    pub timestamp: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct TrackDescriptor {
    #[prost(uint64, tag = "1")]
    pub uuid: u64,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(uint64, optional, tag = "5")]
    pub parent_uuid: Option<u64>,
    #[prost(uint32, tag = "11")]
    pub child_ordering: u32,
    #[prost(uint64, optional, tag = "12")]
    pub sibling_order_rank: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub struct InternedData {
    #[prost(message, repeated, tag = "2")]
    pub event_names: Vec<EventName>,
}

#[derive(Clone, PartialEq, Message)]
pub struct EventName {
    #[prost(uint64, tag = "1")]
    pub iid: u64,
    #[prost(string, tag = "2")]
    pub name: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct TrackEvent {
    #[prost(message, repeated, tag = "4")]
    pub debug_annotations: Vec<DebugAnnotation>,
    #[prost(int32, tag = "9")]
    pub r#type: i32,
    #[prost(uint64, tag = "10")]
    pub name_iid: u64,
    #[prost(uint64, tag = "11")]
    pub track_uuid: u64,
    #[prost(fixed64, repeated, packed = "false", tag = "47")]
    pub flow_ids: Vec<u64>,
    #[prost(fixed64, repeated, packed = "false", tag = "48")]
    pub terminating_flow_ids: Vec<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub struct DebugAnnotation {
    #[prost(uint64, optional, tag = "3")]
    pub uint_value: Option<u64>,
    #[prost(string, tag = "10")]
    pub name: String,
}

/// First byte of each packet in a file: field 1 of the trace, a message.
const PACKET: u8 = 1 << 3 | 2;

impl TracePacket {
    /// The packet as it stands in a file.
    #[must_use]
    pub fn framed(&self) -> Vec<u8> {
        [&[PACKET], self.encode_length_delimited_to_vec().as_slice()].concat()
    }

    /// Takes the first packet off `file`; `None` at the end.
    pub(crate) fn take(file: &mut &[u8]) -> Option<Result<Self, String>> {
        let (&first, rest) = file.split_first()?;
        *file = rest;
        let packet = (first == PACKET).then(|| Self::decode_length_delimited(file).ok()).flatten();
        Some(packet.ok_or_else(|| "it ends in the midst of a packet, or is no Perfetto trace".into()))
    }

    /// Whether `file` begins as a trace does.
    pub(crate) fn begins(file: &[u8]) -> bool {
        file.first() == Some(&PACKET)
    }
}

/// Instants of a run that tell what its trace lacks, by how they begin, and what that means.
const LACKS: [(&str, &str); 2] = [
    ("lost reports", "reports of the host's switches were lost: record fewer vCPUs, or --sched vmm"),
    ("without who ran", "the host's switches are not in it: record as root, or --sched vmm"),
];

/// Names of slices in which a vCPU would rather run. What follows a colon says what it was doing.
const ABSENT: [&str; 3] = ["preempted", "descheduled", "ready"];

/// Tracks and names that the packets have declared so far.
#[derive(Default)]
struct Declared {
    names: HashMap<u64, String>,
    vcpus: HashMap<u64, u32>,
    /// Since when vCPUs have been absent.
    absent: BTreeMap<u32, u64>,
    run: Option<u64>,
    opened_ns: Option<u64>,
}

pub(super) fn read(mut file: &[u8]) -> Result<Spells, String> {
    let (mut spells, mut declared) = (Spells::default(), Declared::default());
    while let Some(packet) = TracePacket::take(&mut file) {
        declared.packet(packet?, &mut spells)?;
    }
    if declared.vcpus.is_empty() {
        return Err("it has no tracks of the vCPUs of one guest: record it by `haltkick run --trace`".into());
    }
    for (vcpu, from_ns) in declared.absent {
        spells.add(vcpu, from_ns, spells.last_ns.max(from_ns))?;
    }
    // Events before the first that is kept are unknown.
    let first_ns = spells.first_ns.unwrap_or(0);
    spells.window_ns = spells.window_ns.map(|(from_ns, until_ns)| (from_ns.max(first_ns), until_ns));
    Ok(spells)
}

impl Declared {
    fn packet(&mut self, packet: TracePacket, spells: &mut Spells) -> Result<(), String> {
        if let Some(TrackDescriptor { uuid, name, .. }) = packet.track_descriptor {
            match name.strip_prefix("vCPU ").map(str::parse) {
                Some(Ok(vcpu)) => _ = self.vcpus.insert(uuid, vcpu),
                _ if name == "run" => self.run = Some(uuid),
                _ => {}
            }
        }
        for entry in packet.interned_data.into_iter().flat_map(|interned| interned.event_names) {
            self.names.insert(entry.iid, entry.name);
        }
        match (packet.track_event, packet.timestamp) {
            (Some(event), Some(at_ns)) => self.event(&event, at_ns, spells),
            _ => Ok(()),
        }
    }

    fn event(&mut self, event: &TrackEvent, at_ns: u64, spells: &mut Spells) -> Result<(), String> {
        let name = self.names.get(&event.name_iid).map_or("", String::as_str);
        let vcpu = self.vcpus.get(&event.track_uuid).copied();
        let is_run = self.run == Some(event.track_uuid);
        match (vcpu, event.r#type) {
            (Some(vcpu), BEGIN | END) => {
                spells.sees(vcpu, at_ns)?;
                let does = name.split(':').next().unwrap_or_default();
                if event.r#type == BEGIN && ABSENT.contains(&does) {
                    self.absent.entry(vcpu).or_insert(at_ns);
                    return Ok(());
                }
                self.absent.remove(&vcpu).map_or(Ok(()), |from_ns| spells.add(vcpu, from_ns, at_ns))
            }
            (None, BEGIN) if is_run && name == "window" => {
                self.opened_ns = Some(at_ns);
                Ok(())
            }
            (None, END) if is_run => {
                spells.window_ns = self.opened_ns.take().map(|opened_ns| (opened_ns, at_ns));
                Ok(())
            }
            (None, INSTANT) if is_run => {
                let lacks = LACKS.iter().filter(|(begins, _)| name.starts_with(begins));
                lacks.for_each(|(_, means)| spells.doubt(means, 0, 1));
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
