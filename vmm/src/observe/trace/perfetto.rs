//! Packets of a Perfetto trace in the order in which a viewer needs them: names before the events that have them.

use std::collections::HashMap;
use std::io::{self, Write};

use haltkick_sim::schedule::perfetto::{
    Clock, ClockSnapshot, DebugAnnotation, EventName, InternedData, TracePacket, TracePacketDefaults,
    TrackDescriptor, TrackEvent as EventMessage,
};
use rustix::time::{ClockId, clock_gettime};

/// CLOCK_MONOTONIC, CLOCK_BOOTTIME and CLOCK_REALTIME in Perfetto's numbering.
const CLOCK_MONOTONIC: u32 = 3;
const CLOCK_BOOTTIME: u32 = 6;
const CLOCK_REALTIME: u32 = 1;

/// All packets come from one writer.
const SEQUENCE: u32 = 1;
/// Flags of the sequence: what was said before is void; this packet relies on it.
const INCREMENTAL_STATE_CLEARED: u32 = 1;
const NEEDS_INCREMENTAL_STATE: u32 = 2;

const ORDERING_EXPLICIT: u32 = 3;

/// A track, by its number in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Track(pub(super) u64);

/// One event on a track.
#[derive(Debug)]
pub(super) struct TrackEvent<'a> {
    pub(super) track: Track,
    /// `BEGIN`, `END` or `INSTANT`.
    pub(super) kind: i32,
    pub(super) at_ns: u64,
    /// Empty for the end of a slice.
    pub(super) name: &'a str,
    /// A flow that starts here or passes by.
    pub(super) flow: Option<u64>,
    /// A flow that ends here.
    pub(super) ends_flow: Option<u64>,
    pub(super) annotations: &'a [(&'a str, u64)],
}

/// Writes packets.
pub(super) struct Writer<W> {
    out: W,
    names: HashMap<String, u64>,
    /// Bytes written.
    pub(super) bytes: u64,
}

impl<W: Write> Writer<W> {
    /// Begins a trace whose times are CLOCK_MONOTONIC.
    pub(super) fn new(out: W) -> io::Result<Self> {
        let mut writer = Self { out, names: HashMap::new(), bytes: 0 };
        let defaults = TracePacketDefaults { timestamp_clock_id: CLOCK_MONOTONIC };
        writer.packet(TracePacket {
            sequence_flags: INCREMENTAL_STATE_CLEARED,
            trace_packet_defaults: Some(defaults),
            ..TracePacket::default()
        })?;
        writer.clock_snapshot()?;
        Ok(writer)
    }

    /// Writes the current values of the clocks, so that other traces of this machine can be aligned with this one.
    fn clock_snapshot(&mut self) -> io::Result<()> {
        let clocks = [
            (CLOCK_MONOTONIC, ClockId::Monotonic),
            (CLOCK_BOOTTIME, ClockId::Boottime),
            (CLOCK_REALTIME, ClockId::Realtime),
        ];
        let clocks = clocks.map(|(id, clock)| {
            let time = clock_gettime(clock);
            let ns = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
            Clock { clock_id: id, timestamp: ns }
        });
        let snapshot = ClockSnapshot { clocks: clocks.into(), primary_trace_clock: CLOCK_MONOTONIC };
        self.packet(TracePacket { clock_snapshot: Some(snapshot), ..TracePacket::default() })
    }

    fn packet(&mut self, packet: TracePacket) -> io::Result<()> {
        let framed = TracePacket { trusted_packet_sequence_id: SEQUENCE, ..packet }.framed();
        self.bytes += framed.len() as u64;
        self.out.write_all(&framed)
    }

    /// Declares a track; its place among its siblings is the `rank`.
    pub(super) fn track(
        &mut self,
        track: Track,
        parent: Option<Track>,
        rank: u64,
        name: &str,
    ) -> io::Result<()> {
        let descriptor = TrackDescriptor {
            uuid: track.0,
            name: name.into(),
            parent_uuid: parent.map(|parent| parent.0),
            child_ordering: ORDERING_EXPLICIT,
            sibling_order_rank: Some(rank),
        };
        self.packet(TracePacket { track_descriptor: Some(descriptor), ..TracePacket::default() })
    }

    /// Writes an event. Those of one track come in order.
    pub(super) fn event(&mut self, event: &TrackEvent<'_>) -> io::Result<()> {
        let (name_iid, interned_data) = self.intern(event.name);
        let annotations = event
            .annotations
            .iter()
            .map(|&(name, value)| DebugAnnotation { uint_value: Some(value), name: name.into() });
        let message = EventMessage {
            debug_annotations: annotations.collect(),
            r#type: event.kind,
            name_iid,
            track_uuid: event.track.0,
            flow_ids: event.flow.into_iter().collect(),
            terminating_flow_ids: event.ends_flow.into_iter().collect(),
        };
        self.packet(TracePacket {
            timestamp: Some(event.at_ns),
            sequence_flags: NEEDS_INCREMENTAL_STATE,
            interned_data,
            track_event: Some(message),
            ..TracePacket::default()
        })
    }

    /// A number for a name, which is 0 for none, and what has to be said of it the first time.
    fn intern(&mut self, name: &str) -> (u64, Option<InternedData>) {
        if name.is_empty() {
            return (0, None);
        }
        if let Some(&iid) = self.names.get(name) {
            return (iid, None);
        }
        let iid = self.names.len() as u64 + 1;
        self.names.insert(name.to_owned(), iid);
        (iid, Some(InternedData { event_names: vec![EventName { iid, name: name.into() }] }))
    }

    /// The end.
    pub(super) fn finish(mut self) -> io::Result<u64> {
        self.out.flush()?;
        Ok(self.bytes)
    }
}
