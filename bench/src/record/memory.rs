//! Guest memory in records: how the host backed it.

use std::collections::BTreeMap;

use haltkick_vmm::{Known, Residence};
use serde::{Deserialize, Serialize};

use super::why::Why;

/// How the host backed all of the guest's memory when the run ended.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct GuestMemory {
    /// Bytes that something had touched.
    pub(crate) resident_bytes: u64,
    /// The part of them in huge pages (AnonHugePages); null where the kernel gives none.
    pub(crate) huge_bytes: Option<u64>,
    /// The bytes on each NUMA node; null where the kernel does not tell.
    pub(crate) node_bytes: Option<BTreeMap<String, u64>>,
}

impl GuestMemory {
    pub(crate) fn new(residence: Known<Residence>, why: &mut Why) -> Option<Self> {
        let Residence { resident_bytes, huge_bytes, node_bytes } = why.known("memory", residence)?;
        let by_name =
            |nodes: BTreeMap<u32, u64>| nodes.into_iter().map(|(node, bytes)| (node.to_string(), bytes));
        Some(Self {
            resident_bytes,
            huge_bytes: why.known("memory.huge_bytes", huge_bytes),
            node_bytes: why.known("memory.node_bytes", node_bytes).map(|nodes| by_name(nodes).collect()),
        })
    }
}
