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
    TracePacketDefaults, TrackDescriptor, TrackEvent,
};
use rustix::time::ClockId;

use super::{Event, Trace, What};
use crate::guest::Activity;
use crate::host::clock::nanoseconds;
use crate::observe::Where;

// Tracks, by their numbers in the file.
const RUN: u64 = 1;
const PCPUS: u64 = 2;
const VCPUS: u64 = 3;

fn pcpu_track(pcpu: u32) -> u64 {
    0x1_0000 + u64::from(pcpu)
}

fn vcpu_track(vcpu: u32) -> u64 {
    0x2_0000 + u64::from(vcpu)
}

fn lock_track(vcpu: u32) -> u64 {
    0x3_0000 + u64::from(vcpu)
}

/// The state of one vCPU's tracks while the events are gone through.
#[derive(Clone, Default)]
struct VcpuTrack {
    name: String,
    /// The slice that is open.
    open: Option<&'static str>,
    pcpu: Option<u32>,
    /// A kick that arrives when it runs again.
    kicked_by: Option<u64>,
}

struct Events<'w, W> {
    writer: &'w mut Writer<W>,
    pcpus: &'w [u32],
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
            let debug_annotations = dropped.map(annotation).into();
            writer.event(start_ns, "dropped", TrackEvent { debug_annotations, ..on(RUN, INSTANT) })?;
        }
        if self.about.lost_reports > 0 {
            // Unlike events that a ring has dropped, they leave holes.
            let debug_annotations = vec![annotation(("switches", self.about.lost_reports))];
            writer.event(start_ns, "lost reports", TrackEvent { debug_annotations, ..on(RUN, INSTANT) })?;
        }
        for missing in &self.about.missing {
            writer.event(start_ns, &format!("without {missing}"), on(RUN, INSTANT))?;
        }
        let [open_ns, close_ns] = self.about.window_ns;
        if open_ns < end_ns {
            writer.slice(RUN, [open_ns, close_ns.clamp(open_ns, end_ns)], "window")?;
        }
        Ok(())
    }

    fn write_events(&self, writer: &mut Writer<impl Write>) -> io::Result<()> {
        let named = |name| VcpuTrack { name, ..VcpuTrack::default() };
        let vcpus = self.about.vcpu_names().into_iter().map(named).collect();
        let mut events = Events { writer, pcpus: &self.about.pcpus, vcpus, on: BTreeMap::new() };
        for (number, event) in (1..).zip(&self.events) {
            events.write(number, *event)?;
        }
        for vcpu in 0..events.vcpus.len() as u32 {
            if events.vcpus[vcpu as usize].open.is_some() {
                events.writer.end(vcpu_track(vcpu), self.clock.end.ns)?;
            }
            events.leaves(vcpu, self.clock.end.ns)?;
        }
        Ok(())
    }

    fn write_sections(&self, writer: &mut Writer<impl Write>) -> io::Result<()> {
        for (vcpu, sections) in (0..).zip(&self.sections.per_vcpu) {
            let track = lock_track(vcpu);
            for section in sections {
                let lock = section.lock;
                writer.slice(track, [section.asked_ns, section.had_ns], &format!("wait for lock {lock}"))?;
                writer.slice(track, [section.had_ns, section.left_ns], &format!("hold lock {lock}"))?;
            }
            if let Some((since_ns, does)) = &self.sections.unfinished[vcpu as usize] {
                writer.slice(track, [*since_ns, self.clock.end.ns], does)?;
            }
        }
        Ok(())
    }
}

const RUNNING: &str = "running";
const READY: &str = "ready";

impl<W: Write> Events<'_, W> {
    fn write(&mut self, number: u64, Event { at_ns, vcpu, what }: Event) -> io::Result<()> {
        match what {
            What::Runs { pcpu } => {
                self.takes(vcpu, pcpu, at_ns)?;
                let track = &mut self.vcpus[vcpu as usize];
                let terminating_flow_ids: Vec<u64> = track.kicked_by.take().into_iter().collect();
                let name = if track.pcpu.is_some() { RUNNING } else { "awake" };
                // Its thread says so, too, where the host's scheduler is watched.
                if pcpu.is_none() && terminating_flow_ids.is_empty() && track.open == Some(name) {
                    return Ok(());
                }
                let pcpu = track.pcpu.map(|pcpu| annotation(("pcpu", u64::from(pcpu))));
                let debug_annotations = pcpu.into_iter().collect();
                let begin = on(vcpu_track(vcpu), BEGIN);
                let slice = TrackEvent { terminating_flow_ids, debug_annotations, ..begin };
                self.change(vcpu, at_ns, name, slice)
            }
            What::Takes { pcpu } => self.takes(vcpu, Some(pcpu), at_ns),
            What::Leaves => self.leaves(vcpu, at_ns),
            What::Wakes => self.becomes_ready(vcpu, at_ns),
            What::Stops { to } => {
                self.leaves(vcpu, at_ns)?;
                if let Where::KeptOut(_) = to {
                    self.writer.event(at_ns, "injection", on(vcpu_track(vcpu), INSTANT))?;
                }
                match state(to) {
                    Some(name) => self.change(vcpu, at_ns, name, on(vcpu_track(vcpu), BEGIN)),
                    None if self.vcpus[vcpu as usize].open.take().is_some() => {
                        self.writer.end(vcpu_track(vcpu), at_ns)
                    }
                    None => Ok(()),
                }
            }
            What::Kicks { to, asleep } => {
                let flow = vec![number];
                let kick = TrackEvent { flow_ids: flow.clone(), ..on(vcpu_track(vcpu), INSTANT) };
                self.writer.event(at_ns, "kick", kick)?;
                if asleep {
                    self.vcpus[to as usize].kicked_by = Some(number);
                    return self.becomes_ready(to, at_ns);
                }
                let latched = TrackEvent { terminating_flow_ids: flow, ..on(vcpu_track(to), INSTANT) };
                self.writer.event(at_ns, "kick latched", latched)
            }
        }
    }

    /// `vcpu` gets `pcpu`, if that is known and one of the run's.
    fn takes(&mut self, vcpu: u32, pcpu: Option<u32>, at_ns: u64) -> io::Result<()> {
        let Some(pcpu) = pcpu.filter(|pcpu| self.pcpus.contains(pcpu)) else { return Ok(()) };
        // A report of the host's scheduler may have got lost: the end of this vCPU's last turn, or of the last one here.
        self.leaves(vcpu, at_ns)?;
        let before = self.on.insert(pcpu, vcpu);
        if let Some(before) = before.filter(|before| self.vcpus[*before as usize].pcpu == Some(pcpu)) {
            self.leaves(before, at_ns)?;
        }
        let track = &mut self.vcpus[vcpu as usize];
        track.pcpu = Some(pcpu);
        self.writer.event(at_ns, &track.name, on(pcpu_track(pcpu), BEGIN))
    }

    fn leaves(&mut self, vcpu: u32, at_ns: u64) -> io::Result<()> {
        let pcpu = self.vcpus[vcpu as usize].pcpu.take();
        pcpu.map_or(Ok(()), |pcpu| self.writer.end(pcpu_track(pcpu), at_ns))
    }

    /// Ends the slice of `vcpu` that is open, and begins `slice`, which is called `name`.
    fn change(&mut self, vcpu: u32, at_ns: u64, name: &'static str, slice: TrackEvent) -> io::Result<()> {
        if self.vcpus[vcpu as usize].open.replace(name).is_some() {
            self.writer.end(slice.track_uuid, at_ns)?;
        }
        self.writer.event(at_ns, name, slice)
    }

    /// A sleeper was woken: by a kick, of which the kernel tells as well where its scheduler is watched.
    fn becomes_ready(&mut self, vcpu: u32, at_ns: u64) -> io::Result<()> {
        if self.vcpus[vcpu as usize].open == Some(READY) {
            return Ok(());
        }
        self.change(vcpu, at_ns, READY, on(vcpu_track(vcpu), BEGIN))
    }
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

/// An event on a track: `BEGIN`, `END` or `INSTANT`.
fn on(track: u64, kind: i32) -> TrackEvent {
    TrackEvent { track_uuid: track, r#type: kind, ..TrackEvent::default() }
}

fn annotation((name, value): (&str, u64)) -> DebugAnnotation {
    DebugAnnotation { uint_value: Some(value), name: name.into() }
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

struct Writer<W> {
    out: W,
    names: HashMap<String, u64>,
    bytes: u64,
}

impl<W: Write> Writer<W> {
    /// Begins a trace whose times are CLOCK_MONOTONIC.
    fn new(out: W) -> io::Result<Self> {
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
        let clocks = clocks.map(|(clock_id, clock)| Clock { clock_id, timestamp: nanoseconds(clock) });
        let snapshot = ClockSnapshot { clocks: clocks.into(), primary_trace_clock: CLOCK_MONOTONIC };
        self.packet(TracePacket { clock_snapshot: Some(snapshot), ..TracePacket::default() })
    }

    fn packet(&mut self, packet: TracePacket) -> io::Result<()> {
        let framed = TracePacket { trusted_packet_sequence_id: SEQUENCE, ..packet }.framed();
        self.bytes += framed.len() as u64;
        self.out.write_all(&framed)
    }

    /// Declares a track; its place among its siblings is the `rank`.
    fn track(&mut self, track: u64, parent: Option<u64>, rank: u64, name: &str) -> io::Result<()> {
        let descriptor = TrackDescriptor {
            uuid: track,
            name: name.into(),
            parent_uuid: parent,
            child_ordering: ORDERING_EXPLICIT,
            sibling_order_rank: Some(rank),
        };
        self.packet(TracePacket { track_descriptor: Some(descriptor), ..TracePacket::default() })
    }

    /// A slice that has ended.
    fn slice(&mut self, track: u64, [begin_ns, end_ns]: [u64; 2], name: &str) -> io::Result<()> {
        self.event(begin_ns, name, on(track, BEGIN))?;
        self.end(track, end_ns)
    }

    /// The end of the slice that is open.
    fn end(&mut self, track: u64, at_ns: u64) -> io::Result<()> {
        self.event(at_ns, "", on(track, END))
    }

    /// Writes an event; the name of a slice's end is empty. Those of one track come in order.
    fn event(&mut self, at_ns: u64, name: &str, event: TrackEvent) -> io::Result<()> {
        let (name_iid, interned_data) = self.intern(name);
        self.packet(TracePacket {
            timestamp: Some(at_ns),
            sequence_flags: NEEDS_INCREMENTAL_STATE,
            interned_data,
            track_event: Some(TrackEvent { name_iid, ..event }),
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

    fn finish(mut self) -> io::Result<u64> {
        self.out.flush()?;
        Ok(self.bytes)
    }
}
