//! Findings about this host's KVM, kept from one command to the next.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::Value;

use crate::support::{FINISHED, Tested, code, command, kvm, scratch, stderr, stdout, trials};

trials![
    a_command_goes_by_what_an_earlier_one_has_found_out,
    findings_of_another_kernel_or_microcode_are_found_out_anew,
    a_file_that_is_no_cache_is_replaced_and_not_followed,
];

/// The record of a short run that has its cache in `base`.
fn record(base: &Path, options: &[&str]) -> Value {
    let run = [
        "run",
        "--no-ideal",
        "--vcpus",
        "2",
        "--duration",
        "5ms",
        "--work-rate",
        "500000",
        "--format",
        "json",
    ];
    let output =
        command(&[&run[..], options].concat()).env("XDG_CACHE_HOME", base).output().expect("it starts");
    assert!(FINISHED.contains(&code(&output)), "{}", stderr(&output));
    serde_json::from_str(&stdout(&output)).expect("one record")
}

fn was_cached(base: &Path, options: &[&str]) -> bool {
    record(base, options)["kvm_findings_cached"].as_bool().expect("a run on KVM says so")
}

fn a_command_goes_by_what_an_earlier_one_has_found_out() -> Tested {
    kvm()?;
    let base = scratch("cached").join("cache");
    let file = base.join("haltkick/kvm");
    assert!(!was_cached(&base, &["--no-cache"]) && !file.exists());
    let first = record(&base, &[]);
    assert_eq!(first["kvm_findings_cached"], false);
    let kept = fs::read(&file).expect("the findings are kept, behind the walls");
    let second = record(&base, &[]);
    assert_eq!(second["kvm_findings_cached"], true);
    for fact in ["ring", "pv_backend"] {
        assert_eq!(first["config"][fact], second["config"][fact]);
    }
    assert!(!was_cached(&base, &["--no-cache"]), "asked not to");
    assert_eq!(fs::read(&file).expect("it stays"), kept);
    let simulated = record(&base, &["--engine", "sim", "--machine", "cascadelake-2s", "--cpus", "0"]);
    assert!(
        simulated["kvm_findings_cached"].is_null() && simulated["why"]["kvm_findings_cached"].is_string()
    );
    Ok(())
}

fn findings_of_another_kernel_or_microcode_are_found_out_anew() -> Tested {
    kvm()?;
    let base = scratch("cached-elsewhere").join("cache");
    let file = base.join("haltkick/kvm");
    was_cached(&base, &[]);
    let good = fs::read_to_string(&file).expect("the findings are kept");
    let facts = ["/proc/sys/kernel/osrelease: ", "/proc/sys/kernel/version: ", "microcode"];
    for fact in facts.into_iter().filter(|fact| good.contains(fact)) {
        fs::write(&file, good.replace(fact, &format!("{fact}other"))).expect("the file can be written");
        assert!(!was_cached(&base, &[]), "{fact}");
        assert!(was_cached(&base, &[]), "{fact}: the file was not replaced");
    }
    Ok(())
}

fn a_file_that_is_no_cache_is_replaced_and_not_followed() -> Tested {
    kvm()?;
    let directory = scratch("cached-badly");
    let base = directory.join("cache");
    let (file, elsewhere) = (base.join("haltkick/kvm"), directory.join("elsewhere"));
    was_cached(&base, &[]);
    fs::write(&file, "no cache").expect("the file can be written");
    assert!(!was_cached(&base, &[]));
    assert!(was_cached(&base, &[]), "the file was not replaced");
    fs::rename(&file, &elsewhere).expect("the file can be moved");
    symlink(&elsewhere, &file).expect("a link can be made");
    assert!(!was_cached(&base, &[]), "a link was followed");
    assert!(fs::symlink_metadata(&file).expect("it is there").is_file(), "the link is still there");
    Ok(())
}
