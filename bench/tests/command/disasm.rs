//! Call sites before and after.

use crate::support::{haltkick, refusal, scratch, stdout, trials};

trials![a_site_is_shown_before_and_after_it_is_patched,];

fn a_site_is_shown_before_and_after_it_is_patched() {
    let native = stdout(&haltkick(&["disasm", "qspinlock"]));
    for part in [
        "pv off: ",
        "unlock site at critical_section::run",
        "as built",
        "call qword ptr",
        "mov byte ptr [rdi], 0x0",
    ] {
        assert!(native.contains(part), "{part}: {native}");
    }
    // If readers do not share, they take the lock, by the same function.
    assert!(!native.contains("calls::read"), "{native}");
    let paravirt = stdout(&haltkick(&["disasm", "qspinlock", "--pv", "on"]));
    assert!(paravirt.contains("call calls::unlock::<QspinlockParavirt>"), "{paravirt}");
    let sites = |arguments: &[&str]| stdout(&haltkick(arguments)).matches(" site at ").count();
    assert!(sites(&["disasm", "mcs", "--all"]) > sites(&["disasm", "mcs"]));
    let closure = stdout(&haltkick(&["disasm", "mcslock"]));
    assert!(closure.contains("section site at critical_section::run"), "{closure}");
    assert!(refusal(&["disasm", "qspinlok"]).contains("did you mean 'qspinlock'"));
    assert!(refusal(&["disasm", "tas", "--pv", "on"]).contains("no paravirtual form"));
    let foreign = scratch("disasm").join("foreign");
    std::fs::write(&foreign, "no image").expect("a file");
    let foreign = foreign.to_str().expect("a path in UTF-8");
    assert!(refusal(&["disasm", "tas", "--guest", foreign]).contains("not an ELF file"));
}
