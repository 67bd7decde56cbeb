//! Properties that the records of all kinds of guests share: where a run belongs, what disturbed it, and how fast it was.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::rate::Rate;
use crate::experiment::measure::Measure;
use crate::experiment::place::Place;
use crate::host::identity::Host;
use crate::host::noise::Noise;
use crate::record::linux::{self, LinuxRecord, THROUGHPUT};
use crate::record::{self, Record, Warning};

/// A record of an experiment.
pub(crate) trait Recorded: Clone + DeserializeOwned + Serialize {
    const SCHEMA: &'static str;
    const SCHEMA_VERSION: u32;

    fn place(&self) -> Option<&Place>;
    fn place_mut(&mut self) -> Option<&mut Place>;
    fn run_id(&self) -> &str;
    fn host(&self) -> &Host;
    fn noise(&self) -> &Noise;
    fn is_trusted(&self) -> bool;
    fn warnings(&self) -> &[Warning];
    /// Why the field at `path` is null.
    fn why(&self, path: &str) -> Option<&str>;
    /// The engine that ran the guest, where there is a choice.
    fn engine(&self) -> Option<&str>;
    /// The configuration that was asked for, as JSON.
    fn asked(&self) -> Value;
    /// The host CPUs that it ran on.
    fn cpus(&self) -> &[u32];
    /// The rate that `measure` measures; `None` where the run does not tell.
    fn rate(&self, measure: &Measure) -> Option<Rate>;
}

/// Getters of the fields that both kinds of record have under one name. A trait cannot reach the fields of its types, so each kind needs
/// these lines; here they stand once.
macro_rules! shared_getters {
    () => {
        fn place(&self) -> Option<&Place> {
            self.place.as_ref()
        }

        fn place_mut(&mut self) -> Option<&mut Place> {
            self.place.as_mut()
        }

        fn run_id(&self) -> &str {
            &self.run_id
        }

        fn host(&self) -> &Host {
            &self.host
        }

        fn noise(&self) -> &Noise {
            &self.noise
        }

        fn is_trusted(&self) -> bool {
            self.trusted
        }

        fn warnings(&self) -> &[Warning] {
            &self.warnings
        }

        fn why(&self, path: &str) -> Option<&str> {
            self.why.get(path).map(String::as_str)
        }

        fn asked(&self) -> Value {
            serde_json::to_value(&self.config).unwrap_or_default()
        }

        fn cpus(&self) -> &[u32] {
            &self.config.cpus
        }
    };
}

impl Recorded for Record {
    const SCHEMA: &'static str = record::SCHEMA;
    const SCHEMA_VERSION: u32 = record::SCHEMA_VERSION;

    shared_getters!();

    fn engine(&self) -> Option<&str> {
        Some(&self.config.engine)
    }

    fn rate(&self, measure: &Measure) -> Option<Rate> {
        Rate::by(measure, self)
    }
}

impl Recorded for LinuxRecord {
    const SCHEMA: &'static str = linux::SCHEMA;
    const SCHEMA_VERSION: u32 = linux::SCHEMA_VERSION;

    shared_getters!();

    fn engine(&self) -> Option<&str> {
        None
    }

    /// A figure that is not positive has no ratio to another. The throughput of a workload inside is a count, and as exact as one.
    fn rate(&self, measure: &Measure) -> Option<Rate> {
        let Measure::Figure(name) = measure else { return None };
        if let (Some(inside), THROUGHPUT) = (&self.inside, name.as_str()) {
            return Some(Rate::of(inside)).filter(|it| it.per_second.is_finite() && it.per_second > 0.0);
        }
        let per_second = self.figure(name).filter(|value| *value > 0.0)?;
        Some(Rate { per_second, is_floor: false, resolution: 0.0 })
    }
}
