//! Schedules in the words of each program that writes them.

use super::fuzzed::{Row, SAMPLE, V0, V1, WRITERS, Writer, perfetto, text};
use super::*;

fn at(from_us: u64, until_us: u64) -> Absence {
    Absence { from_ns: from_us * 1000, until_ns: until_us * 1000 }
}

#[test]
fn all_programs_tell_of_the_same_schedule() {
    let [schedule, others @ ..] =
        WRITERS.map(|writer| Schedule::parse("x", text(writer, &SAMPLE).as_bytes()));
    assert!(others.iter().all(|other| *other == schedule), "{schedule:?} {others:?}");
    let schedule = schedule.expect("perf's text");
    // vCPU 1 slept, was woken and waited; what it slept is no absence. vCPU 0 is away when the recording ends.
    let expected = vec![vec![at(0, 50), at(80, 100)], vec![at(70, 75)]];
    assert_eq!((schedule.absences.clone(), schedule.length_ns), (expected, 100_000));
    assert_eq!((schedule.vcpus(), schedule.count()), (2, 3));
    assert_eq!(schedule.next(0, 49_999), Some(at(0, 50)));
    assert_eq!((schedule.next(0, 50_000), schedule.next(0, 100_000)), (Some(at(80, 100)), None));
    assert_eq!((schedule.next(2, 0), schedule.absent_ns(2, 0, 9)), (None, 0));
    assert_eq!(schedule.absent_ns(0, 40_000, 90_000), 20_000);
}

#[test]
fn a_trace_of_ours_tells_what_it_lacks() {
    let lacks = "reports of the host's switches were lost: record fewer vCPUs, or --sched vmm (1); \
                 the host's switches are not in it: record as root, or --sched vmm (1)";
    assert_eq!(parsed(&perfetto()), (vec![vec![Absence { from_ns: 0, until_ns: 40 }]], lacks.into()));
}

#[test]
fn what_is_no_schedule_is_refused_in_one_line() {
    let perf = text(Writer::Perf, &SAMPLE);
    let refused = |text: &str, expected: &str| {
        let error = Schedule::parse("x", text.as_bytes()).expect_err(text);
        assert!(error.contains(expected) && !error.contains('\n'), "{error}");
    };
    refused("", "no trace of");
    refused("hello", "no trace of");
    refused(&perf.replace("CPU ", "cpu "), "none of its threads");
    refused(&perf.replace("100.000050:", "then"), "line 3: no time");
    refused(&perf.replace("100.000050", "90.0"), "line 3: vCPU 0 goes back in time");
    for time in ["", "1234567890121", "17"] {
        refused(&perf.replace("100.", time), "line 2: times without a fraction, such as ");
    }
    refused(
        &perf.replace("prev_state=R", "prev_state=S").replace("sched_wakeup", "other"),
        "no vCPU was off",
    );
    refused(&perf.replace("CPU 1/KVM", "CPU 0/KVM"), "threads 1234 and 1235 are both");
    refused(&perf.replace("CPU 1/KVM", "CPU 9999/KVM"), "it names vCPU 9999");
    refused(&perf.replace("==>", "to"), "line 2: a switch without ==>");
    refused("\n\u{1}\u{2}", "in the midst of a packet");
}

/// Absences of vCPUs 0 and 1, and the doubts.
fn parsed(text: &[u8]) -> (Vec<Vec<Absence>>, String) {
    let schedule =
        Schedule::parse("x", text).unwrap_or_else(|error| panic!("{error}\n{}", text.escape_ascii()));
    (schedule.absences, schedule.doubts.unwrap_or_default())
}

const MAKE: &str = "make:900";
const AWAY: [Row<'_>; 2] = [(10, 2, V0, "R", MAKE), (30, 2, MAKE, "R", V0)];
const LATER: [Row<'_>; 2] = [(900, 3, V1, "R", "make:901"), (950, 3, "make:901", "S", V1)];

#[test]
fn what_contradicts_itself_is_counted_and_is_no_absence() {
    let leaves = (40, 2, V0, "R", MAKE);
    let sleeps = (40, 2, V0, "S", MAKE);
    let wakes = (500, 0, MAKE, "sched_wakeup", V0);
    let rows: [(&[Row<'_>], &str); 11] = [
        (
            &[leaves, (800, 2, V0, "S", MAKE)],
            "line 4: a vCPU that has no CPU is switched out: record all CPUs (1",
        ),
        (
            &[(40, 3, MAKE, "S", V0)],
            "line 3: a vCPU that runs is switched in, or is on another CPU (1 in all)",
        ),
        (&[(40, 3, V0, "S", MAKE)], "is on another CPU (1 in all)"),
        (&[(40, 3, V0, "sched_waking", MAKE), (50, 2, V0, "kvm_exit", "")], "is on another CPU (2 in all)"),
        (&[(40, 2, MAKE, "S", "swapper/2:0")], "line 3: a vCPU runs where another thread is switched out (1"),
        (&[leaves, (41, 2, V0, "kvm_exit", "")], "line 4: a vCPU that has no CPU does something (1"),
        (&[leaves, (90, 2, V0, "kvm_msr", "")], "line 4: a vCPU that has no CPU does something (1"),
        (&[leaves, (41, 2, V0, "sched_waking", "a:3")], "line 4: a vCPU that has no CPU does some"),
        (&[sleeps, wakes, (800, 2, V0, "sched_wakeup", "a:3")], "line 5: a vCPU that has no CPU does"),
        (&[wakes, sleeps, (800, 2, MAKE, "S", V0)], "line 5: a vCPU slept and runs without a wake-up"),
        (&[(40, 3, "<...>:77", "S", "make:901")], "line 3: a thread is called <...>, and may be a vCPU's (1"),
    ];
    for writer in WRITERS {
        let (whole, none) = parsed(text(writer, &[&AWAY[..], &LATER].concat()).as_bytes());
        assert_eq!((whole, none.as_str()), (vec![vec![at(0, 20)], vec![at(890, 940)]], ""));
        for (rows, expected) in rows {
            let text = text(writer, &[&AWAY[..], rows, &LATER].concat());
            let (absences, doubts) = parsed(text.as_bytes());
            assert!(doubts.contains(expected), "{writer:?} {rows:?}: {doubts}");
            assert_eq!(absences[0], [at(0, 20)], "{writer:?} {rows:?}");
        }
    }
}

#[test]
fn lost_events_are_counted_and_leave_no_absence() {
    let all = |writer, told: &str, at_end: bool| {
        let told = [(0, 0, told, "", "")];
        let (before, after) = if at_end { (&LATER[..], &[][..]) } else { (&[][..], &LATER[..]) };
        parsed(text(writer, &[&AWAY[..1], before, &told, after].concat()).as_bytes())
    };
    let lost = [
        ("CPU:2 [999 EVENTS DROPPED]", 999),
        ("CPU:2 [EVENTS DROPPED]", 1),
        ("CPU:12 [LOST 999 EVENTS]", 999),
        ("CPU:2 [LOST EVENTS]\r", 1),
        ("            make   900 [002]   100.000400: PERF_RECORD_LOST lost 321", 321),
        ("            make   900 [002]   100.000400: PERF_RECORD_LOST_SAMPLES lost 5", 5),
        ("0 100000400 0x5c5b0 [0x38]: PERF_RECORD_LOST: id:87: lost:81", 81),
        ("Processed 18809 events and lost 16 chunks!", 16),
        ("Processed 264457 samples and lost 95.07%!", 1),
        ("dropped events: 5", 5),
        ("  host.dat: CPU:2 [LOST 5 EVENTS]", 5),
        ("Lost 12 events", 12),
        ("commit overrun: 6", 6),
        ("# entries-in-buffer/entries-written: 94/2243   #P:4", 2149),
    ];
    for (told, count) in lost {
        for at_end in [false, true] {
            let (absences, doubts) = all(Writer::Perf, told, at_end);
            let line = if at_end { 4 } else { 2 };
            let expected =
                format!("line {line}: events were lost: record with larger buffers ({count} in all)");
            assert_eq!(doubts, expected, "{told}");
            let whole = told.starts_with('#') || absences == [vec![], vec![at(890, 940)]];
            assert!(whole, "{told}: {absences:?}");
        }
    }
    for told in [
        "overrun: 0",
        "dropped events: 0",
        "\tffffffff81 lost_events+0x2f ([kernel.kallsyms])",
        "# cmdline : perf record -o lost.data",
        "# entries-in-buffer/entries-written: 9/9   #P:4",
    ] {
        assert_eq!(all(Writer::TraceCmd, told, false).1, "", "{told}");
    }
    // A buffer that went round: what precedes the first event of a CPU is left out, and the rest is whole.
    let started = "##### CPU 3 buffer started ####";
    let rows = [
        &[(0, 0, lost[lost.len() - 1].0, "", "")],
        &[AWAY[0], (30, 2, V0, "R", MAKE)][..],
        &[(0, 0, started, "", "")],
        &LATER,
    ]
    .concat();
    assert_eq!(
        parsed(text(Writer::Ftrace, &rows).as_bytes()),
        (vec![vec![], vec![at(0, 50)]], String::new())
    );
}

#[test]
fn any_event_of_a_wake_up_counts_and_none_is_told() {
    let (sleeps, runs) = ((100, 3, V1, "S", "make:901"), (500, 3, "make:901", "R", V1));
    let (waking, wakeup) = (|us| (us, 2, V0, "sched_waking", V1), |us| (us, 2, V0, "sched_wakeup", V1));
    let (left, back) = ((530, 3, V1, "S", MAKE), (560, 3, MAKE, "R", V1));
    let unwoken = "line 5: a vCPU slept and runs without a wake-up: record sched_waking, too (1 in all)";
    let alone = "line 3: it has no wake-ups, and a vCPU slept: record sched_waking, too (1 in all)";
    let elsewhere = (200, 2, V0, "sched_waking", "make:7");
    let rows: [(&[Row<'_>], Option<Absence>, &str); 11] = [
        (&[sleeps, waking(200), runs], Some(at(190, 490)), ""),
        (&[sleeps, wakeup(200), runs], Some(at(190, 490)), ""),
        (&[sleeps, waking(200), wakeup(210), runs], Some(at(190, 490)), ""),
        (&[(200, 2, V0, "sched_wakeup_new", V1), runs], Some(at(190, 490)), ""),
        // It was woken on its way to sleep; then it stayed, or its wake-up was complete once it had left.
        (&[runs, waking(520), left, back], Some(at(520, 550)), ""),
        (&[runs, waking(520), left, wakeup(540), back], Some(at(520, 550)), ""),
        (&[runs, waking(520), (530, 3, V1, "sched_waking", MAKE)], None, ""),
        (&[runs, waking(520), wakeup(521), left, waking(540)], Some(at(530, 590)), ""),
        (&[sleeps, elsewhere, runs], None, unwoken),
        (&[sleeps, runs], None, alone),
        (&[sleeps], None, alone),
    ];
    for writer in WRITERS {
        for (rows, expected, told) in rows {
            let end = [(600, 0, "a:3", "S", "b:4")];
            let (absences, doubts) = parsed(text(writer, &[&AWAY[..], rows, &end].concat()).as_bytes());
            let expected = vec![vec![at(0, 20)], expected.into_iter().collect()];
            assert_eq!((absences, doubts.as_str()), (expected, told), "{writer:?} {rows:?}");
        }
    }
}

#[test]
fn events_opened_with_modifiers_are_known() {
    let perf = text(Writer::Perf, &SAMPLE);
    let plain = Schedule::parse("x", perf.as_bytes());
    for event in ["switch", "wakeup"] {
        for modifier in
            [":k", ":ukH", "/call-graph=no/", "/max-stack=4/ppp", "/call-graph=no,name=x/k", "/overwrite/u"]
        {
            let name = format!("sched_{event}:");
            let text = perf.replace(&name, &format!("sched_{event}{modifier}:"));
            assert_ne!(text, perf);
            assert_eq!(Schedule::parse("x", text.as_bytes()), plain, "{event}{modifier}");
            // With the sample's period.
            let text = text.replace(": sched:", ":          1     sched:");
            assert_eq!(Schedule::parse("x", text.as_bytes()), plain, "{event}{modifier}");
        }
    }
}

#[test]
fn another_programs_name_decides_nothing() {
    let names =
        b"\xff\xfe[|x [1] 5: y:|==> n:1 [2]|comm=x pid=1|a\nb|\n\nc\n|:1 [2] S ==> x|==>==>==>==>==>|\
        ==> next_comm=| prev_pid=1 x| next_pid=7|sched_switch:|1: sched_waking|[002] 1.0: x:|#x|(x)|  y  |\
        CPU:2 [LOST 9]|PERF_RECORD_LOS|-1|a\tb|[0] 1.0: print:|/KVM|\xe3\x80\x80[\xc2\x85";
    let rows = [
        (10, 2, V0, "R", MAKE),
        (15, 3, V1, "S", MAKE),
        (20, 2, MAKE, "sched_waking", V1),
        (25, 2, MAKE, "sched_waking", "make:7"),
        (30, 2, MAKE, "S", V0),
        (35, 3, MAKE, "sched_wakeup", "make:8"),
        (40, 3, MAKE, "R+", V1),
        (50, 2, V0, "R", MAKE),
        (60, 2, MAKE, "R", MAKE),
        (90, 2, MAKE, "D", V0),
    ];
    let expected = (vec![vec![at(0, 20), at(40, 80)], vec![at(10, 30)]], String::new());
    for writer in WRITERS {
        let text = text(writer, &rows);
        for name in names.split(|byte| *byte == b'|') {
            let parts: Vec<_> = text.split("make").map(str::as_bytes).collect();
            assert_eq!(parsed(&parts.join(name)), expected, "{writer:?} {}", name.escape_ascii());
        }
        // Lines that are cut, lack a time, or have times in other units decide nothing, too.
        for line in [
            "make-9 [002] 100.1: sched_switch: make\n",
            "make-9 sched_switch: make:9 [1] S ==> a:1 [1]\n\n",
            "  \u{1}\n",
            "make-9 [002] 100.1: tracing_mark_write: 1.5: sched_switch: CPU 0/KVM:9 [1] R ==> a:1 [1]\n",
        ] {
            assert_eq!(parsed([line, &text].concat().as_bytes()), expected, "{line}");
        }
        let tick = "make-9 [001] 17: sched_switch: make:9 [1] S ==> a:1 [1]\n";
        assert_eq!(parsed([tick, &text, tick].concat().as_bytes()), expected);
    }
}

#[test]
fn a_thread_without_a_name_is_known_by_its_number() {
    let nameless = "<...>:1234";
    for writer in WRITERS {
        let rows =
            [AWAY[0], (30, 2, MAKE, "R", nameless), (40, 2, nameless, "R", MAKE), (60, 2, MAKE, "S", V0)];
        let expected = (vec![vec![at(0, 20), at(30, 50)]], String::new());
        assert_eq!(parsed(text(writer, &rows).as_bytes()), expected);
        // It has a name where it runs, or where a thread of a misleading name leaves.
        for named in [(5, 2, V0, "kvm_exit", ""), (5, 2, ":1 [2] S ==> x:900", "S", V0)] {
            let rows = [named, (10, 2, nameless, "R", MAKE), (30, 2, MAKE, "R", nameless)];
            let (absences, doubts) = parsed(text(writer, &rows).as_bytes());
            assert_eq!(
                (absences[0][0].until_ns - absences[0][0].from_ns, doubts.as_str()),
                (20_000, ""),
                "{writer:?}"
            );
        }
    }
}
