//! What `--trace` and `--profile` give, read by other eyes: the trace by a protocol-buffers library, with message
//! definitions copied from Perfetto's published ones and not from the writer.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Output};

use prost::Message;
use serde_json::Value;

/// The parts of `perfetto.protos.Trace` that a reader of slices and flows needs.
#[derive(Clone, PartialEq, Message)]
struct Trace {
    #[prost(message, repeated, tag = "1")]
    packet: Vec<TracePacket>,
}

#[derive(Clone, PartialEq, Message)]
struct TracePacket {
    #[prost(message, optional, tag = "6")]
    clock_snapshot: Option<ClockSnapshot>,
    #[prost(uint64, optional, tag = "8")]
    timestamp: Option<u64>,
    #[prost(uint32, tag = "10")]
    trusted_packet_sequence_id: u32,
    #[prost(message, optional, tag = "11")]
    track_event: Option<TrackEvent>,
    #[prost(message, optional, tag = "12")]
    interned_data: Option<InternedData>,
    #[prost(uint32, optional, tag = "13")]
    sequence_flags: Option<u32>,
    #[prost(message, optional, tag = "59")]
    trace_packet_defaults: Option<TracePacketDefaults>,
    #[prost(message, optional, tag = "60")]
    track_descriptor: Option<TrackDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
struct TracePacketDefaults {
    #[prost(uint32, optional, tag = "58")]
    timestamp_clock_id: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
struct ClockSnapshot {
    #[prost(message, repeated, tag = "1")]
    clocks: Vec<Clock>,
}

#[derive(Clone, PartialEq, Message)]
struct Clock {
    #[prost(uint32, tag = "1")]
    clock_id: u32,
    #[prost(uint64, tag = "2")]
    timestamp: u64,
}

#[derive(Clone, PartialEq, Message)]
struct TrackDescriptor {
    #[prost(uint64, tag = "1")]
    uuid: u64,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(uint64, optional, tag = "5")]
    parent_uuid: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
struct InternedData {
    #[prost(message, repeated, tag = "2")]
    event_names: Vec<EventName>,
}

#[derive(Clone, PartialEq, Message)]
struct EventName {
    #[prost(uint64, tag = "1")]
    iid: u64,
    #[prost(string, tag = "2")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct TrackEvent {
    /// 1 begin, 2 end, 3 instant.
    #[prost(int32, tag = "9")]
    r#type: i32,
    #[prost(uint64, optional, tag = "10")]
    name_iid: Option<u64>,
    #[prost(uint64, tag = "11")]
    track_uuid: u64,
    #[prost(fixed64, repeated, packed = "false", tag = "47")]
    flow_ids: Vec<u64>,
    #[prost(fixed64, repeated, packed = "false", tag = "48")]
    terminating_flow_ids: Vec<u64>,
}

/// One slice or instant, as a viewer would show it.
#[derive(Debug)]
struct Shown {
    track: String,
    name: String,
    begin_ns: u64,
    end_ns: u64,
    flows: Vec<u64>,
    ended_flows: Vec<u64>,
}

/// Goes through a trace as a viewer does, and refuses what a viewer would have to mend.
fn shown(trace: &Trace) -> Vec<Shown> {
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

fn haltkick(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_haltkick")).args(arguments).output().expect("haltkick can be started")
}

fn scratch(name: &str) -> PathBuf {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).expect("a scratch directory");
    directory
}

fn usable_kvm() -> bool {
    let doctor: Value = serde_json::from_slice(&haltkick(&["doctor", "--json"]).stdout).expect("JSON");
    let usable = doctor["usable"] == true;
    if !usable {
        eprintln!("skipped: no usable /dev/kvm, see `haltkick doctor`");
    }
    usable
}

/// Runs `arguments` with a trace: the record, what it shows, and when the packets say it was.
fn traced(name: &str, arguments: &[&str]) -> (Value, Vec<Shown>) {
    let path = scratch(name).join("run.pftrace");
    let mut all = vec!["run", "--no-ideal", "--format", "json", "--trace", path.to_str().unwrap()];
    all.extend(arguments);
    let output = haltkick(&all);
    let record = serde_json::from_slice(&output.stdout).expect("a record");
    let bytes = std::fs::read(&path).expect("a trace");
    let trace = Trace::decode(&*bytes).expect("a trace is a message");
    let clock = trace.packet.iter().find_map(|packet| packet.trace_packet_defaults.as_ref());
    assert_eq!(clock.and_then(|defaults| defaults.timestamp_clock_id), Some(3), "CLOCK_MONOTONIC");
    let snapshot = trace.packet.iter().find_map(|packet| packet.clock_snapshot.as_ref()).expect("clocks");
    let now_ns = snapshot.clocks.iter().find(|clock| clock.clock_id == 3).expect("that clock").timestamp;
    let shown = shown(&trace);
    assert!(shown.iter().all(|shown| shown.end_ns <= now_ns), "nothing happened after the file was written");
    (record, shown)
}

#[test]
fn a_trace_shows_who_ran_who_slept_who_held_and_who_kicked_whom() {
    if !usable_kvm() {
        return;
    }
    let (record, shown) = traced(
        "trace",
        &["--lock", "qspinlock", "--pv", "on", "--ratio", "8", "--hold", "5us", "--duration", "300ms"],
    );
    let of = |track: &str, name: &str| -> Vec<&Shown> {
        shown.iter().filter(|shown| shown.track.contains(track) && shown.name.starts_with(name)).collect()
    };
    let sections = of("/lock", "hold lock 0").len() as u64;
    let noted = record["trace"]["guest_sections"].as_u64().unwrap();
    let vcpus = record["config"]["vcpus"].as_u64().unwrap();
    assert!((noted..=noted + vcpus).contains(&sections), "{sections} of {noted} and what was cut off");
    assert!(noted >= record["totals"]["acquisitions"].as_u64().unwrap());
    for (track, name) in [("vCPU", "running"), ("vCPU", "preempted"), ("pCPU", "vCPU"), ("run", "window")] {
        assert!(!of(track, name).is_empty(), "no {name} on {track}");
    }
    // A vCPU that is on a pCPU runs, from the same moment to the same moment.
    for turn in of("pCPUs/", "vCPU ") {
        let track = format!("vCPUs/{}", turn.name);
        let same = shown.iter().any(|shown| {
            shown.track == track
                && shown.name == "running"
                && (shown.begin_ns, shown.end_ns) == (turn.begin_ns, turn.end_ns)
        });
        assert!(same, "{turn:?}");
    }
    let kicks = of("vCPU", "kick");
    assert!(kicks.len() as u64 >= record["vm_exits"]["pv_kick"].as_u64().unwrap(), "{} kicks", kicks.len());
    for end in shown.iter().flat_map(|shown| &shown.ended_flows) {
        let from = shown.iter().filter(|shown| shown.flows.contains(end)).count();
        assert_eq!(from, 1, "flow {end} comes from one kick");
    }
}

#[test]
fn under_the_hosts_scheduler_a_trace_shows_who_ran_on_which_pcpu_where_switches_are_reported() {
    if !usable_kvm() {
        return;
    }
    let arguments = ["--lock", "tas", "--ratio", "4", "--sched", "host", "--duration", "300ms"];
    let (record, shown) = traced("host", &arguments);
    let turns: Vec<_> = shown.iter().filter(|shown| shown.track.starts_with("pCPUs/")).collect();
    if let Some(reason) = record["why"]["switches"].as_str() {
        assert!(turns.is_empty() && record["preemptions"].is_null(), "{} turns nobody saw", turns.len());
        eprintln!("pCPU tracks are skipped, not tested: {reason}");
        return;
    }
    // Nobody sleeps: whoever is on a pCPU runs, and is off because it was preempted. Those that begin with the trace do so
    // before anybody knows where.
    let of = |turn: &Shown, name: &str| {
        let track = format!("vCPUs/{}", turn.name);
        shown.iter().any(|shown| {
            shown.track == track
                && shown.name.starts_with(name)
                && if name == "running" {
                    shown.begin_ns == turn.begin_ns
                } else {
                    shown.begin_ns == turn.end_ns
                }
        })
    };
    let running = turns.iter().filter(|turn| of(turn, "running")).count();
    let preempted = turns.iter().filter(|turn| of(turn, "preempted")).count();
    assert!(running == turns.len() && preempted > 0, "{running}, {preempted} of {} turns", turns.len());
    let counted =
        ["holder", "head", "waiter", "other"].map(|doing| record["preemptions"][doing].as_u64().unwrap());
    let off = shown.iter().filter(|shown| shown.name.starts_with("preempted")).count() as u64;
    // The record counts inside the window, the trace from start to end.
    assert!(off >= counted.iter().sum() && counted.iter().sum::<u64>() > 0, "{off} off, {counted:?} counted");
}

#[test]
fn every_injection_is_an_instant_in_the_trace() {
    if !usable_kvm() {
        return;
    }
    let (record, shown) = traced(
        "injected",
        &["--lock", "mcs", "--ratio", "4", "--deschedule", "holder,rate=200,for=1ms", "--duration", "300ms"],
    );
    let instants = shown.iter().filter(|shown| shown.name == "injection").count() as u64;
    let off = shown.iter().filter(|shown| shown.name == "descheduled: holder").count() as u64;
    let injected = record["injected"]["holder"].as_u64().unwrap_or_default();
    // The record counts inside the window, the trace from start to end.
    assert!(
        instants >= injected.max(1) && off >= injected,
        "{instants} instants, {off} off, {injected} injected"
    );
}

#[test]
fn a_trace_of_a_hang_is_written_and_ends_with_it() {
    if !usable_kvm() {
        return;
    }
    let (record, shown) = traced(
        "hang",
        &[
            "--workload",
            "selftest-hang",
            "--lock",
            "tas",
            "--vcpus",
            "4",
            "--watchdog",
            "300ms",
            "--duration",
            "60s",
        ],
    );
    assert_eq!(record["schema"], "haltkick.failure");
    let waits = shown.iter().filter(|shown| shown.name == "wait for lock 0");
    let longest = waits.max_by_key(|wait| wait.end_ns - wait.begin_ns).expect("somebody waits");
    assert!(longest.end_ns - longest.begin_ns > 250_000_000, "{longest:?}");
}

#[test]
fn a_trace_file_that_cannot_be_written_and_a_senseless_period_are_refused_before_the_guest_starts() {
    let output = haltkick(&["run", "--trace", "/nonexistent/run.pftrace"]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(
        message.contains("--trace: /nonexistent/run.pftrace: ") && message.lines().count() == 1,
        "{message}"
    );
    let output = haltkick(&["run", "--profile=1us"]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert_eq!(message, "haltkick: --profile: a period of 1us is out of range: 100us to 100ms\n");
}

#[test]
fn a_profile_is_a_table_for_people_and_rows_for_programs() {
    if !usable_kvm() {
        return;
    }
    let arguments =
        ["run", "--lock", "ticket", "--ratio", "4", "--duration", "300ms", "--profile", "--no-ideal"];
    let text = String::from_utf8(haltkick(&arguments).stdout).unwrap();
    assert!(text.contains("# Overhead  State") && text.contains("by state: "), "{text}");
    let mut json = arguments.to_vec();
    json.extend(["--format", "json"]);
    let record: Value = serde_json::from_slice(&haltkick(&json).stdout).expect("a record");
    let rows = record["profile"]["rows"].as_array().expect("rows");
    let sum: u64 = rows.iter().map(|row| row["samples"].as_u64().unwrap()).sum();
    assert_eq!(Some(sum), record["profile"]["samples"].as_u64());
}
