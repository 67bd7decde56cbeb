//! From events to tracks.
//!
//! ```text
//! pCPUs
//!   pCPU 0     who runs:  vCPU 3 | vCPU 0 | ...                 (under the VMM's scheduler)
//! vCPUs
//!   vCPU 0     running | preempted: holder | halted | ...       kicks leave and arrive here, as flows;
//!                                                             injections, as instants
//!     lock     wait for lock 0 | hold lock 0 | ...
//! run          the measuring window; what was dropped; what is missing, and why
//! ```

use std::io::{self, BufWriter, Write};

use super::perfetto::{Kind, Track, TrackEvent, Writer};
use super::{Event, Trace, What, Why};
use crate::account::Activity;

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
    /// A slice is open.
    open: bool,
    /// The pCPU that it runs on.
    pcpu: Option<u32>,
    /// A kick that arrives when it runs again.
    kicked_by: Option<u64>,
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
        if self.dropped_events + self.sections.dropped + self.sections.implausible > 0 {
            let dropped = [
                ("host_events", self.dropped_events),
                ("guest_sections", self.sections.dropped),
                ("implausible_sections", self.sections.implausible),
            ];
            writer.event(&TrackEvent { annotations: &dropped, ..instant(RUN, start_ns, "dropped") })?;
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
        let mut tracks: Vec<_> = self.about.vcpu_names().into_iter().map(named).collect();
        for (number, event) in (1..).zip(&self.events) {
            self.write_event(writer, &mut tracks, number, *event)?;
        }
        for (vcpu, track) in (0..).zip(&tracks) {
            if track.open {
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
        tracks: &mut [VcpuTrack],
        number: u64,
        Event { at_ns, what }: Event,
    ) -> io::Result<()> {
        match what {
            What::Runs { vcpu, pcpu } => {
                let track = &mut tracks[vcpu as usize];
                if std::mem::replace(&mut track.open, true) {
                    writer.event(&end(vcpu_track(vcpu), at_ns))?;
                }
                let on = [("pcpu", u64::from(pcpu.unwrap_or_default()))];
                let running = TrackEvent {
                    ends_flow: track.kicked_by.take(),
                    annotations: if pcpu.is_some() { &on } else { &[] },
                    ..begin(vcpu_track(vcpu), at_ns, if pcpu.is_some() { "running" } else { "awake" })
                };
                writer.event(&running)?;
                track.pcpu = pcpu;
                pcpu.map_or(Ok(()), |pcpu| writer.event(&begin(pcpu_track(pcpu), at_ns, &track.name)))
            }
            What::Stops { vcpu, why } => {
                let track = &mut tracks[vcpu as usize];
                if let Some(pcpu) = track.pcpu.take() {
                    writer.event(&end(pcpu_track(pcpu), at_ns))?;
                }
                if std::mem::replace(&mut track.open, false) {
                    writer.event(&end(vcpu_track(vcpu), at_ns))?;
                }
                if let Why::Injected(_) = why {
                    writer.event(&instant(vcpu_track(vcpu), at_ns, "injection"))?;
                }
                let Some(state) = state(why) else { return Ok(()) };
                track.open = true;
                writer.event(&begin(vcpu_track(vcpu), at_ns, state))
            }
            What::Kicks { from, to, asleep } => {
                let flow = Some(number);
                writer.event(&TrackEvent { flow, ..instant(vcpu_track(from), at_ns, "kick") })?;
                let track = &mut tracks[to as usize];
                if asleep {
                    track.kicked_by = flow;
                    if std::mem::replace(&mut track.open, true) {
                        writer.event(&end(vcpu_track(to), at_ns))?;
                    }
                    return writer.event(&begin(vcpu_track(to), at_ns, "ready"));
                }
                writer
                    .event(&TrackEvent { ends_flow: flow, ..instant(vcpu_track(to), at_ns, "kick latched") })
            }
        }
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

/// What a vCPU that is off its pCPU is; `None` when it is done.
fn state(why: Why) -> Option<&'static str> {
    Some(match why {
        Why::Preempted(Activity::Holder) => "preempted: holder",
        Why::Preempted(Activity::Head) => "preempted: head",
        Why::Preempted(Activity::Waiter) => "preempted: waiter",
        Why::Preempted(Activity::Other) => "preempted",
        Why::Injected(Activity::Holder) => "descheduled: holder",
        Why::Injected(Activity::Head) => "descheduled: head",
        Why::Injected(Activity::Waiter) => "descheduled: waiter",
        Why::Injected(Activity::Other) => "descheduled",
        Why::Waits => "halted",
        Why::Yields => "yielded",
        Why::Left => return None,
    })
}

fn begin(track: Track, at_ns: u64, name: &str) -> TrackEvent<'_> {
    TrackEvent { track, kind: Kind::Begin, at_ns, name, flow: None, ends_flow: None, annotations: &[] }
}

fn end(track: Track, at_ns: u64) -> TrackEvent<'static> {
    TrackEvent { kind: Kind::End, ..begin(track, at_ns, "") }
}

fn instant(track: Track, at_ns: u64, name: &str) -> TrackEvent<'_> {
    TrackEvent { kind: Kind::Instant, ..begin(track, at_ns, name) }
}
