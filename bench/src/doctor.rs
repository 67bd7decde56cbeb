//! `haltkick doctor`: what this host can do, what will spoil a measurement, and what to do about it.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::ErrorKind;

use anstyle::AnsiColor;
use serde::Serialize;

use crate::cli::DoctorArgs;
use crate::cpulist;
use crate::exit::{Exit, Failure, Result};
use crate::host;
use crate::output;
use crate::probe;

/// How a finding bears on measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Level {
    /// As it should be.
    Good,
    /// Worth knowing; nothing to do.
    Note,
    /// Will spoil measurements.
    Spoils,
    /// Nothing runs before this is changed.
    Missing,
    /// This host does not tell.
    Unknown,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) name: &'static str,
    pub(crate) level: Level,
    /// What it is; null where the host does not tell.
    pub(crate) value: Option<String>,
    /// Why it matters, or why there is no value.
    pub(crate) why: String,
    /// How to change it.
    pub(crate) change: Option<String>,
}

pub(crate) fn doctor(args: &DoctorArgs) -> Result<Exit> {
    let findings = examine();
    if args.json {
        let json = serde_json::to_string_pretty(&findings)
            .map_err(|error| Failure::internal(format!("the findings as JSON: {error}")))?;
        output::data(&format!("{json}\n"))?;
    } else {
        output::data(&show(&findings))?;
    }
    let missing = findings.iter().any(|finding| finding.level == Level::Missing);
    Ok(if missing { Exit::HostLacks } else { Exit::Done })
}

fn examine() -> Vec<Finding> {
    vec![kvm_device(), vendor_module(), pcpus()]
}

fn kvm_device() -> Finding {
    let opened = OpenOptions::new().read(true).write(true).open("/dev/kvm");
    let finding = |level, value: Option<&str>, why: &str, change: Option<String>| Finding {
        name: "/dev/kvm",
        level,
        value: value.map(String::from),
        why: why.into(),
        change,
    };
    match opened.map_err(|error| error.kind()) {
        Ok(_) => finding(Level::Good, Some("usable"), "guests run on it", None),
        Err(ErrorKind::PermissionDenied) => finding(
            Level::Missing,
            Some("not accessible for this user"),
            "guests run on it",
            Some("sudo usermod -aG kvm $USER, then log in again".into()),
        ),
        Err(ErrorKind::NotFound) => {
            finding(Level::Missing, Some("does not exist"), "guests run on it", Some(how_to_get_kvm()))
        }
        Err(kind) => {
            finding(Level::Missing, Some(&kind.to_string()), "guests run on it", Some(how_to_get_kvm()))
        }
    }
}

fn how_to_get_kvm() -> String {
    let has = |flag| probe::has_cpu_flag(flag) == Ok(true);
    if has("vmx") {
        "sudo modprobe kvm_intel".into()
    } else if has("svm") {
        "sudo modprobe kvm_amd".into()
    } else if has("hypervisor") {
        "this is a virtual machine without nested virtualization: switch that on in the hypervisor, or use hardware".into()
    } else {
        "switch on VT-x or AMD-V in the firmware".into()
    }
}

fn vendor_module() -> Finding {
    let why = "the vendor module decides what exits cost and which paravirtual features exist";
    match host::kvm_module() {
        Ok(module) => Finding {
            name: "KVM module",
            level: Level::Good,
            value: Some(module),
            why: why.into(),
            change: None,
        },
        Err(reason) => {
            Finding { name: "KVM module", level: Level::Unknown, value: None, why: reason, change: None }
        }
    }
}

fn pcpus() -> Finding {
    let why = "vCPUs share these; --cpus chooses among them";
    match cpulist::allowed() {
        Ok(cpus) => Finding {
            name: "pCPUs allowed",
            level: Level::Good,
            value: Some(cpus.to_string()),
            why: why.into(),
            change: None,
        },
        Err(failure) => Finding {
            name: "pCPUs allowed",
            level: Level::Unknown,
            value: None,
            why: failure.message,
            change: None,
        },
    }
}

fn show(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let (mark, style) = match finding.level {
            Level::Good => ("ok", AnsiColor::Green.on_default()),
            Level::Note => ("note", AnsiColor::Cyan.on_default()),
            Level::Spoils => ("spoils", AnsiColor::Yellow.on_default()),
            Level::Missing => ("MISSING", AnsiColor::Red.on_default().bold()),
            Level::Unknown => ("?", AnsiColor::BrightBlack.on_default()),
        };
        let value = finding.value.as_deref().unwrap_or("unavailable");
        let _ = writeln!(text, "{style}{mark:<8}{style:#}{:<22} {value}", finding.name);
        let _ = writeln!(text, "{:30} {}", "", finding.why);
        if let Some(change) = &finding.change {
            let _ = writeln!(text, "{:30} change: {change}", "");
        }
    }
    text
}
