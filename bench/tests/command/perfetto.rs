//! A trace read by other eyes: by the numbers that Perfetto's published messages give to fields, and not by the writer's.

use std::collections::BTreeMap;

use prost::encoding::{WireType, decode_key, decode_varint};

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
pub(crate) struct Shown {
    pub(crate) track: String,
    pub(crate) name: String,
    pub(crate) begin_ns: u64,
    pub(crate) end_ns: u64,
    pub(crate) flows: Vec<u64>,
    pub(crate) ended_flows: Vec<u64>,
}

/// Goes through a trace as a viewer does, and refuses what a viewer would have to mend.
pub(crate) fn shown(trace: &[u8]) -> Vec<Shown> {
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
