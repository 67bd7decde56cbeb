//! The files that describe machines, some of which are built in.

use serde::Deserialize;

use super::{Costs, GuestCosts, LineCosts, Machine, Model, PS_PER_NS, Topology};
use crate::sourced::{FileError, Sources, between, built_in, read};

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
        for (of_cluster, of_socket) in [
            (&mut self.near_ps, self.socket_ps),
            (&mut self.occupancy_near_permille, self.occupancy_socket_permille),
        ] {
            if *of_cluster == 0 {
                *of_cluster = of_socket;
            }
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

#[cfg(test)]
mod tests {
    use super::*;

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
                "`rumour` is not among [sources]",
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
        let text =
            presets().iter().find(|preset| preset.name == "cascadelake-2s").expect("it is built in").text;
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
        let text = presets().iter().find(|preset| preset.name == "skylake-8s").expect("it is built in").text;
        let upgrades = |text: &str| {
            let line = Machine::parse("test", text).expect("the file is good").costs.line;
            (line.upgrade_socket_permille, line.upgrade_hops_permille)
        };
        assert_eq!(upgrades(text), (1350, vec![1000; 2]));
        assert_eq!(upgrades(&with_line(text, "upgrade-hops", "")), (1350, vec![1350; 2]));
        let short = with_line(text, "upgrade-hops", "upgrade-hops = [{ value = 2, source = \"E\" }]");
        let error = Machine::parse("test", &short).expect_err("one is missing").to_string();
        assert!(error.contains("line.upgrade-hops has 1 figures, and line.hops-ns 2"), "{error}");
    }

    #[test]
    fn every_preset_has_its_own_name_and_longer_ways_farther_away() {
        for preset in presets() {
            let Machine { name, topology, costs, .. } = preset.machine();
            assert_eq!(name, preset.name);
            assert!(costs.pause_ps > 0 && topology.cpus() > 1, "{name}");
            let LineCosts { sibling_ps, near_ps, socket_ps, hops_ps, .. } = costs.line;
            let by_distance = [&[sibling_ps, near_ps, socket_ps], &hops_ps[..]].concat();
            assert!(by_distance.is_sorted(), "{name}: {by_distance:?}");
        }
    }
}
