//! Cells that boot Linux: their files, and the record of a run.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use haltkick_vmm::{MAX_LINUX_MEMORY, Needs, Run, input};

use super::console::RunResult;
use super::fill::Origin;
use super::linux;
use crate::analysis::rate::Rate;
use crate::experiment::boots;
use crate::experiment::plan::{Cell, Plan};
use crate::host::probe;
use crate::record::Record;
use crate::record::place::Place;
use crate::results::manifest::KernelFiles;
use crate::text::exit::{Failure, Result};

/// Kernels and initial RAM disks that a plan boots.
pub(crate) fn paths(plan: &Plan) -> Vec<PathBuf> {
    Needs::of(plan.cells().map(|cell| &cell.run)).reads
}

/// Which file a path names, and when it changed last: device, inode, seconds and nanoseconds.
type Version = (u64, u64, i64, i64);

/// Files that a plan boots, as they were when their digests were made.
pub(crate) type Versions = BTreeMap<PathBuf, Version>;

/// The files of `plan` as they are now: before their digests are made.
pub(crate) fn versions(plan: &Plan) -> Result<Versions> {
    paths(plan).into_iter().map(|path| version(&path).map(|version| (path, version))).collect()
}

fn version(path: &Path) -> Result<Version> {
    let file = std::fs::metadata(path).map_err(|error| unreadable(path, &error))?;
    Ok((file.dev(), file.ino(), file.ctime(), file.ctime_nsec()))
}

fn unreadable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::usage(format!("{}: {error}: make it readable", path.display()))
}

/// Refuses a guest whose files are others than when their digests were made. It may have booted those.
pub(super) fn check_unchanged(run: &Run, versions: &Versions) -> Result<()> {
    let mut files = run.linux().into_iter().flat_map(|(_, linux)| linux.files());
    let is_changed = |path: &&Path| version(path).ok().as_ref() != versions.get(*path);
    match files.find(is_changed) {
        None => Ok(()),
        Some(path) => Err(Failure::usage(format!(
            "{}: it has changed since the experiment began: restore it, and go on with `haltkick bench --resume`",
            path.display()
        ))),
    }
}

/// The files that each arm of a plan boots, in the order of the arms, and of what varies; none where guests are our own.
pub(crate) fn files(plan: &Plan) -> Result<Vec<KernelFiles>> {
    let hash = |path: PathBuf| {
        // A file has at most as many bytes as a guest's memory may have.
        let bytes = input::read(&path, MAX_LINUX_MEMORY).map_err(|error| unreadable(&path, &error))?;
        Ok((path, probe::hash(bytes)))
    };
    let hashes = paths(plan).into_iter().map(hash).collect::<Result<BTreeMap<PathBuf, String>>>()?;
    let of_cell = |cell: &Cell| {
        let (_, guest) = cell.run.linux()?;
        let varying = cell.setting.iter().filter(|(key, _)| boots(key));
        Some(KernelFiles {
            arm: cell.arm.clone(),
            setting: varying.map(|(key, value)| (key.clone(), value.clone())).collect(),
            kernel: guest.kernel.display().to_string(),
            kernel_sha256: hashes[&guest.kernel].clone(),
            initrd: guest.initrd.as_ref().map(|disk| disk.path().display().to_string()),
            initrd_sha256: guest.initrd.as_ref().map(|disk| hashes[disk.path()].clone()),
            command_line: guest.append.clone(),
        })
    };
    let mut files: Vec<KernelFiles> = vec![];
    for arm in &plan.outline.arms {
        for of_cell in plan.cells().filter(|cell| cell.arm == *arm).filter_map(of_cell) {
            if !files.iter().any(|known| known.name() == of_cell.name()) {
                files.push(of_cell);
            }
        }
    }
    Ok(files)
}

/// The record of a run of a cell, unless its guest failed.
pub(super) fn record(
    plan: &Plan,
    cell: &Cell,
    run: &Run,
    seen: RunResult,
    origin: &Origin,
    place: &Place,
) -> Result<Record> {
    let mut record = linux::record(run, &seen, origin, Some(place.clone()));
    if let Some(failure) = linux::failure(seen) {
        return Err(failure);
    }
    warn_of_missing(&mut record, plan, &cell.arm);
    Ok(record)
}

/// A run without a figure by which its arm is compared is not what was asked for.
fn warn_of_missing(record: &mut Record, plan: &Plan, arm: &str) {
    for compared in &plan.outline.comparisons {
        if [&compared.arm, &compared.baseline].contains(&&arm.to_owned())
            && let Some(figure) = compared.of.figure()
            && Rate::by(&compared.of, record).is_none()
        {
            let message = format!(
                "the guest printed no positive figure '{figure}', by which '{}' compares it: its pair is left out",
                compared.name
            );
            record.warn("figure-missing", message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::statistics::Verdict;
    use crate::analysis::summary::trust;
    use crate::analysis::summary::{CheckOutcome, Summary};
    use crate::experiment::{Experiment, Source};
    use crate::host::noise::{Found, Noise};
    use crate::measure::session::Rule;
    use crate::measure::synthetic::{Scratch, World, plain, planned, seen};
    use crate::results::directory::read_records;
    use crate::results::merge;
    use crate::show::{csv, report, table};
    use crate::text::exit::Exit;
    use haltkick_vmm::LinuxEnd;

    const TEXT: &str = "format = 1\nname = 'k'\ntitle = 'Kernels'\nblocks = 8\n\
        [settings]\nkernel = 'kernel'\nratio = 2\n[grid]\nslice = ['1ms', '4ms']\n\
        [[arm]]\nname = 'pv'\n[[arm]]\nname = 'nopvspin'\nnopvspin = true\n\
        [[compare]]\nname = 'nopvspin/pv'\narm = 'nopvspin'\nbaseline = 'pv'\nof = 'figure:page-loop'\n\
        [[compare]]\nname = 'kicks'\narm = 'nopvspin'\nbaseline = 'pv'\nof = 'figure:lock_event.pv_kick_wake'\n\
        [control]\narm = 'pv'\nslice = '1ms'\n";
    const ONCE: Rule =
        Rule { blocks: 8, target_precision: None, max_time: None, retries: 0, ends_in_vain: None };

    fn plan_of(scratch: &Scratch, text: &str) -> Plan {
        let origin = scratch.path().join("k.toml").display().to_string();
        planned(&Experiment::parse(Source { origin, text: text.into() }).unwrap()).unwrap()
    }

    fn plan(scratch: &Scratch) -> Plan {
        scratch.put("kernel", "a kernel");
        plan_of(scratch, TEXT)
    }

    /// With `nopvspin` the loop is 20 % slower, but for what differs from run to run.
    fn console(run: &Run) -> Vec<String> {
        let (_, guest) = run.linux().unwrap();
        assert_eq!(run.guests[0].vcpus, 4);
        let is_slower = guest.append.contains("nopvspin");
        let scatter = 1.0 + (run.guests[0].seed % 5) as f64 / 500.0 * if is_slower { 1.0 } else { -1.0 };
        let pages = if is_slower { 8e4 } else { 1e5 } * scatter;
        let mut lines = vec!["user space is there".into(), format!("haltkick: page-loop={pages} pages/s")];
        if !is_slower {
            lines.push("haltkick: lock_event.pv_kick_wake=7 count".into());
        }
        lines
    }

    fn quiet(_: &[u32], run: &mut dyn FnMut()) -> Found {
        run();
        Ok((Noise { others_share: Some(0.0), steal_share: Some(0.0), ..Noise::default() }, 0.01))
    }

    #[test]
    fn command_lines_are_compared_within_blocks_and_need_a_figure() {
        let scratch = Scratch::new("kernels-compared");
        let plan = plan(&scratch);
        let engine = |run: &Run| Ok(seen(run, LinuxEnd::PowerOff, &console(run)));
        World::new(1).session(&plan, &engine, &quiet, &scratch).run(ONCE).unwrap();
        let records: Vec<Record> = read_records(scratch.path()).unwrap();
        assert_eq!(records.len(), 8 * (2 * 2 + 1), "two arms at two settings, and half of the A/A pair");
        let summary = Summary::new(&plan.outline, &records);
        let [first, second] = &summary.comparisons[..] else { panic!("{:?}", summary.comparisons) };
        for found in [first, second] {
            let seen = (found.per_block.len(), found.verdict, found.name.as_str());
            assert_eq!(seen, (8, Verdict::NotValid, "nopvspin/pv"));
            let interval = found.ratio.as_ref().and_then(|ratio| ratio.interval).unwrap();
            assert!(interval.low < 0.81 && interval.high > 0.79, "{interval:?}");
        }
        let control = summary.control.as_ref().unwrap();
        assert_eq!((control.per_block.len(), control.of.figure()), (8, Some("page-loop")));
        // The kernel that does not use them has no such event.
        let untold =
            |record: &&Record| record.warnings.iter().any(|warning| warning.code == "figure-missing");
        assert_eq!(records.iter().filter(untold).count(), 16);
        assert!(records.iter().filter(untold).all(|it| !it.trusted && it.placed().arm == "nopvspin"));
        assert!(trust::lost(&plan.outline, &records)[0].contains("'nopvspin/pv' is not valid"));
        assert!(summary.checks.iter().any(|it| it.name == "runs" && it.outcome == CheckOutcome::Failed));

        let shown = plain(&table::summary(&summary, table::Detail::Verbose));
        for words in ["page-loop", "k pages/s", "lock_event.pv_kick_wake", "0.80", "nopvspin/pv", "lower"] {
            assert!(shown.contains(words), "{words}: {shown}");
        }
        let manifest = World::new(1).manifest(&plan);
        let page = report::page(&manifest, &summary, &records);
        let hash = &manifest.kernels[0].kernel_sha256;
        for words in ["All that the kernels printed", hash, "nopvspin", "A/A pair"] {
            assert!(page.contains(words), "{words}");
        }
        let long = csv::runs(&plan.outline, &records);
        assert_eq!(long.matches(",page-loop,").count(), records.len(), "{long}");
        assert!(csv::summary(&summary).contains(",page-loop,"));
    }

    #[test]
    fn only_varied_kernel_settings_have_files_of_their_own() {
        let scratch = Scratch::new("kernels-varying");
        for kernel in ["kernel", "other"] {
            scratch.put(kernel, kernel);
        }
        let varying = "[grid]\nkernel = ['kernel', 'other']\ncmdline = ['', 'x']\n";
        let text = TEXT.replace("kernel = 'kernel'\n", "").replace("[grid]\n", varying);
        let files = files(&plan_of(&scratch, &text)).unwrap();
        let names: Vec<String> = files.iter().map(KernelFiles::name).collect();
        assert_eq!(names.len(), 2 * 2 * 2, "slices are no other kernel: {names:?}");
        assert_eq!(names[..2], ["pv, cmdline , kernel kernel", "pv, cmdline x, kernel kernel"]);
        assert_ne!(files[0].kernel_sha256, files[2].kernel_sha256);
    }

    #[test]
    fn parts_with_other_kernels_are_never_merged() {
        let scratch = Scratch::new("kernels-merged");
        let plan = plan(&scratch);
        let part = || (World::new(1).manifest(&plan), Vec::<Record>::new());
        let first = part();
        assert_eq!(first.0.kernels.len(), 2, "{:?}", first.0.kernels);
        assert_ne!(first.0.kernels[0].command_line, first.0.kernels[1].command_line);
        let paths = ["one", "two"].map(PathBuf::from);
        assert!(merge::merge(&paths, vec![first.clone(), part()], false).is_ok());
        scratch.put("kernel", "another kernel");
        let message = merge::merge(&paths, vec![first, part()], true).unwrap_err().message;
        assert!(message.contains("two was measured with other kernels than one: arm 'pv'"), "{message}");
    }

    #[test]
    fn a_kernel_that_changes_meanwhile_ends_the_experiment() {
        let scratch = Scratch::new("kernels-changing");
        let plan = plan(&scratch);
        let kernel = scratch.path().join("kernel");
        let runs = std::cell::Cell::new(0);
        let engine = |run: &Run| {
            runs.set(runs.get() + 1);
            if runs.get() == 3 {
                // The file is another one, with the same words in it.
                std::fs::write(kernel.with_extension("new"), "a kernel").unwrap();
                std::fs::rename(kernel.with_extension("new"), &kernel).unwrap();
            }
            Ok(seen(run, LinuxEnd::PowerOff, &console(run)))
        };
        let mut session = World::new(1).session(&plan, &engine, &quiet, &scratch);
        let failure = session.run(ONCE).unwrap_err();
        assert!(failure.message.contains("kernel: it has changed since the experiment began"), "{failure}");
        assert_eq!((failure.exit, session.records.len()), (Exit::Usage, 2));
    }
}
