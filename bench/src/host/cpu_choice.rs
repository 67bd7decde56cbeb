//! CPUs by what they have in common: `cores`, `node:0`, `llc:1`, or a list of numbers.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::LazyLock;

use crate::host::cpulist::CpuList;
use crate::host::probe;

/// A value of `--cpus`. All but lists and `all` leave out siblings: the work of two vCPUs on one core is not that of two cores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CpuChoice {
    List(CpuList),
    /// One of [`WORDS`], and the number behind those that end in a colon.
    Word(&'static str, u32),
}

/// Words for all CPUs that the process may use, siblings included; for one of each core (two words); for the cores of a node; for those
/// that share the last level of cache, counted by their lowest CPU; and for those that the kernel's `isolcpus` names.
const WORDS: [&str; 6] = ["all", "cores", "no-smt", "node:", "llc:", "isolated"];

impl FromStr for CpuChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let start = text.split_inclusive(':').next().unwrap_or_default();
        match WORDS.into_iter().find(|word| *word == start) {
            Some(word) if word.ends_with(':') => match text[word.len()..].parse() {
                Ok(number) => Ok(Self::Word(word, number)),
                Err(_) => Err(format!("'{text}' needs a number, such as node:0")),
            },
            Some(word) => Ok(Self::Word(word, 0)),
            None if start.ends_with(':') || text.starts_with(|first: char| first.is_ascii_alphabetic()) => {
                Err(format!(
                    "'{text}' names no CPUs: write all, cores, no-smt, node:N, llc:N, isolated, or a list such as 0,2-3"
                ))
            }
            None => text.parse().map(Self::List),
        }
    }
}

impl fmt::Display for CpuChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::List(list) => list.fmt(f),
            Self::Word(word, number) if word.ends_with(':') => write!(f, "{word}{number}"),
            Self::Word(word, _) => f.write_str(word),
        }
    }
}

impl CpuChoice {
    /// The CPUs of this host, of which the process may use `allowed`.
    pub(crate) fn here(&self, allowed: &CpuList) -> Result<CpuList, String> {
        match self {
            Self::List(list) => match list.0.iter().find(|cpu| !allowed.0.contains(cpu)) {
                None => Ok(list.clone()),
                Some(cpu) => Err(format!(
                    "CPU {cpu} does not exist or is not allowed here: this process may use {allowed} (see taskset, cgroup cpuset)"
                )),
            },
            Self::Word("all", _) => Ok(allowed.clone()),
            Self::Word(..) => HOST.as_ref().map_err(Clone::clone)?.choose(self, allowed),
        }
    }

    /// The CPUs of a simulated machine, which has `all`.
    pub(crate) fn simulated(&self, all: &CpuList) -> Result<CpuList, String> {
        match self {
            Self::List(_) | Self::Word("all", _) => self.here(all),
            Self::Word(..) => Err(format!(
                "'{self}' is about this host: list CPUs of the simulated machine, which has {all}"
            )),
        }
    }
}

/// The CPUs of this host that runs use by default, of which the process may use `allowed`: one of each core, or all where cores are
/// not known.
pub(crate) fn by_default(allowed: &CpuList) -> CpuList {
    CpuChoice::Word("cores", 0).here(allowed).unwrap_or_else(|_| allowed.clone())
}

/// Says which CPUs [`by_default`] leaves out, if any, and if runs on this host use `all_cpus` of which some are these.
pub(crate) fn left_out<'a>(
    allowed: &CpuList,
    mut all_cpus: impl Iterator<Item = &'a Vec<u32>>,
) -> Option<String> {
    let used = by_default(allowed);
    let left_out: Vec<u32> = allowed.0.iter().copied().filter(|cpu| !used.0.contains(cpu)).collect();
    (!left_out.is_empty() && all_cpus.any(|cpus| *cpus == used.0)).then(|| {
        format!(
            "pCPUs {used}: one of each core; {} share cores with them (--cpus all takes all)",
            CpuList(left_out)
        )
    })
}

#[derive(Debug)]
struct Topology {
    /// The lists of siblings, by CPU.
    siblings: BTreeMap<u32, CpuList>,
    nodes: BTreeMap<u32, CpuList>,
    /// CPUs that share the last level of cache, by their lowest number.
    llcs: Vec<CpuList>,
    isolated: Option<CpuList>,
}

/// Topology of this host, read once.
static HOST: LazyLock<Result<Topology, String>> =
    LazyLock::new(|| Topology::read(Path::new("/sys/devices/system")));

impl Topology {
    fn read(root: &Path) -> Result<Self, String> {
        let numbers = |folder: &str, name: &str| -> Vec<u32> {
            let entries = probe::names(root.join(folder));
            let numbers = entries.iter().filter_map(|entry| entry.strip_prefix(name)?.parse().ok());
            let mut numbers: Vec<u32> = numbers.collect();
            numbers.sort_unstable();
            numbers
        };
        let list = |path: String| CpuList::read(&root.join(path));
        let (mut siblings, mut llcs) = (BTreeMap::new(), Vec::new());
        for cpu in numbers("cpu", "cpu") {
            let (topology, cache) = (format!("cpu/cpu{cpu}/topology"), format!("cpu/cpu{cpu}/cache"));
            // A CPU that is offline has no topology.
            if !root.join(&topology).exists() {
                continue;
            }
            siblings.insert(cpu, list(format!("{topology}/thread_siblings_list"))?);
            let level = |index: &u32| {
                probe::text(root.join(format!("{cache}/index{index}/level"))).ok()?.parse::<u32>().ok()
            };
            let last = numbers(&cache, "index").into_iter().max_by_key(level);
            let sharing = last.and_then(|index| list(format!("{cache}/index{index}/shared_cpu_list")).ok());
            llcs.extend(sharing.filter(|sharing| sharing.0[0] == cpu));
        }
        if siblings.is_empty() {
            return Err(format!("{}: no CPU has a topology there", root.join("cpu").display()));
        }
        let of_node = |node: u32| Some((node, list(format!("node/node{node}/cpulist")).ok()?));
        let nodes = numbers("node", "node").into_iter().filter_map(of_node).collect();
        Ok(Self { siblings, nodes, llcs, isolated: list("cpu/isolated".into()).ok() })
    }

    /// The CPUs of `choice` among those that are `allowed`.
    fn choose(&self, choice: &CpuChoice, allowed: &CpuList) -> Result<CpuList, String> {
        let missing =
            |what: &str, there: String| format!("'{choice}': this host has no such {what}; it has {there}");
        let of = match choice {
            CpuChoice::List(list) => list,
            CpuChoice::Word("node:", node) => self.nodes.get(node).ok_or_else(|| {
                let nodes: Vec<_> = self.nodes.keys().map(|node| format!("node:{node}")).collect();
                missing("node with CPUs", if nodes.is_empty() { "none".into() } else { nodes.join(", ") })
            })?,
            CpuChoice::Word("llc:", llc) => {
                let llc = self.llcs.get(*llc as usize);
                llc.ok_or_else(|| missing("cache", format!("{}, from llc:0 on", self.llcs.len())))?
            }
            CpuChoice::Word("isolated", _) => {
                let none = "'isolated': this host isolates no CPUs (boot it with isolcpus=LIST)";
                self.isolated.as_ref().ok_or(none)?
            }
            CpuChoice::Word(..) => allowed,
        };
        let cpus: Vec<u32> = of.0.iter().copied().filter(|cpu| allowed.0.contains(cpu)).collect();
        if cpus.is_empty() {
            return Err(format!(
                "'{choice}' is CPUs {of}, and this process may use {allowed} only: start it under `taskset -c {of}`"
            ));
        }
        let is_first_of_core = |cpu: &u32| {
            let siblings = self.siblings.get(cpu).map_or(&[][..], |siblings| &siblings.0);
            !siblings.iter().any(|sibling| sibling < cpu && cpus.contains(sibling))
        };
        Ok(CpuList(cpus.iter().copied().filter(is_first_of_core).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::synthetic::Scratch;

    /// Two nodes of two caches of two cores of two threads: CPUs 0 to 7, and their siblings 8 to 15. CPU 16 is offline.
    fn tree(name: &str) -> Topology {
        let root = Scratch::new(&format!("topology-{name}"));
        let write = |path: String, text: String| root.put(path, text + "\n");
        for cpu in 0..16 {
            let (core, folder) = (cpu % 8, format!("cpu/cpu{cpu}"));
            write(format!("{folder}/topology/thread_siblings_list"), format!("{core},{}", core + 8));
            let cache = core / 2 * 2;
            let shared = format!("{cache}-{},{}-{}", cache + 1, cache + 8, cache + 9);
            for (index, level, shared) in [(0, 1, format!("{core},{}", core + 8)), (3, 3, shared)] {
                write(format!("{folder}/cache/index{index}/level"), format!("{level}"));
                write(format!("{folder}/cache/index{index}/shared_cpu_list"), shared);
            }
        }
        write("cpu/cpu16/online".into(), "0".into());
        write("cpu/isolated".into(), "6-7,14-15".into());
        write("node/node0/cpulist".into(), "0-3,8-11".into());
        write("node/node1/cpulist".into(), "4-7,12-15".into());
        // A node that has memory alone.
        write("node/node2/cpulist".into(), String::new());
        Topology::read(root.path()).unwrap()
    }

    fn chosen(topology: &Topology, choice: &str, allowed: &str) -> Result<String, String> {
        topology.choose(&choice.parse()?, &allowed.parse()?).map(|cpus| cpus.to_string())
    }

    #[test]
    fn words_name_one_cpu_of_each_core() {
        let topology = tree("words");
        for (choice, cpus) in
            [("cores", "0-7"), ("no-smt", "0-7"), ("node:1", "4-7"), ("llc:1", "2-3"), ("isolated", "6-7")]
        {
            assert_eq!(chosen(&topology, choice, "0-15").as_deref(), Ok(cpus), "{choice}");
        }
        assert_eq!(chosen(&topology, "3,1-2,2", "0-15").as_deref(), Ok("1-3"), "each once, in order");
        // The first that is allowed of each core.
        assert_eq!(chosen(&topology, "cores", "1,8-10").as_deref(), Ok("1,8,10"));
    }

    #[test]
    fn what_is_not_there_is_said_with_what_is() {
        let topology = tree("missing");
        let said = |choice, allowed| chosen(&topology, choice, allowed).unwrap_err();
        assert!(said("node:2", "0-15").contains("node:0, node:1"), "{}", said("node:2", "0-15"));
        assert!(said("llc:4", "0-15").contains("it has 4, from llc:0 on"), "{}", said("llc:4", "0-15"));
        assert!(said("isolated", "0-3").contains("taskset -c 6-7,14-15"), "{}", said("isolated", "0-3"));
        assert!(Topology::read(Path::new("/proc/none")).unwrap_err().contains("no CPU has a topology"));
    }
}
