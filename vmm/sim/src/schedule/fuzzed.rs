//! Files that call themselves schedules.

use haltkick_fuzzing::Target;

use super::perfetto::{
    BEGIN, END, EventName, INSTANT, InternedData, TracePacket, TrackDescriptor, TrackEvent,
};
use super::{MOST_ABSENCES, MOST_VCPUS, Schedule};

/// The fuzz target of recorded schedules.
pub const TARGET: Target = Target { name: "schedule", most_bytes: 256, seeds, execute };

/// Two vCPUs in the words of perf; below, in those of trace-cmd.
pub(super) const PERF: &str = "\
# a comment
       CPU 0/KVM  1234 [002]   100.000000: sched:sched_switch: prev_comm=CPU 0/KVM prev_pid=1234 prev_prio=120 prev_state=R ==> next_comm=a b next_pid=9 next_prio=120
             a b     9 [002]   100.000050: sched:sched_switch: prev_comm=a b prev_pid=9 prev_prio=120 prev_state=S ==> next_comm=CPU 0/KVM next_pid=1234 next_prio=120
       CPU 1/KVM  1235 [003]   100.000060: sched:sched_switch: prev_comm=CPU 1/KVM prev_pid=1235 prev_prio=120 prev_state=S ==> next_comm=swapper/3 next_pid=0 next_prio=120
       CPU 0/KVM  1234 [002]   100.000070: sched:sched_wakeup: comm=CPU 1/KVM pid=1235 prio=120 target_cpu=003
         swapper     0 [003]   100.000075: sched:sched_switch: prev_comm=swapper/3 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=CPU 1/KVM next_pid=1235 next_prio=120
       CPU 0/KVM  1234 [002]   100.000080: sched:sched_switch: prev_comm=CPU 0/KVM prev_pid=1234 prev_prio=120 prev_state=R+ ==> next_comm=a b next_pid=9 next_prio=120
             a b     9 [002]   100.000100: sched:sched_switch: prev_comm=a b prev_pid=9 prev_prio=120 prev_state=S ==> next_comm=swapper/2 next_pid=0 next_prio=120
";
pub(super) const TRACE_CMD: &str = "\
cpus=4
       CPU 0/KVM-1234  [002]   100.000000: sched_switch:         CPU 0/KVM:1234 [120] R ==> a b:9 [120]
             a b-9     [002]   100.000050: sched_switch:         a b:9 [120] S ==> CPU 0/KVM:1234 [120]
       CPU 1/KVM-1235  [003]   100.000060: sched_switch:         CPU 1/KVM:1235 [120] S ==> swapper/3:0 [120]
       CPU 0/KVM-1234  [002]   100.000070: sched_wakeup:         CPU 1/KVM:1235 [120] CPU:003
          <idle>-0     [003]   100.000075: sched_switch:         swapper/3:0 [120] R ==> CPU 1/KVM:1235 [120]
       CPU 0/KVM-1234  [002]   100.000080: sched_switch:         CPU 0/KVM:1234 [120] R+ ==> a b:9 [120]
             a b-9     [002]   100.000100: sched_switch:         a b:9 [120] S ==> swapper/2:0 [120]
";

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
    vec![PERF.into(), TRACE_CMD.into(), perfetto()]
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
        assert_eq!(read, 3, "each seed is a schedule");
        TARGET.run();
    }

    #[test]
    fn long_schedules_take_time_in_proportion_to_their_length() {
        TARGET.grow();
    }
}
