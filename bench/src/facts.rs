//! The host in full, for the manifest: every fact a value, or the reason why there is none.

use std::collections::BTreeMap;

use crate::host;
use crate::manifest::Fact;
use crate::probe;

/// All facts, by name; the part before the dot is the group.
pub(crate) fn all() -> BTreeMap<String, Fact> {
    let mut facts: BTreeMap<String, Fact> = BTreeMap::new();
    let mut add = |name: &str, fact: probe::Fact| {
        facts.insert(name.into(), fact.into());
    };
    add("kernel.release", host::kernel());
    add("kernel.version", probe::text("/proc/version"));
    add("cpu.model", host::cpu_model());
    add("kvm.module", host::kvm_module());
    add("noise.loadavg", probe::text("/proc/loadavg"));
    facts
}
