//! Place of a run, in the few words that every record carries.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use crate::host::probe::{self, Answer, hash};

/// The host in short. An experiment's `manifest.json` says more.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Host {
    /// Tells hosts apart without naming them: a hash of the machine id.
    pub(crate) host_id: Option<String>,
    /// Kernel release.
    pub(crate) kernel: Option<String>,
    /// Model name of the CPU.
    pub(crate) cpu_model: Option<String>,
    /// KVM's vendor module, such as `kvm_intel`.
    pub(crate) kvm_module: Option<String>,
    /// Whether this machine is itself a virtual one.
    pub(crate) nested: Option<bool>,
    /// Version of Haltkick.
    pub(crate) haltkick_version: String,
}

impl Host {
    pub(crate) fn probe() -> Self {
        Self {
            host_id: host_id().ok(),
            kernel: kernel().ok(),
            cpu_model: cpu_model().ok(),
            kvm_module: kvm_module().ok(),
            nested: probe::has_cpu_flag("hypervisor").ok(),
            haltkick_version: env!("CARGO_PKG_VERSION").into(),
        }
    }

    /// Returns the text that tells this host from another: its id, else the known facts.
    pub(crate) fn identity(&self) -> String {
        let without_id =
            || format!("without id, {}", self.cpu_model.as_deref().unwrap_or("of an unknown model"));
        self.host_id.clone().unwrap_or_else(without_id)
    }

    pub(crate) fn why(&self) -> Vec<(&'static str, String)> {
        let facts: [(_, _, fn() -> Answer); 5] = [
            ("host_id", self.host_id.is_some(), host_id),
            ("kernel", self.kernel.is_some(), kernel),
            ("cpu_model", self.cpu_model.is_some(), cpu_model),
            ("kvm_module", self.kvm_module.is_some(), kvm_module),
            ("nested", self.nested.is_some(), || probe::field("/proc/cpuinfo", "flags")),
        ];
        let why = |fact: fn() -> Answer| fact().err().unwrap_or_else(|| "not known when this ran".into());
        facts.into_iter().filter(|it| !it.1).map(|(name, _, fact)| (name, why(fact))).collect()
    }
}

/// Reads what the walls around guests hide later: they open no file of /etc but that which names the system.
pub(crate) fn read_before_the_walls() {
    LazyLock::force(&MACHINE_ID);
}

static MACHINE_ID: LazyLock<Answer> =
    LazyLock::new(|| probe::text("/etc/machine-id").and_then(known_machine_id));

/// Images of containers have an empty file, and systemd has a word there before the first boot: many hosts would be one.
fn known_machine_id(text: String) -> Answer {
    match text.trim() {
        "" | "uninitialized" => Err("/etc/machine-id: it holds no id".into()),
        _ => Ok(text),
    }
}

fn host_id() -> Answer {
    let machine_id = MACHINE_ID.clone()?;
    Ok(hash(format!("haltkick {machine_id}"))[..12].to_owned())
}

fn vendor_module(modules: &[String], has_flag: impl Fn(&str) -> bool) -> Option<&String> {
    // The last one that was loaded by hand is the one in use.
    let pvm = modules.iter().find(|name| *name == "kvm_pvm");
    pvm.or_else(|| {
        modules.iter().find(|name| match name.as_str() {
            "kvm" => false,
            "kvm_intel" => has_flag("vmx"),
            "kvm_amd" => has_flag("svm"),
            _ => true,
        })
    })
}

fn kernel() -> Answer {
    probe::text("/proc/sys/kernel/osrelease")
}

pub(crate) fn cpu_model() -> Answer {
    probe::field("/proc/cpuinfo", "model name")
}

/// Returns KVM's vendor module: the one next to `kvm` itself. One that is built in is there on processors that it refuses, too.
pub(crate) fn kvm_module() -> Answer {
    let modules = probe::kvm_modules();
    let fits = |flag: &str| probe::has_cpu_flag(flag).unwrap_or(false);
    match vendor_module(&modules, fits) {
        Some(vendor) => Ok(vendor.clone()),
        None if modules.is_empty() => Err("/sys/module: no module kvm".into()),
        None => Err("/sys/module: kvm without a vendor module".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_a_machine_id_tells_no_hosts_apart() {
        for text in ["", "\n", "uninitialized"] {
            assert!(known_machine_id(text.into()).is_err(), "{text:?}");
        }
        assert_eq!(known_machine_id("0123abcd".into()).as_deref(), Ok("0123abcd"));
    }

    #[test]
    fn the_vendor_module_is_the_one_that_the_processor_can_use() {
        let vendor = |modules: &[&str], flag: &str| {
            let modules: Vec<String> = modules.iter().map(|name| (*name).to_owned()).collect();
            vendor_module(&modules, |asked| asked == flag).cloned()
        };
        let built_in = ["kvm", "kvm_amd", "kvm_intel"];
        assert_eq!(vendor(&built_in, "vmx").as_deref(), Some("kvm_intel"));
        assert_eq!(vendor(&built_in, "svm").as_deref(), Some("kvm_amd"));
        assert_eq!(vendor(&["kvm", "kvm_intel", "kvm_pvm"], "vmx").as_deref(), Some("kvm_pvm"));
        assert_eq!(vendor(&["kvm", "kvm_hv"], "none").as_deref(), Some("kvm_hv"));
        assert_eq!(vendor(&built_in, "none"), None);
    }
}
