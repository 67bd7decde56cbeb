//! From events to tracks, and to the packets of a Perfetto trace in the order in which a viewer needs them: names before the events that
//! have them.
//!
//! ```text
//! pCPUs
//!   pCPU 0     who runs:  vCPU 3 | vCPU 0 | ...
//! vCPUs
//!   vCPU 0     running | preempted: holder | halted | ...       kicks leave and arrive here, as flows;
//!                                                             injections, as instants
//!     lock     wait for lock 0 | hold lock 0 | ...
//! run          the measuring window; what was dropped; what is missing, and why
//! ```

use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufWriter, Write};

use haltkick_sim::schedule::perfetto::{
    BEGIN, Clock, ClockSnapshot, DebugAnnotation, END, EventName, INSTANT, InternedData, TracePacket,
    TracePacketDefaults, TrackDescriptor, TrackEvent as EventMessage,
};
use rustix::time::{ClockId, clock_gettime};

use super::{Event, Trace, What};
use crate::guest::Activity;
use crate::observe::Where;

const RUN: Track = Track(1);
const PCPUS: Track = Track(2);
const VCPUS: Track = Track(3);

fn pcpu_track(pcpu: u32) -> Track {
    Track(0x1_0000 + u64::from(pcpu))
}

fn vcpu_track(vcpu: u32) -> Track {
    Track(0x2_0000 + u64::from(vcpu))
}

fn lock_track(vcpu: u32) -> Track {
    Track(0x3_0000 + u64::from(vcpu))
}

/// The state of one vCPU's tracks while the events are gone through.
#[derive(Clone, Default)]
struct VcpuTrack {
    name: String,
    /// The slice that is open.
    open: Option<&'static str>,
    /// The pCPU that it runs on.
    pcpu: Option<u32>,
    /// A kick that arrives when it runs again.
    kicked_by: Option<u64>,
}

/// All of them.
struct Tracks {
    vcpus: Vec<VcpuTrack>,
    /// Which vCPU has its slice open on a pCPU.
    on: BTreeMap<u32, u32>,
}

impl Trace {
    /// Writes the trace as a file that ui.perfetto.dev opens; gives its length in bytes.
    ///
    /// # Errors
    /// What writing fails with.
    pub fn write(&self, out: impl Write) -> io::Result<u64> {
        let mut writer = Writer::new(BufWriter::new(out))?;
        self.declare(&mut writer)?;
        self.write_run(&mut writer)?;
        self.write_events(&mut writer)?;
        self.write_sections(&mut writer)?;
        writer.finish()
    }

    fn declare(&self, writer: &mut Writer<impl Write>) -> io::Result<()> {
        writer.track(RUN, None, 0, "run")?;
        if !self.about.pcpus.is_empty() {
            writer.track(PCPUS, None, 1, "pCPUs")?;
        }
        for (rank, &pcpu) in self.about.pcpus.iter().enumerate() {
            writer.track(pcpu_track(pcpu), Some(PCPUS), rank as u64, &format!("pCPU {pcpu}"))?;
        }
        writer.track(VCPUS, None, 2, "vCPUs")?;
        for (vcpu, name) in (0..).zip(self.about.vcpu_names()) {
            writer.track(vcpu_track(vcpu), Some(VCPUS), u64::from(vcpu), &name)?;
            writer.track(lock_track(vcpu), Some(vcpu_track(vcpu)), 0, "lock")?;
        }
        Ok(())
    }

    /// The window, and how much is missing.
    fn write_run(&self, writer: &mut Writer<impl Write>) -> io::Result<()> {
        let (start_ns, end_ns) = (self.clock.start.ns, self.clock.end.ns);
        if self.dropped_events > 0 || self.sections.dropped > 0 || self.sections.implausible > 0 {
            let dropped = [
                ("host_events", self.dropped_events),
                ("guest_sections", self.sections.dropped),
                ("implausible_sections", self.sections.implausible),
            ];
            writer.event(&TrackEvent { annotations: &dropped, ..instant(RUN, start_ns, "dropped") })?;
        }
        if self.about.lost_reports > 0 {
            // Unlike events that a ring has dropped, they leave holes.
            let lost = [("switches", self.about.lost_reports)];
            writer.event(&TrackEvent { annotations: &lost, ..instant(RUN, start_ns, "lost reports") })?;
        }
        for missing in &self.about.missing {
            writer.event(&instant(RUN, start_ns, &format!("without {missing}")))?;
        }
        let [open_ns, close_ns] = self.about.window_ns;
        if open_ns < end_ns {
            writer.event(&begin(RUN, open_ns, "window"))?;
            writer.event(&end(RUN, close_ns.clamp(open_ns, end_ns)))?;
        }
        Ok(())
    }

    fn write_events(&self, writer: &mut Writer<impl Write>) -> io::Result<()> {
        let named = |name| VcpuTrack { name, ..VcpuTrack::default() };
        let vcpus = self.about.vcpu_names().into_iter().map(named).collect();
        let mut tracks = Tracks { vcpus, on: BTreeMap::new() };
        for (number, event) in (1..).zip(&self.events) {
            self.write_event(writer, &mut tracks, number, *event)?;
        }
        for (vcpu, track) in (0..).zip(&tracks.vcpus) {
            if track.open.is_some() {
                writer.event(&end(vcpu_track(vcpu), self.clock.end.ns))?;
            }
            if let Some(pcpu) = track.pcpu {
                writer.event(&end(pcpu_track(pcpu), self.clock.end.ns))?;
            }
        }
        Ok(())
    }

    fn write_event(
        &self,
        writer: &mut Writer<impl Write>,
        tracks: &mut Tracks,
        number: u64,
        Event { at_ns, what }: Event,
    ) -> io::Result<()> {
        match what {
            What::Runs { vcpu, pcpu } => {
                self.takes(writer, tracks, vcpu, pcpu, at_ns)?;
                let track = &mut tracks.vcpus[vcpu as usize];
                let ends_flow = track.kicked_by.take();
                let name = if track.pcpu.is_some() { RUNNING } else { "awake" };
                let on = track.pcpu.map(|pcpu| [("pcpu", u64::from(pcpu))]);
                let annotations = on.as_ref().map_or(&[] as &[_], |on| on.as_slice());
                // Its thread says so, too, where the host's scheduler is watched.
                let known = pcpu.is_none() && ends_flow.is_none() && track.open == Some(name);
                let slice = TrackEvent { ends_flow, annotations, ..begin(vcpu_track(vcpu), at_ns, name) };
                if known { Ok(()) } else { change(writer, track, name, &slice) }
            }
            What::Takes { vcpu, pcpu } => self.takes(writer, tracks, vcpu, Some(pcpu), at_ns),
            What::Leaves { vcpu } => leaves(writer, &mut tracks.vcpus[vcpu as usize], at_ns),
            What::Wakes { vcpu } => becomes_ready(writer, &mut tracks.vcpus[vcpu as usize], vcpu, at_ns),
            What::Stops { vcpu, to } => {
                let track = &mut tracks.vcpus[vcpu as usize];
                leaves(writer, track, at_ns)?;
                if let Where::KeptOut(_) = to {
                    writer.event(&instant(vcpu_track(vcpu), at_ns, "injection"))?;
                }
                match state(to) {
                    Some(name) => change(writer, track, name, &begin(vcpu_track(vcpu), at_ns, name)),
                    None if track.open.take().is_some() => writer.event(&end(vcpu_track(vcpu), at_ns)),
                    None => Ok(()),
                }
            }
            What::Kicks { from, to, asleep } => {
                let flow = Some(number);
                writer.event(&TrackEvent { flow, ..instant(vcpu_track(from), at_ns, "kick") })?;
                if asleep {
                    let track = &mut tracks.vcpus[to as usize];
                    track.kicked_by = flow;
                    return becomes_ready(writer, track, to, at_ns);
                }
                writer
                    .event(&TrackEvent { ends_flow: flow, ..instant(vcpu_track(to), at_ns, "kick latched") })
            }
        }
    }

    /// `vcpu` gets `pcpu`, if that is known and one of the run's.
    fn takes(
        &self,
        writer: &mut Writer<impl Write>,
        tracks: &mut Tracks,
        vcpu: u32,
        pcpu: Option<u32>,
        at_ns: u64,
    ) -> io::Result<()> {
        let Some(pcpu) = pcpu.filter(|pcpu| self.about.pcpus.contains(pcpu)) else { return Ok(()) };
        // A report of the host's scheduler may have got lost: the end of this vCPU's last turn, or of the last one here.
        leaves(writer, &mut tracks.vcpus[vcpu as usize], at_ns)?;
        let before = tracks.on.insert(pcpu, vcpu).map(|before| &mut tracks.vcpus[before as usize]);
        if let Some(before) = before.filter(|before| before.pcpu == Some(pcpu)) {
            leaves(writer, before, at_ns)?;
        }
        let track = &mut tracks.vcpus[vcpu as usize];
        track.pcpu = Some(pcpu);
        writer.event(&begin(pcpu_track(pcpu), at_ns, &track.name))
    }

    fn write_sections(&self, writer: &mut Writer<impl Write>) -> io::Result<()> {
        for (vcpu, sections) in (0..).zip(&self.sections.per_vcpu) {
            let track = lock_track(vcpu);
            for section in sections {
                let lock = section.lock;
                writer.event(&begin(track, section.asked_ns, &format!("wait for lock {lock}")))?;
                writer.event(&end(track, section.had_ns))?;
                writer.event(&begin(track, section.had_ns, &format!("hold lock {lock}")))?;
                writer.event(&end(track, section.left_ns))?;
            }
            if let Some(open) = self.sections.unfinished[vcpu as usize] {
                let does = if open.holds { "hold" } else { "wait for" };
                writer.event(&begin(track, open.asked_ns, &format!("{does} lock {}", open.lock)))?;
                writer.event(&end(track, self.clock.end.ns))?;
            }
        }
        Ok(())
    }
}

const RUNNING: &str = "running";
const READY: &str = "ready";

/// The vCPU of `track` is off its pCPU.
fn leaves(writer: &mut Writer<impl Write>, track: &mut VcpuTrack, at_ns: u64) -> io::Result<()> {
    track.pcpu.take().map_or(Ok(()), |pcpu| writer.event(&end(pcpu_track(pcpu), at_ns)))
}

/// Ends the slice that is open, and begins `slice`, which is called `name`.
fn change(
    writer: &mut Writer<impl Write>,
    track: &mut VcpuTrack,
    name: &'static str,
    slice: &TrackEvent<'_>,
) -> io::Result<()> {
    if track.open.replace(name).is_some() {
        writer.event(&end(slice.track, slice.at_ns))?;
    }
    writer.event(slice)
}

/// A sleeper was woken: by a kick, of which the kernel tells as well where its scheduler is watched.
fn becomes_ready(
    writer: &mut Writer<impl Write>,
    track: &mut VcpuTrack,
    vcpu: u32,
    at_ns: u64,
) -> io::Result<()> {
    if track.open == Some(READY) {
        return Ok(());
    }
    change(writer, track, READY, &begin(vcpu_track(vcpu), at_ns, READY))
}

/// Names the state of a vCPU that is off its pCPU; `None` when the vCPU is done.
fn state(at: Where) -> Option<&'static str> {
    Some(match at {
        Where::Preempted(Activity::Holder) => "preempted: holder",
        Where::Preempted(Activity::Head) => "preempted: head",
        Where::Preempted(Activity::Waiter) => "preempted: waiter",
        Where::Preempted(Activity::Other) => "preempted",
        Where::KeptOut(Activity::Holder) => "descheduled: holder",
        Where::KeptOut(Activity::Head) => "descheduled: head",
        Where::KeptOut(Activity::Waiter) => "descheduled: waiter",
        Where::KeptOut(Activity::Other) => "descheduled",
        Where::Asleep => "halted",
        Where::Blocked => "blocked",
        Where::Ready => "yielded",
        Where::Left | Where::NotStarted | Where::Running | Where::Runnable => return None,
    })
}

fn begin(track: Track, at_ns: u64, name: &str) -> TrackEvent<'_> {
    TrackEvent { track, kind: BEGIN, at_ns, name, flow: None, ends_flow: None, annotations: &[] }
}

fn end(track: Track, at_ns: u64) -> TrackEvent<'static> {
    TrackEvent { kind: END, ..begin(track, at_ns, "") }
}

fn instant(track: Track, at_ns: u64, name: &str) -> TrackEvent<'_> {
    TrackEvent { kind: INSTANT, ..begin(track, at_ns, name) }
}

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

    pub(super) fn finish(mut self) -> io::Result<u64> {
        self.out.flush()?;
        Ok(self.bytes)
    }
}
