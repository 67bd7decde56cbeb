//! The few messages of a Perfetto trace that are needed, written by hand.
//!
//! A trace is a sequence of packets, each a protocol-buffers message; the field numbers are those of
//! `protos/perfetto/trace/trace_packet.proto` and its neighbours (Apache-2.0). A test reads what is written here with
//! another implementation.

use std::collections::HashMap;
use std::io::{self, Write};

use rustix::time::{ClockId, clock_gettime};

/// CLOCK_MONOTONIC, CLOCK_BOOTTIME and CLOCK_REALTIME in Perfetto's numbering.
const CLOCK_MONOTONIC: u64 = 3;
const CLOCK_BOOTTIME: u64 = 6;
const CLOCK_REALTIME: u64 = 1;

/// All packets come from one writer.
const SEQUENCE: u64 = 1;

mod packet {
    pub(super) const CLOCK_SNAPSHOT: u32 = 6;
    pub(super) const TIMESTAMP: u32 = 8;
    pub(super) const SEQUENCE_ID: u32 = 10;
    pub(super) const TRACK_EVENT: u32 = 11;
    pub(super) const INTERNED_DATA: u32 = 12;
    pub(super) const SEQUENCE_FLAGS: u32 = 13;
    pub(super) const DEFAULTS: u32 = 59;
    pub(super) const TRACK_DESCRIPTOR: u32 = 60;
    /// In the defaults.
    pub(super) const TIMESTAMP_CLOCK_ID: u32 = 58;
    /// Flags: what was said before is void; this packet relies on it.
    pub(super) const INCREMENTAL_STATE_CLEARED: u64 = 1;
    pub(super) const NEEDS_INCREMENTAL_STATE: u64 = 2;
}

mod track {
    pub(super) const UUID: u32 = 1;
    pub(super) const NAME: u32 = 2;
    pub(super) const PARENT_UUID: u32 = 5;
    pub(super) const CHILD_ORDERING: u32 = 11;
    pub(super) const SIBLING_ORDER_RANK: u32 = 12;
    pub(super) const ORDERING_EXPLICIT: u64 = 3;
}

mod event {
    pub(super) const DEBUG_ANNOTATIONS: u32 = 4;
    pub(super) const TYPE: u32 = 9;
    pub(super) const NAME_IID: u32 = 10;
    pub(super) const TRACK_UUID: u32 = 11;
    pub(super) const FLOW_IDS: u32 = 47;
    pub(super) const TERMINATING_FLOW_IDS: u32 = 48;
    /// Annotations.
    pub(super) const ANNOTATION_NAME: u32 = 10;
    pub(super) const ANNOTATION_UINT: u32 = 3;
}

/// Kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Begin = 1,
    End = 2,
    Instant = 3,
}

/// A track, by its number in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Track(pub(super) u64);

/// One event on a track.
#[derive(Debug)]
pub(super) struct TrackEvent<'a> {
    pub(super) track: Track,
    pub(super) kind: Kind,
    pub(super) at_ns: u64,
    /// Empty for the end of a slice.
    pub(super) name: &'a str,
    /// A flow that starts here or passes by.
    pub(super) flow: Option<u64>,
    /// A flow that ends here.
    pub(super) ends_flow: Option<u64>,
    pub(super) annotations: &'a [(&'a str, u64)],
}

/// A message under construction.
#[derive(Debug, Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn number(mut self, field: u32, value: u64) -> Self {
        self.varint(u64::from(field) << 3);
        self.varint(value);
        self
    }

    fn fixed64(mut self, field: u32, value: u64) -> Self {
        self.varint(u64::from(field) << 3 | 1);
        self.0.extend(value.to_le_bytes());
        self
    }

    fn bytes(mut self, field: u32, bytes: &[u8]) -> Self {
        self.varint(u64::from(field) << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
        self
    }

    fn message(self, field: u32, message: &Self) -> Self {
        self.bytes(field, &message.0)
    }
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
        let defaults = Message::default().number(packet::TIMESTAMP_CLOCK_ID, CLOCK_MONOTONIC);
        writer.packet(
            Message::default()
                .number(packet::SEQUENCE_ID, SEQUENCE)
                .number(packet::SEQUENCE_FLAGS, packet::INCREMENTAL_STATE_CLEARED)
                .message(packet::DEFAULTS, &defaults),
        )?;
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
        let snapshot = clocks.into_iter().fold(Message::default(), |snapshot, (id, clock)| {
            let time = clock_gettime(clock);
            let ns = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
            snapshot.message(1, &Message::default().number(1, id).number(2, ns))
        });
        self.packet(
            Message::default()
                .number(packet::SEQUENCE_ID, SEQUENCE)
                .message(packet::CLOCK_SNAPSHOT, &snapshot.number(2, CLOCK_MONOTONIC)),
        )
    }

    fn packet(&mut self, packet: Message) -> io::Result<()> {
        let framed = Message::default().bytes(1, &packet.0);
        self.bytes += framed.0.len() as u64;
        self.out.write_all(&framed.0)
    }

    /// Declares a track; its place among its siblings is the `rank`.
    pub(super) fn track(
        &mut self,
        track: Track,
        parent: Option<Track>,
        rank: u64,
        name: &str,
    ) -> io::Result<()> {
        let mut descriptor = Message::default()
            .number(track::UUID, track.0)
            .bytes(track::NAME, name.as_bytes())
            .number(track::CHILD_ORDERING, track::ORDERING_EXPLICIT)
            .number(track::SIBLING_ORDER_RANK, rank);
        if let Some(parent) = parent {
            descriptor = descriptor.number(track::PARENT_UUID, parent.0);
        }
        self.packet(
            Message::default()
                .number(packet::SEQUENCE_ID, SEQUENCE)
                .message(packet::TRACK_DESCRIPTOR, &descriptor),
        )
    }

    /// Writes an event. Those of one track come in order.
    pub(super) fn event(&mut self, event: &TrackEvent<'_>) -> io::Result<()> {
        let mut packet = Message::default()
            .number(packet::TIMESTAMP, event.at_ns)
            .number(packet::SEQUENCE_ID, SEQUENCE)
            .number(packet::SEQUENCE_FLAGS, packet::NEEDS_INCREMENTAL_STATE);
        let mut message = Message::default()
            .number(event::TYPE, event.kind as u64)
            .number(event::TRACK_UUID, event.track.0);
        if !event.name.is_empty() {
            let (iid, new) = self.intern(event.name);
            message = message.number(event::NAME_IID, iid);
            if let Some(new) = new {
                packet = packet.message(packet::INTERNED_DATA, &new);
            }
        }
        if let Some(flow) = event.flow {
            message = message.fixed64(event::FLOW_IDS, flow);
        }
        if let Some(flow) = event.ends_flow {
            message = message.fixed64(event::TERMINATING_FLOW_IDS, flow);
        }
        for (name, value) in event.annotations {
            let annotation = Message::default()
                .bytes(event::ANNOTATION_NAME, name.as_bytes())
                .number(event::ANNOTATION_UINT, *value);
            message = message.message(event::DEBUG_ANNOTATIONS, &annotation);
        }
        self.packet(packet.message(packet::TRACK_EVENT, &message))
    }

    /// A number for a name, and what has to be said of it the first time.
    fn intern(&mut self, name: &str) -> (u64, Option<Message>) {
        if let Some(&iid) = self.names.get(name) {
            return (iid, None);
        }
        let iid = self.names.len() as u64 + 1;
        self.names.insert(name.to_owned(), iid);
        let entry = Message::default().number(1, iid).bytes(2, name.as_bytes());
        (iid, Some(Message::default().message(2, &entry)))
    }

    /// The end.
    pub(super) fn finish(mut self) -> io::Result<u64> {
        self.out.flush()?;
        Ok(self.bytes)
    }
}
