//! Files that call themselves schedules.

use haltkick_fuzzing::Target;

use super::perfetto::{
    BEGIN, END, EventName, INSTANT, InternedData, TracePacket, TrackDescriptor, TrackEvent,
};
use super::{MOST_ABSENCES, MOST_VCPUS, Schedule};

/// The fuzz target of recorded schedules.
pub const TARGET: Target = Target { name: "schedule", most_bytes: 256, seeds, execute };

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Writer {
    Perf,
    TraceCmd,
    Ftrace,
}

pub(super) const WRITERS: [Writer; 3] = [Writer::Perf, Writer::TraceCmd, Writer::Ftrace];

/// Microseconds, a CPU, the thread there, what it does, and the thread that is switched in or woken: a state stands for a switch.
pub(super) type Row<'a> = (u32, u32, &'a str, &'a str, &'a str);

/// A line of an event; only a time: a line as it is.
fn line(writer: Writer, (us, cpu, by, does, other): Row<'_>) -> String {
    let thread = |thread: &str| {
        let (name, pid) = thread.rsplit_once(':').unwrap_or((thread, ""));
        (name.to_owned(), pid.to_owned())
    };
    let ((name, pid), (woken, id)) = (thread(by), thread(other));
    let at = format!("100.{us:06}");
    let head = match writer {
        Writer::Perf => format!("{name:>16} {pid:>5} [{cpu:03}] {at}: sched:"),
        Writer::TraceCmd => format!("{name:>16}-{pid:<5} [{cpu:03}]  {at}: "),
        Writer::Ftrace => format!("{name:>16}-{pid:<7} (   1200) [{cpu:03}] d..2. {at}: "),
    };
    let is_switch = does.len() < 3;
    let what = match (does, writer) {
        ("", _) => return format!("{by}\n"),
        (_, Writer::TraceCmd) if is_switch => format!("sched_switch: {by} [120] {does} ==> {other} [120]"),
        (_, _) if is_switch => format!(
            "sched_switch: prev_comm={name} prev_pid={pid} prev_prio=120 prev_state={does} ==> next_comm={woken} next_pid={id} \
             next_prio=120"
        ),
        ("sched_wakeup" | "sched_wakeup_new", Writer::TraceCmd) => format!("{does}: {other} [120] CPU:003"),
        _ if does.starts_with("sched") => format!("{does}: comm={woken} pid={id} prio=120 target_cpu=003"),
        _ => format!("{does}: reason 12 rip 0x1"),
    };
    format!("{}\n", [head, what].concat().replace("sched:kvm", "kvm:kvm"))
}

pub(super) fn text(writer: Writer, rows: &[Row<'_>]) -> String {
    rows.iter().map(|row| line(writer, *row)).collect()
}

pub(super) const V0: &str = "CPU 0/KVM:1234";
pub(super) const V1: &str = "CPU 1/KVM:1235";
/// Two vCPUs, one of which sleeps.
pub(super) const SAMPLE: [Row<'_>; 8] = [
    (0, 0, "# a comment", "", ""),
    (0, 2, V0, "R", "a b:9"),
    (50, 2, "a b:9", "S", V0),
    (60, 3, V1, "S", "swapper/3:0"),
    (70, 2, V0, "sched_wakeup", V1),
    (75, 3, "swapper/3:0", "R", V1),
    (80, 2, V0, "R+", "a b:9"),
    (100, 2, "a b:9", "S", "swapper/2:0"),
];

/// Trace as `haltkick run --trace` writes it: vCPU 0 is preempted once, and two instants of the run tell what the trace lacks.
pub(super) fn perfetto() -> Vec<u8> {
    const RUN: u64 = 1;
    const VCPU: u64 = 2;
    let track = |uuid, name: &str| TracePacket {
        track_descriptor: Some(TrackDescriptor { uuid, name: name.into(), ..TrackDescriptor::default() }),
        ..TracePacket::default()
    };
    let named = |iid, name: &str| TracePacket {
        interned_data: Some(InternedData { event_names: vec![EventName { iid, name: name.into() }] }),
        ..TracePacket::default()
    };
    let event = |at_ns, track_uuid, r#type, name_iid| TracePacket {
        timestamp: Some(at_ns),
        track_event: Some(TrackEvent { r#type, name_iid, track_uuid, ..TrackEvent::default() }),
        ..TracePacket::default()
    };
    let packets = [
        track(RUN, "run"),
        track(VCPU, "vCPU 0"),
        named(1, "window"),
        named(2, "preempted: in the section"),
        named(3, "lost reports"),
        named(4, "without who ran on which pCPU: no BPF"),
        event(9, RUN, INSTANT, 3),
        event(9, RUN, INSTANT, 4),
        event(10, RUN, BEGIN, 1),
        event(20, VCPU, BEGIN, 2),
        event(60, VCPU, END, 2),
        event(90, RUN, END, 1),
    ];
    packets.iter().flat_map(TracePacket::framed).collect()
}

fn seeds() -> Vec<Vec<u8>> {
    let texts = WRITERS.map(|writer| text(writer, &SAMPLE).into_bytes());
    texts.into_iter().chain([perfetto()]).collect()
}

/// Any file is refused in one line, or the absences of each vCPU are in order, apart and within the recorded time.
fn execute(bytes: &[u8]) {
    let schedule = match Schedule::parse("any", bytes) {
        Ok(schedule) => schedule,
        Err(refused) => return assert!(!refused.contains('\n'), "{refused:?}"),
    };
    assert!(schedule.vcpus() <= MOST_VCPUS && (1..=MOST_ABSENCES).contains(&schedule.count()));
    for vcpu in 0..schedule.vcpus() {
        let (mut now_ns, mut absent_ns) = (0, 0);
        while let Some(absence) = schedule.next(vcpu, now_ns) {
            assert!(now_ns <= absence.from_ns && absence.from_ns < absence.until_ns, "{absence:?}");
            absent_ns += absence.until_ns - absence.from_ns;
            now_ns = absence.until_ns;
        }
        assert!(now_ns <= schedule.length_ns);
        assert_eq!(schedule.absent_ns(vcpu, 0, u64::MAX), absent_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fuzz_schedule_any_file_is_refused_or_its_absences_are_apart() {
        let read = seeds().iter().filter(|seed| Schedule::parse("seed", seed).is_ok()).count();
        assert_eq!(read, 4, "each seed is a schedule");
        TARGET.run();
    }

    #[test]
    fn long_schedules_take_time_in_proportion_to_their_length() {
        TARGET.grow();
    }
}
