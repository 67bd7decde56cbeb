//! A figure that a guest says of itself.

use serde::{Deserialize, Serialize};

/// A figure that a guest printed on its console, as `haltkick: name=value unit`.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Figure {
    /// The last value that it printed under this name.
    pub(crate) value: f64,
    /// The unit, as the guest wrote it.
    pub(crate) unit: String,
    /// Lines that gave it a value.
    pub(crate) lines: u64,
}
