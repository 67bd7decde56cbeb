//! Reasons why figures of a record are null, by their paths.

use std::collections::BTreeMap;

use haltkick_vmm::{Known, Unknown};

/// Reasons by the paths of what is null.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Why(pub(crate) BTreeMap<String, String>);

impl Why {
    /// The value for the field at `path`; if it is not known, the reason is noted.
    pub(crate) fn known<T>(&mut self, path: impl Into<String>, value: Known<T>) -> Option<T> {
        value.map_err(|Unknown(reason)| self.explain(path, reason)).ok()
    }

    /// The value for the field at `path`; if there is none, it is for this reason.
    pub(crate) fn given<T>(
        &mut self,
        path: impl Into<String>,
        value: Option<T>,
        reason: impl Into<String>,
    ) -> Option<T> {
        if value.is_none() {
            self.explain(path, reason);
        }
        value
    }

    /// Whether something is so, for the field at `path`; if not, the reason is noted.
    pub(crate) fn holds(&mut self, path: impl Into<String>, fact: Known<()>) -> bool {
        self.known(path, fact).is_some()
    }

    /// Notes why the field at `path` is null, or false.
    pub(crate) fn explain(&mut self, path: impl Into<String>, reason: impl Into<String>) {
        self.0.insert(path.into(), reason.into());
    }
}
