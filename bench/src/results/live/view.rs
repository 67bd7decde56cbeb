//! The live view as JSON: what the run writes, and what `haltkick top` adds to it.

use std::path::Path;

use haltkick_vmm::{LIVE_SCHEMA, LIVE_SCHEMA_VERSION, printable};
use serde::{Deserialize, Deserializer, Serialize};

/// Output of `haltkick top --format json`, a line each time.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct View {
    /// "haltkick.top".
    pub(crate) schema: String,
    /// Version of this format.
    pub(crate) schema_version: u32,
    /// The process that runs the guests.
    pub(crate) process: u32,
    /// Runs that it has begun, this one included.
    pub(crate) run: u64,
    /// How far the run is: "between" two runs, "starts", "warms-up", "window", "closed" or "ended".
    #[serde(deserialize_with = "cleaned")]
    pub(crate) phase: String,
    /// When this was, by the clock of the run.
    pub(crate) at_ns: u64,
    /// Time that the rates are of; null: there is one frame of this run.
    pub(crate) rates_over_ns: Option<u64>,
    /// The machine is simulated: time is virtual.
    pub(crate) virtual_time: bool,
    /// "vmm" or "host".
    #[serde(deserialize_with = "cleaned")]
    pub(crate) sched: String,
    /// The pCPUs.
    pub(crate) cpus: Vec<u32>,
    /// Whether what reads this runs on other CPUs than those.
    #[serde(default)]
    pub(crate) off_the_cpus: bool,
    /// The guests.
    pub(crate) guests: Vec<Guest>,
}

/// A guest.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Guest {
    /// Its name.
    #[serde(deserialize_with = "cleaned")]
    pub(crate) name: String,
    /// Its lock.
    #[serde(deserialize_with = "cleaned")]
    pub(crate) lock: String,
    /// Whether in the paravirtual form.
    pub(crate) pv: bool,
    /// Its workload.
    #[serde(deserialize_with = "cleaned")]
    pub(crate) workload: String,
    /// Locks that its sections are spread over.
    pub(crate) locks: u32,
    /// Its vCPUs.
    pub(crate) vcpus: Vec<Vcpu>,
}

/// A vCPU. Rates are per second.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Vcpu {
    /// Its index.
    pub(crate) vcpu: u32,
    /// "not-started", "running", "runnable" (on a pCPU or waiting for one: the host's scheduler knows), "ready", "preempted",
    /// "asleep" or "left".
    #[serde(deserialize_with = "cleaned")]
    pub(crate) state: String,
    /// Beginning, by the clock of the run; null: unknown.
    pub(crate) since_ns: Option<u64>,
    /// Activity that it announces: "holder", "head", "waiter" or "other".
    #[serde(deserialize_with = "cleaned")]
    pub(crate) doing: String,
    /// The lock that it holds or waits for.
    pub(crate) lock: Option<u32>,
    /// Sections that it has entered, and how many a second.
    pub(crate) sections: u64,
    pub(crate) sections_per_second: Option<f64>,
    /// Exits to the VMM.
    pub(crate) exits: u64,
    pub(crate) exits_per_second: Option<f64>,
    /// Exits that were kicks; null: the kernel delivers them.
    pub(crate) kicks: Option<u64>,
    pub(crate) kicks_per_second: Option<f64>,
    /// Exits that asked for sleep; null: the kernel puts vCPUs to sleep.
    pub(crate) sleeps: Option<u64>,
    pub(crate) sleeps_per_second: Option<f64>,
}

/// A text of a file that may come from anybody, as it may go to a terminal.
fn cleaned<'de, D: Deserializer<'de>>(text: D) -> Result<String, D::Error> {
    String::deserialize(text).map(|text| printable(&text))
}

impl View {
    /// A line that a run wrote, without rates.
    ///
    /// # Errors
    /// Why it is none: the rest of a sentence about its file.
    pub(crate) fn of_line(line: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Head {
            schema: String,
            schema_version: u32,
        }
        const FOREIGN: &str = "is not the live view of a run";
        let head: Head = serde_json::from_slice(line).map_err(|_| FOREIGN)?;
        let version = head.schema_version;
        if head.schema != LIVE_SCHEMA {
            return Err(FOREIGN.into());
        }
        if version != LIVE_SCHEMA_VERSION {
            return Err(format!(
                "is a live view of version {version}, where this haltkick reads version {LIVE_SCHEMA_VERSION}: \
                 use the haltkick that runs"
            ));
        }
        serde_json::from_slice(line).map_err(|_| FOREIGN.into())
    }

    /// Whether the process says that it is done.
    pub(crate) fn is_ended(&self) -> bool {
        self.phase == "ended"
    }

    /// Whether the process is there that wrote it. One on another host, whose directory is seen here, need not be.
    pub(crate) fn is_of_living_process(&self) -> bool {
        Path::new("/proc").join(self.process.to_string()).exists()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn line(schema: &str, version: u32, lock: &str) -> Result<View, String> {
        let guest =
            json!({ "name": "a", "lock": lock, "pv": true, "workload": "w", "locks": 1, "vcpus": [] });
        let line = json!({
            "schema": schema, "schema_version": version, "process": 1, "run": 1, "phase": "window", "at_ns": 0,
            "virtual_time": false, "sched": "vmm", "cpus": [], "guests": [guest],
        });
        View::of_line(line.to_string().as_bytes())
    }

    #[test]
    fn names_in_a_line_are_no_commands() {
        assert_eq!(
            line("haltkick.top", 1, "tick\u{1b}\net").unwrap().guests[0].lock,
            "tick\u{fffd}\u{fffd}et"
        );
    }

    #[test]
    fn a_line_of_another_version_or_kind_says_so() {
        let why = line("haltkick.top", 9, "ticket").unwrap_err();
        assert!(why.contains("version 9") && why.contains("version 1"), "{why}");
        assert!(line("haltkick.run", 1, "ticket").is_err());
        for other in ["", "[[[", "{}", r#"{"schema": "haltkick.top", "schema_version": 1}"#, "\u{1b}[2J"] {
            assert_eq!(
                View::of_line(other.as_bytes()).unwrap_err(),
                "is not the live view of a run",
                "{other}"
            );
        }
    }
}
