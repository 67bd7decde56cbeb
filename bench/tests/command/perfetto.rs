//! A trace read by other eyes: with message definitions copied from Perfetto's published ones, and not from the writer.

use std::collections::BTreeMap;

use prost::Message;

/// The parts of `perfetto.protos.Trace` that a reader of slices and flows needs.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Trace {
    #[prost(message, repeated, tag = "1")]
    pub(crate) packet: Vec<TracePacket>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TracePacket {
    #[prost(message, optional, tag = "6")]
    pub(crate) clock_snapshot: Option<ClockSnapshot>,
    #[prost(uint64, optional, tag = "8")]
    pub(crate) timestamp: Option<u64>,
    #[prost(uint32, tag = "10")]
    pub(crate) trusted_packet_sequence_id: u32,
    #[prost(message, optional, tag = "11")]
    pub(crate) track_event: Option<TrackEvent>,
    #[prost(message, optional, tag = "12")]
    pub(crate) interned_data: Option<InternedData>,
    #[prost(uint32, optional, tag = "13")]
    pub(crate) sequence_flags: Option<u32>,
    #[prost(message, optional, tag = "59")]
    pub(crate) trace_packet_defaults: Option<TracePacketDefaults>,
    #[prost(message, optional, tag = "60")]
    pub(crate) track_descriptor: Option<TrackDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TracePacketDefaults {
    #[prost(uint32, optional, tag = "58")]
    pub(crate) timestamp_clock_id: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ClockSnapshot {
    #[prost(message, repeated, tag = "1")]
    pub(crate) clocks: Vec<Clock>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Clock {
    #[prost(uint32, tag = "1")]
    pub(crate) clock_id: u32,
    #[prost(uint64, tag = "2")]
    pub(crate) timestamp: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TrackDescriptor {
    #[prost(uint64, tag = "1")]
    pub(crate) uuid: u64,
    #[prost(string, tag = "2")]
    pub(crate) name: String,
    #[prost(uint64, optional, tag = "5")]
    pub(crate) parent_uuid: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct InternedData {
    #[prost(message, repeated, tag = "2")]
    pub(crate) event_names: Vec<EventName>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct EventName {
    #[prost(uint64, tag = "1")]
    pub(crate) iid: u64,
    #[prost(string, tag = "2")]
    pub(crate) name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TrackEvent {
    /// 1 begin, 2 end, 3 instant.
    #[prost(int32, tag = "9")]
    r#type: i32,
    #[prost(uint64, optional, tag = "10")]
    pub(crate) name_iid: Option<u64>,
    #[prost(uint64, tag = "11")]
    pub(crate) track_uuid: u64,
    #[prost(fixed64, repeated, packed = "false", tag = "47")]
    pub(crate) flow_ids: Vec<u64>,
    #[prost(fixed64, repeated, packed = "false", tag = "48")]
    pub(crate) terminating_flow_ids: Vec<u64>,
}

/// One slice or instant, as a viewer would show it.
#[derive(Debug)]
pub(crate) struct Shown {
    pub(crate) track: String,
    pub(crate) name: String,
    pub(crate) begin_ns: u64,
    pub(crate) end_ns: u64,
    pub(crate) flows: Vec<u64>,
    pub(crate) ended_flows: Vec<u64>,
}

/// Goes through a trace as a viewer does, and refuses what a viewer would have to mend.
pub(crate) fn shown(trace: &Trace) -> Vec<Shown> {
    let (mut tracks, mut names) = (BTreeMap::new(), BTreeMap::new());
    let mut open: BTreeMap<u64, Shown> = BTreeMap::new();
    let mut last: BTreeMap<u64, u64> = BTreeMap::new();
    let mut all = Vec::new();
    assert!(trace.packet[0].sequence_flags == Some(1), "the first packet voids what was before");
    for packet in &trace.packet {
        assert_ne!(packet.trusted_packet_sequence_id, 0, "{packet:?}");
        if let Some(track) = &packet.track_descriptor {
            let parent = track.parent_uuid.map(|parent| format!("{}/", tracks[&parent]));
            tracks.insert(track.uuid, format!("{}{}", parent.unwrap_or_default(), track.name));
        }
        for entry in packet.interned_data.iter().flat_map(|data| &data.event_names) {
            assert_eq!(names.insert(entry.iid, entry.name.clone()), None, "a name is said once");
        }
        let Some(event) = &packet.track_event else { continue };
        let at_ns = packet.timestamp.expect("events have times");
        let before = last.insert(event.track_uuid, at_ns).unwrap_or(0);
        assert!(at_ns >= before || tracks[&event.track_uuid] == "run", "{packet:?}");
        if event.r#type == 2 {
            let slice = open.remove(&event.track_uuid).expect("only what has begun can end");
            all.push(Shown { end_ns: at_ns, ..slice });
            continue;
        }
        let shown = Shown {
            track: tracks[&event.track_uuid].clone(),
            name: names[&event.name_iid.expect("a name")].clone(),
            begin_ns: at_ns,
            end_ns: at_ns,
            flows: event.flow_ids.clone(),
            ended_flows: event.terminating_flow_ids.clone(),
        };
        match event.r#type {
            1 => {
                assert!(open.insert(event.track_uuid, shown).is_none(), "slices of a track do not nest here")
            }
            3 => all.push(shown),
            other => panic!("event of type {other}"),
        }
    }
    assert!(open.is_empty(), "{open:?}");
    all
}
