//! The files that describe machines, some of which are built in; and other machines like one of a file, whose guessed figures may be
//! other ones, as may the choices of its `[model]`.

use serde::Deserialize;
use toml::de::DeTable;

use super::{Costs, GuestCosts, LineCosts, Machine, Model, PS_PER_NS, Topology};
use crate::sourced::{FileError, Sources, between, built_in, each_sourced, read};

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    format: u32,
    name: String,
    title: String,
    sources: Sources,
    topology: TopologyTable,
    cpu: Costs,
    line: LineCosts,
    guest: GuestCosts,
    #[serde(default)]
    model: Model,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct TopologyTable {
    sockets: u32,
    cores_per_socket: u32,
    threads_per_core: u32,
    cores_per_cluster: Option<u32>,
    hops: Option<Vec<Vec<u8>>>,
    #[serde(rename = "source")]
    _source: String,
}

impl Machine {
    /// Reads a machine from the text of its file; `name` is for messages.
    ///
    /// # Errors
    /// [`FileError`]: what is wrong, where, and what would be right.
    pub fn parse(name: &str, text: &str) -> Result<Self, FileError> {
        let refuse = |what: String| FileError { kind: "machine", name: name.into(), what };
        let mut file: File = read(text, |file: &File| (file.format, &file.sources)).map_err(refuse)?;
        let table = &file.topology;
        let counts = [table.sockets, table.cores_per_socket, table.threads_per_core];
        let topology = Topology::new(counts, table.cores_per_cluster, table.hops.as_deref())
            .map_err(|what| refuse(format!("[topology]: {what}")))?;
        file.line.complete(&topology).map_err(refuse)?;
        file.cpu.complete().map_err(refuse)?;
        let costs = Costs { line: file.line, guest: file.guest, ..file.cpu };
        Ok(Self { name: file.name, title: file.title, topology, costs, model: file.model, text: text.into() })
    }
}

impl Costs {
    /// Works out the time of PAUSE, which is known in nanoseconds or in cycles of the core.
    fn complete(&mut self) -> Result<(), String> {
        if self.instruction_ps == 0 {
            return Err("cpu.instruction-ns is 0: time would stand still".into());
        }
        let within = |key: &str, value, least, most| {
            between(value, least, most).map_err(|refused| format!("cpu.{key} {refused}"))
        };
        let ns = match (self.pause_ns, self.pause_cycles, self.core_ghz) {
            (Some(ns), None, None) => within("pause-ns", ns, 0.0, 1e9)?,
            (None, Some(cycles), Some(core_ghz)) => {
                within("pause-cycles", cycles, 0.0, 1e6)? / within("core-ghz", core_ghz, 0.1, 10.0)?
            }
            _ => return Err("cpu: give either pause-ns, or pause-cycles and core-ghz".into()),
        };
        self.pause_ps = (ns * PS_PER_NS as f64).round() as u64;
        Ok(())
    }
}

impl LineCosts {
    /// Fills in what the file has left out, and refuses what does not fit to the topology.
    fn complete(&mut self, topology: &Topology) -> Result<(), String> {
        let (distances, needed) = (self.hops_ps.len(), usize::from(topology.most_hops()));
        if distances < needed {
            return Err(format!(
                "line.hops-ns has {distances} figures, and the farthest socket is {needed} hops away"
            ));
        }
        if self.near_ps == 0 && topology.clusters() != topology.sockets() {
            return Err("line.near-ns is missing or 0: the topology has clusters within a socket".into());
        }
        if self.near_ps == 0 {
            self.near_ps = self.socket_ps;
        }
        if self.occupancy_near_permille == 0 {
            self.occupancy_near_permille = self.occupancy_socket_permille;
        }
        let upgrades = self.upgrade_hops_permille.len();
        if upgrades > 0 && upgrades != distances {
            return Err(format!(
                "line.upgrade-hops has {upgrades} figures, and line.hops-ns {distances}: give one for each \
                 distance, or none"
            ));
        }
        self.upgrade_hops_permille.resize(distances, self.upgrade_socket_permille);
        Ok(())
    }
}

built_in! {
    /// All of them, the oldest first.
    Preset, Machine by machine from "machines":
    "nehalem-2s",
    "numaconnect-512",
    "westmere-ex-8s",
    "westmere-ex-4s",
    "opteron-2s",
    "sandybridge-2s",
    "ivybridge-ex-4s",
    "haswell-2s",
    "broadwell-2s",
    "skylake-8s",
    "skylake-2s",
    "cascadelake-2s",
    "cascadelake-2s-96",
    "icelake-2s",
    "icelake-2s-72",
    "milan-1s",
    "genoa-2s",
    "sapphirerapids-2s",
    "sapphirerapids-8s",
}

/// How far off figures of a grade may be: by this factor, to either side. None: read or measured.
fn spread(grade: &str) -> Option<f64> {
    match grade {
        "B" => Some(1.15),
        "C" | "D" => Some(1.3),
        "E" => Some(1.5),
        _ => None,
    }
}

/// The choices of a `[model]`, and what each may be, beginning with its default.
pub const CHOICES: &[(&str, &[&str])] =
    &[("placement", &["last", "lowest"]), ("invalidation", &["free", "kicks"]), ("smt", &["busy", "issue"])];

/// A figure that was not measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Guess {
    /// Its place in the file, such as `line.hops-ns[0]`.
    pub key: String,
    /// In the unit of its key.
    pub value: f64,
    /// The least that it may be.
    pub low: f64,
    /// The most.
    pub high: f64,
    /// Place of its number in the text.
    span: std::ops::Range<usize>,
}

impl Guess {
    /// The value at this share of the way from the least to the most, each step of which is of equal proportion.
    #[must_use]
    pub fn at(&self, share: f64) -> f64 {
        if self.low > 0.0 { self.low * (self.high / self.low).powf(share) } else { self.value }
    }
}

impl Machine {
    /// The figures of grades B to E, with the bounds between which this machine would still be one.
    #[must_use]
    pub fn guesses(&self) -> Vec<Guess> {
        let Ok(file) = DeTable::parse(&self.text) else { return Vec::new() };
        let file = file.get_ref();
        let grade = |source: &str| {
            let entry = file.get("sources")?.get_ref().as_table()?.get(source)?;
            entry.get_ref().as_table()?.get("grade")?.get_ref().as_str().and_then(spread)
        };
        let mut found = Vec::new();
        each_sourced("", file, &mut |key, table, source| {
            let (Some(number), Some(spread)) = (table.get("value"), grade(source)) else { return };
            let span = number.span();
            let Ok(value) = self.text[span.clone()].replace('_', "").parse() else { return };
            let mut guess = Guess { key: key.into(), value, low: value, high: value, span };
            (guess.low, guess.high) = (self.bound(&guess, 1.0 / spread), self.bound(&guess, spread));
            found.push(guess);
        });
        found
    }

    /// Choices of its model, in the order of [`CHOICES`].
    #[must_use]
    pub fn chosen(&self) -> Vec<(&'static str, &'static str)> {
        let is_own = |key, value| self.varied(&[], &[(key, value)]).is_ok_and(|it| it.model == self.model);
        let own = |(key, values): &(&'static str, &'static [&'static str])| {
            let value = values.iter().find(|value| is_own(*key, **value))?;
            Some((*key, *value))
        };
        CHOICES.iter().filter_map(own).collect()
    }

    /// The farthest on the way to `factor` that the figure may go: some figures have bounds.
    fn bound(&self, guess: &Guess, factor: f64) -> f64 {
        let values = [1.0, 0.5, 0.25].map(|share| guess.value * factor.powf(share));
        let is_good = |value: &f64| self.varied(&[(guess, *value)], &[]).is_ok();
        values.into_iter().find(is_good).unwrap_or(guess.value)
    }

    /// This machine with other figures, and other choices, which are pairs from [`CHOICES`].
    ///
    /// # Errors
    /// If there is no such machine.
    pub fn varied(&self, figures: &[(&Guess, f64)], choices: &[(&str, &str)]) -> Result<Self, FileError> {
        let mut text = self.text.clone();
        let mut figures: Vec<_> = figures.iter().collect();
        figures.sort_by_key(|(guess, _)| std::cmp::Reverse(guess.span.start));
        for (guess, value) in figures {
            text.replace_range(guess.span.clone(), &format!("{value:.4}"));
        }
        if !choices.is_empty() {
            text = with_choices(&text, choices);
        }
        Self::parse(&self.name, &text)
    }
}

/// The text with these choices instead of its own.
fn with_choices(text: &str, choices: &[(&str, &str)]) -> String {
    const HEADING: &str = "\n[model]";
    let mut text = text.to_owned();
    for (key, value) in choices.iter().rev() {
        let own = DeTable::parse(&text)
            .ok()
            .and_then(|file| Some(file.get_ref().get("model")?.get_ref().as_table()?.get(*key)?.span()));
        let chosen = format!("{HEADING}\n{key} = \"{value}\"");
        match own {
            Some(span) => text.replace_range(span, &format!("\"{value}\"")),
            None if text.contains(HEADING) => text = text.replacen(HEADING, &chosen, 1),
            None => text += &format!("{chosen}\n"),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(name: &str) -> &'static str {
        presets().iter().find(|preset| preset.name == name).expect("it is built in").text
    }

    fn skylake() -> Machine {
        Machine::parse("skylake-8s", text("skylake-8s")).expect("the file is good")
    }

    /// Replaces the whole line that begins with `key`.
    fn with_line(text: &str, key: &str, line: &str) -> String {
        let lines = text.lines().map(|old| if old.starts_with(key) { line } else { old });
        lines.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn a_bad_file_is_refused_with_the_place_and_the_remedy() {
        let good = presets()[0].text;
        for (key, line, message) in [
            ("socket-ns", "", "missing field `socket-ns`"),
            (
                "socket-ns",
                "socket-ns = { value = -1, source = \"E\" }",
                "line.socket-ns is -1: it must be 0 to",
            ),
            ("socket-ns", "socket-ns = { value = nan, source = \"E\" }", "line.socket-ns is NaN"),
            (
                "socket-ns",
                "socket-ns = { value = 1, source = \"rumour\" }",
                "line.socket-ns: source `rumour` is not among [sources]: ",
            ),
            (
                "hops-ns",
                "hops-ns = [{ value = 1, source = \"rumour\" }]",
                "line.hops-ns: source `rumour` is not among [sources]: ",
            ),
            ("socket-ns", "socket-ns = 47", "expected { value = ..., source"),
            ("instruction-ns", "instruction-ns = { value = 0, source = \"E\" }", "time would stand still"),
            ("format", "format = 9", "format 9 is unknown"),
            ("sockets", "sockets = 400", "CPUs: at most 1024"),
            ("title", "title = \"\"\ntypo = 1", "unknown field `typo`"),
            ("[cpu]", "[model]\njiter = 0\n[cpu]", "unknown field `jiter`"),
            ("[cpu]", "[model]\njitter = 0.6\n[cpu]", "model.jitter is 0.6: it must be 0 to 0.5"),
            ("[cpu]", "[model]\njitter = nan\n[cpu]", "model.jitter is NaN"),
            (
                "[cpu]",
                "[model]\nplacement = \"first\"\n[cpu]",
                "unknown variant `first`, expected `last` or `lowest`",
            ),
        ] {
            let bad = with_line(good, key, line);
            assert_ne!(bad.trim_end(), good.trim_end(), "the change did nothing");
            let error = Machine::parse("test", &bad).expect_err("the file is bad").to_string();
            assert!(error.contains(message), "{error}");
        }
    }

    /// A pause loop of a guest ends in an exit where its PAUSEs are closer than 128 ticks of the TSC, which is slower than the core.
    #[test]
    fn pause_lasts_cycles_of_the_core_and_not_of_the_tsc() {
        let text = text("cascadelake-2s");
        let costs = |text: &str| Machine::parse("test", text).map(|machine| machine.costs);
        let Costs { clock_khz, pause_ps, .. } = costs(text).expect("the file is good");
        assert_eq!((clock_khz, pause_ps), (2_500_000, 43_750));
        let faster = with_line(text, "core-ghz", "core-ghz = { value = 3.5, source = \"E\" }");
        let faster = costs(&faster).expect("the file is good");
        assert_eq!((faster.clock_khz, faster.pause_ps), (2_500_000, 40_000));
        let both = with_line(
            text,
            "fence-ns",
            "fence-ns = { value = 1, source = \"E\" }\npause-ns = { value = 1, source = \"E\" }",
        );
        for bad in [with_line(text, "core-ghz", ""), both] {
            let error = costs(&bad).expect_err("PAUSE has no time, or two").to_string();
            assert!(error.contains("give either pause-ns, or pause-cycles and core-ghz"), "{error}");
        }
    }

    #[test]
    fn an_upgrade_takes_as_much_longer_as_its_distance_says() {
        let text = text("skylake-8s");
        let upgrades = |text: &str| {
            let line = Machine::parse("test", text).expect("the file is good").costs.line;
            (line.upgrade_socket_permille, line.upgrade_hops_permille)
        };
        assert_eq!(upgrades(text), (1600, vec![1000; 2]));
        assert_eq!(upgrades(&with_line(text, "upgrade-hops", "")), (1600, vec![1600; 2]));
        let short = with_line(text, "upgrade-hops", "upgrade-hops = [{ value = 2, source = \"E\" }]");
        let error = Machine::parse("test", &short).expect_err("one is missing").to_string();
        assert!(error.contains("line.upgrade-hops has 1 figures, and line.hops-ns 2"), "{error}");
    }

    #[test]
    fn every_preset_is_a_machine_at_both_ends_of_all_its_guesses() {
        for preset in presets() {
            let machine = preset.machine();
            let Machine { name, topology, costs, .. } = &machine;
            assert_eq!(name, preset.name);
            assert!(costs.pause_ps > 0 && topology.cpus() > 1, "{name}");
            let LineCosts { sibling_ps, near_ps, socket_ps, ref hops_ps, .. } = costs.line;
            let by_distance = [&[sibling_ps, near_ps, socket_ps], &hops_ps[..]].concat();
            assert!(by_distance.is_sorted(), "{name}: {by_distance:?}");
            let guesses = machine.guesses();
            assert!(guesses.len() > 5, "{name}");
            for share in [0.0, 1.0] {
                let figures: Vec<_> = guesses.iter().map(|guess| (guess, guess.at(share))).collect();
                let varied = machine.varied(&figures, &[]).unwrap_or_else(|error| panic!("{error}"));
                assert_ne!(varied.costs, *costs, "{name} at {share}");
            }
        }
    }

    #[test]
    fn figures_that_were_read_or_measured_are_no_guesses() {
        let guesses = skylake().guesses();
        let keys: Vec<&str> = guesses.iter().map(|guess| guess.key.as_str()).collect();
        assert!(keys.contains(&"line.shared-ns") && keys.contains(&"line.upgrade-hops[1]"), "{keys:?}");
        // Their sources have grade A.
        for read in ["line.socket-ns", "line.hops-ns[0]", "guest.idle[0].wake-us", "guest.exit-ns"] {
            assert!(!keys.contains(&read), "{read}");
        }
        let find = |key: &str| guesses.iter().find(|guess| guess.key == key).expect("it is a guess");
        let shared = find("line.shared-ns");
        assert!((shared.low - 5.0 / 1.3).abs() < 1e-9 && (shared.high - 5.0 * 1.3).abs() < 1e-9);
        let flat = find("line.invalidate-factor");
        assert!(flat.low >= 1.0 && flat.low < 1.6, "it invalidates at least as far as it reads: {flat:?}");
        assert!((shared.at(0.5) - 5.0).abs() < 1e-9 && (shared.at(1.0) - shared.high).abs() < 1e-9);
    }

    #[test]
    fn every_choice_can_be_made_whatever_was_chosen_before() {
        let machine = skylake();
        for (key, values) in CHOICES {
            assert_eq!(machine.varied(&[], &[(key, values[0])]).unwrap().model, machine.model, "{key}");
            for value in &values[1..] {
                let other = machine.varied(&[], &[(key, value)]).unwrap();
                assert_ne!(other.model, machine.model, "{key} = {value}");
                assert!(other.chosen().contains(&(*key, *value)), "{:?}", other.chosen());
                let back = other.varied(&[], &[(key, values[0])]).unwrap();
                assert_eq!(back.model, machine.model, "{key} = {value}");
                assert_eq!(back.text.matches("[model]").count(), 1, "{}", back.text);
            }
        }
    }
}
