//! Parts of this host's kernel that are about preemption itself: folding, and extensions of slices.

use std::path::Path;

use haltkick_vmm::{SliceExtension, slice_extension};

use super::{Finding, Level};
use crate::host::probe::{self, Answer};

/// Whether this kernel folds: prefers some of its CPUs while a hypervisor below it steals time.
pub(super) fn folding() -> Finding {
    let value = folding_below(Path::new("/sys"));
    let why = "a kernel that prefers fewer CPUs moves the threads of vCPUs to them; --cpus chooses among all";
    Finding::of_fact("preferred CPUs", value, why, |text| match text {
        NO_GOVERNOR => (Level::Good, None),
        _ => (Level::Spoils, Some("sudo modprobe -r steal_governor")),
    })
}

const NO_GOVERNOR: &str = "all: no steal governor is loaded";

fn folding_below(sys: &Path) -> Answer {
    let preferred = probe::text(sys.join("devices/system/cpu/preferred"))
        .map_err(|_| "this kernel has none: Linux 7.4 or later does".to_owned())?;
    let parameters = sys.join("module/steal_governor/parameters");
    let read = |name: &str| probe::text(parameters.join(name));
    match (read("interval_ms"), read("low_threshold"), read("high_threshold")) {
        (Ok(interval), Ok(low), Ok(high)) => Ok(format!(
            "{preferred}, by a governor: every {interval} ms, {low} to {high} hundredths of a percent"
        )),
        _ => Ok(NO_GOVERNOR.into()),
    }
}

/// Whether threads may have their slices extended.
pub(super) fn extension() -> Finding {
    let value = describe(slice_extension());
    let why =
        "threads inside a section may ask for a few microseconds more; a vCPU inside KVM never gets them";
    Finding::of_fact("slice extension", value, why, |_| (Level::Note, None))
}

fn describe(extension: SliceExtension) -> Answer {
    match extension {
        SliceExtension::Offered => {
            let length = probe::text("/sys/kernel/debug/rseq/slice_ext_nsec");
            let length =
                length.map_or("of a length that debugfs hides".to_owned(), |ns| format!("of {ns} ns"));
            Ok(format!("offered to threads, {length}"))
        }
        SliceExtension::NotRegistered => Ok("offered, but not to threads of this C library".into()),
        SliceExtension::OffAtBoot => Ok("off (rseq_slice_ext= on the kernel's command line)".into()),
        SliceExtension::Absent => Err("this kernel has none: Linux 7.0 or later may".into()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_governor_is_told_with_its_parameters() {
        let sys = std::env::temp_dir().join(format!("haltkick-governor-{}", std::process::id()));
        let put = |path: &str, text: &str| {
            let path = sys.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert!(folding_below(&sys).unwrap_err().contains("this kernel has none"));
        put("devices/system/cpu/preferred", "0-3\n");
        assert_eq!(folding_below(&sys).unwrap(), NO_GOVERNOR);
        for (name, value) in [("interval_ms", "1000"), ("low_threshold", "200"), ("high_threshold", "500")] {
            put(&format!("module/steal_governor/parameters/{name}"), value);
        }
        let told = folding_below(&sys).unwrap();
        assert_eq!(told, "0-3, by a governor: every 1000 ms, 200 to 500 hundredths of a percent");
        fs::remove_dir_all(sys).unwrap();
    }

    #[test]
    fn an_extension_that_cannot_be_had_says_why() {
        assert!(describe(SliceExtension::Absent).unwrap_err().contains("Linux 7.0"));
        assert!(describe(SliceExtension::OffAtBoot).unwrap().contains("rseq_slice_ext="));
        assert!(describe(SliceExtension::NotRegistered).unwrap().contains("C library"));
        assert!(describe(SliceExtension::Offered).unwrap().contains("offered to threads"));
    }
}
