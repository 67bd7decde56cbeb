//! Output of `--trace`, read by other eyes: by the numbers that Perfetto's published messages give to fields, and not by the writer's.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use prost::encoding::{WireType, decode_key, decode_varint};
use serde_json::Value;

use crate::support::*;

/// Fields of a message, each with its number, in the order in which they stand: numbers, and bytes of texts and of messages within.
struct Fields<'a>(Vec<(u32, u64, &'a [u8])>);

impl<'a> Fields<'a> {
    fn of(mut bytes: &'a [u8]) -> Self {
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            let (number, kind) = decode_key(&mut bytes).expect("the key of a field");
            let (mut value, mut part) = (0, &bytes[..0]);
            match kind {
                WireType::SixtyFourBit => {
                    let (eight, rest) = bytes.split_first_chunk::<8>().expect("eight bytes");
                    (value, bytes) = (u64::from_le_bytes(*eight), rest);
                }
                WireType::Varint => value = decode_varint(&mut bytes).expect("a number"),
                WireType::LengthDelimited => {
                    let length = decode_varint(&mut bytes).expect("a length") as usize;
                    (part, bytes) = bytes.split_at(length);
                }
                other => panic!("field {number} is a {other:?}"),
            }
            fields.push((number, value, part));
        }
        Self(fields)
    }

    fn numbers(&self, number: u32) -> Vec<u64> {
        self.0.iter().filter(|field| field.0 == number).map(|field| field.1).collect()
    }

    /// The only one. Zero may be left out.
    fn number(&self, number: u32) -> Option<u64> {
        self.numbers(number).first().copied()
    }

    fn text(&self, number: u32) -> String {
        let text = self.0.iter().find(|field| field.0 == number).map_or(&[][..], |field| field.2);
        String::from_utf8(text.into()).expect("UTF-8")
    }

    /// Messages within.
    fn messages(&self, number: u32) -> impl Iterator<Item = Fields<'a>> {
        self.0.iter().filter(move |field| field.0 == number).map(|field| Fields::of(field.2))
    }
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
fn shown(trace: &[u8]) -> Vec<Shown> {
    const MONOTONIC: u64 = 3;
    let (mut tracks, mut names) = (BTreeMap::<u64, String>::new(), BTreeMap::new());
    let mut open: BTreeMap<u64, Shown> = BTreeMap::new();
    let mut last: BTreeMap<u64, u64> = BTreeMap::new();
    let mut all = Vec::new();
    let packets: Vec<_> = Fields::of(trace).messages(1).collect();
    assert_eq!(packets[0].number(13), Some(1), "the first packet voids what was before");
    let clock = packets.iter().find_map(|packet| packet.messages(59).next()?.number(58));
    assert_eq!(clock, Some(MONOTONIC));
    for packet in &packets {
        assert!(packet.number(10) > Some(0), "a packet is of a sequence");
        for track in packet.messages(60) {
            let parent = track.number(5).map(|parent| format!("{}/", tracks[&parent]));
            let name = format!("{}{}", parent.unwrap_or_default(), track.text(2));
            tracks.insert(track.number(1).unwrap_or(0), name);
        }
        for entry in packet.messages(12).flat_map(|interned| interned.messages(2).collect::<Vec<_>>()) {
            assert_eq!(names.insert(entry.number(1), entry.text(2)), None, "a name is said once");
        }
        let Some(event) = packet.messages(11).next() else { continue };
        let at_ns = packet.number(8).expect("events have times");
        let id = event.number(11).unwrap_or(0);
        let before = last.insert(id, at_ns).unwrap_or(0);
        assert!(at_ns >= before || tracks[&id] == "run", "{at_ns} ns on {}", tracks[&id]);
        let shown = || Shown {
            track: tracks[&id].clone(),
            name: names[&event.number(10)].clone(),
            begin_ns: at_ns,
            end_ns: at_ns,
            flows: event.numbers(47),
            ended_flows: event.numbers(48),
        };
        match event.number(9) {
            Some(1) => assert!(open.insert(id, shown()).is_none(), "slices of a track do not nest here"),
            Some(2) => {
                let slice = open.remove(&id).expect("only what has begun can end");
                all.push(Shown { end_ns: at_ns, ..slice });
            }
            Some(3) => all.push(shown()),
            other => panic!("event of type {other:?}"),
        }
    }
    assert!(open.is_empty(), "{open:?}");
    let clocks = packets.iter().find_map(|packet| packet.messages(6).next()).expect("clocks");
    let now = clocks.messages(1).find(|clock| clock.number(1) == Some(MONOTONIC)).expect("that clock");
    let is_past = |shown: &Shown| Some(shown.end_ns) <= now.number(2);
    assert!(all.iter().all(is_past), "nothing happened after the file was written");
    all
}

/// Runs the command with a trace: the record of the first guest, and what the trace shows.
fn traced(name: &str, line: &str) -> (Value, Vec<Shown>) {
    let path = format!("{}/run.pftrace", scratch(name));
    let record =
        haltkick(&format!("run --no-ideal --format json --trace {path} {line}")).jsons().swap_remove(0);
    (record, shown(&std::fs::read(&path).expect("a trace")))
}

/// How many there are whose name begins so.
fn count(shown: &[Shown], name: &str) -> u64 {
    shown.iter().filter(|shown| shown.name.starts_with(name)).count() as u64
}

#[apply(kvm_trial)]
fn a_trace_shows_runs_sleeps_holders_kicks_and_injections() {
    let injected = |record: &Value| record["figures"]["injected_holder"].as_u64().expect("a count");
    let happened = |shown: &[Shown]| {
        let kicked = shown.iter().any(|shown| !shown.ended_flows.is_empty());
        count(shown, "halted") > 0 && count(shown, "preempted") > 0 && kicked
    };
    let (record, shown) = in_some_window("sleepers that were kicked, and holders taken off", |window| {
        let line = "--lock qspinlock --pv on --ratio 8 --hold 5us --deschedule holder,rate=200,for=1ms";
        let seen = traced("trace", &format!("{line} --duration {window}"));
        Some(seen).filter(|(record, shown)| happened(shown) && injected(record) > 0)
    });
    let (instants, off) = (count(&shown, "injection"), count(&shown, "descheduled: holder"));
    let injected = injected(&record);
    // The record counts inside the window, the trace from start to end.
    assert!(instants >= injected && off >= injected, "{instants} instants, {off} off, {injected} injected");
    let named = |track: &str, name: &str| -> Vec<&Shown> {
        shown.iter().filter(|shown| shown.track.contains(track) && shown.name.starts_with(name)).collect()
    };
    let sections = named("/lock", "hold lock 0").len() as u64;
    let noted = record["trace"]["guest_sections"].as_u64().unwrap();
    let vcpus = record["settings"]["vcpus"].as_u64().unwrap();
    assert!((noted..=noted + vcpus).contains(&sections), "{sections} of {noted} and what was cut off");
    let dropped = record["trace"]["guest_sections_dropped"].as_u64().unwrap();
    assert!(noted > 0 && noted + dropped >= record["figures"]["acquisitions"].as_u64().unwrap());
    for (track, name) in [("vCPU", "running"), ("vCPU", "preempted"), ("pCPU", "vCPU"), ("run", "window")] {
        assert!(!named(track, name).is_empty(), "no {name} on {track}");
    }
    // A vCPU that is on a pCPU runs, from the same moment to the same moment.
    let runs: Vec<_> =
        named("vCPUs/", "running").into_iter().filter(|shown| shown.name == "running").collect();
    for turn in named("pCPUs/", "vCPU ") {
        let track = format!("vCPUs/{}", turn.name);
        let times = |shown: &Shown| (shown.begin_ns, shown.end_ns);
        assert!(runs.iter().any(|run| run.track == track && times(run) == times(turn)), "{turn:?}");
    }
    let kicks = named("vCPU", "kick");
    assert!(kicks.len() as u64 >= record["vm_exits"]["pv_kick"].as_u64().unwrap(), "{} kicks", kicks.len());
    for end in shown.iter().flat_map(|shown| &shown.ended_flows) {
        let from: Vec<_> = shown.iter().filter(|shown| shown.flows.contains(end)).collect();
        assert!(from.len() == 1 && from[0].name == "kick", "flow {end} comes from one kick: {from:?}");
    }
}

/// Turns on a pCPU.
fn turns(shown: &[Shown]) -> Vec<&Shown> {
    shown.iter().filter(|shown| shown.track.starts_with("pCPUs/")).collect()
}

fn counted_preemptions(record: &Value) -> u64 {
    record["figures"]["preemptions"].as_u64().expect("somebody counts")
}

#[apply(kvm_trial)]
fn who_ran_on_which_pcpu_is_shown_where_switches_are_reported() -> Check {
    let (record, shown) = in_some_window("somebody preempted by the host", |window| {
        let seen = traced("host", &format!("--lock tas --ratio 4 --sched host --duration {window}"));
        let is_unknown = seen.0["why"]["switches_*"].is_string();
        Some(seen).filter(|(record, _)| is_unknown || counted_preemptions(record) > 0)
    });
    if let Some(reason) = record["why"]["switches_*"].as_str() {
        return skip(reason);
    }
    // No vCPU sleeps: one on a pCPU runs, and one off it was preempted. Turns that begin with the trace do so before
    // their place is known.
    let begins = |turn: &Shown, name: &str, at_ns: u64| {
        let track = format!("vCPUs/{}", turn.name);
        shown.iter().any(|it| it.track == track && it.name.starts_with(name) && it.begin_ns == at_ns)
    };
    let turns = turns(&shown);
    let running = turns.iter().filter(|turn| begins(turn, "running", turn.begin_ns)).count();
    let preempted = turns.iter().filter(|turn| begins(turn, "preempted", turn.end_ns)).count();
    assert!(running == turns.len() && preempted > 0, "{running}, {preempted} of {} turns", turns.len());
    let (counted, off) = (counted_preemptions(&record), count(&shown, "preempted"));
    // The record counts inside the window, the trace from start to end.
    assert!(off >= counted, "{off} off, {counted} counted");
}

#[apply(kvm_trial)]
fn in_a_namespace_of_processes_the_host_reports_its_own_threads() -> Check {
    let run = format!("run --sched host --vcpus 4 --cpus {} --duration 300ms --no-ideal", an_allowed_cpu());
    let mut unshare = Command::new("unshare");
    unshare.args(words(&format!("--pid --fork --mount-proc {HALTKICK} {run} --format json")));
    let ended = end_if_there(&mut unshare)?;
    if !FINISHED.contains(&ended.code) {
        return skip(format_args!("unshare: {ended}"));
    }
    let record = ended.json();
    if let Some(reason) = record["why"]["switches_*"].as_str() {
        return skip(reason);
    }
    // Four that never sleep share a pCPU for many slices.
    assert!(record["figures"]["switches_read"].as_u64() > Some(0), "{:#}", record["figures"]);
    assert!(counted_preemptions(&record) > 0, "{:#}", record["figures"]);
}

#[apply(kvm_trial)]
fn under_the_hosts_scheduler_each_guest_shows_its_own_vcpus() {
    // Without attribution the kernel is not asked for its switches, so that the threads say which vCPU is awake.
    let run = "--sched host --attribution off --duration 50ms";
    let guests = "--vm lock=ticket,vcpus=2 --vm lock=ticket,vcpus=2";
    let (record, shown) = traced("trace-two", &format!("{run} {guests}"));
    assert!(turns(&shown).is_empty() && record["figures"]["preemptions"].is_null(), "{}", record["figures"]);
    let awake = shown.iter().filter(|shown| shown.name == "awake").map(|shown| shown.track.as_str());
    let tracks: BTreeSet<&str> = awake.collect();
    assert_eq!(tracks.len(), 4, "two guests of two vCPUs: {tracks:?}");
}

#[apply(kvm_trial)]
fn a_trace_of_a_hang_is_written_and_ends_with_it() {
    let hangs = "--workload selftest-hang --lock tas --vcpus 4 --watchdog 300ms --duration 60s";
    let (record, shown) = traced("hang", hangs);
    assert_eq!(record["schema"], "haltkick.failure");
    let waits = shown.iter().filter(|shown| shown.name == "wait for lock 0");
    let longest = waits.max_by_key(|wait| wait.end_ns - wait.begin_ns).expect("somebody waits");
    assert!(longest.end_ns - longest.begin_ns > 250_000_000, "{longest:?}");
}
