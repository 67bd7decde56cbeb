//! Everything that is made from records: summary, CSV, plots, report, table.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::analysis::consistency;
use crate::analysis::summary::Summary;
use crate::cli::{Format, MergeArgs, ReportArgs, ShowArgs};
use crate::record::Record;
use crate::results::directory::{self, Directory};
use crate::results::manifest::Manifest;
use crate::results::merge;
use crate::show::export::{Export, markdown};
use crate::show::plot::{self, Data};
use crate::show::table::{self, Detail};
use crate::show::{csv, report};
use crate::text::exit::{Exit, Failure, Result};
use crate::text::output;

/// Writes and shows what the records say, all that are planned or those that there are. The files of `exports` are open already.
pub(crate) fn conclude(
    directory: &Path,
    manifest: &Manifest,
    records: &[Record],
    show: &ShowArgs,
    exports: &[Export],
) -> Result<Exit> {
    let kept = records.len();
    let records = consistency::last_attempts(records);
    let summary = summarized(manifest, &records);
    let detail = match (show.verbose, manifest.is_quick() && !show.strict) {
        (true, _) => Detail::Verbose,
        (false, true) => Detail::Quick,
        (false, false) => Detail::Brief,
    };
    // The table needs no room on the disk, and the files do not need a reader of the table.
    let printed = match show.format {
        _ if exports.iter().any(|export| matches!(export, Export::Stdout)) => Ok(()),
        Format::Table if kept == 0 => {
            output::talk("no run has ended: there is no table");
            Ok(())
        }
        Format::Table => output::data(&table::summary(&summary, detail)),
        Format::Json => output::data(&output::to_indented_json(&summary)?),
    };
    let exported = exports.iter().try_for_each(|export| write_table(directory, export, &markdown(&summary)));
    write_files(directory, manifest, &summary, &records)?;
    printed.and(exported).map_err(|failure| {
        let path = directory.display();
        let message = format!("{failure}: all {kept} records are kept, with the report, in {path}");
        Failure { message, ..failure }
    })?;
    output::talk(&format!("results: {0}, report: {0}/report.html", directory.display()));
    Ok(exit(manifest, &summary, &records, show.strict))
}

/// Summary of the records. Runs that failed have none, and are told first.
fn summarized(manifest: &Manifest, records: &[Record]) -> Summary {
    let mut summary = Summary::new(&manifest.outline, records);
    summary.warnings.splice(0..0, manifest.failed_cells().into_iter().map(|(_, warning)| warning));
    summary
}

fn write_table(directory: &Path, export: &Export, content: &str) -> Result<()> {
    let path = match export {
        Export::Stdout => return output::data(content),
        Export::Directory => {
            let path = directory.join("table.md");
            directory::write_whole(&path, content).map(|()| path)
        }
        Export::File(file) => file.write(content.as_bytes()).map(|()| file.path.clone()),
    }?;
    output::talk(&format!("exported: {}", path.display()));
    Ok(())
}

pub(crate) fn write(directory: &Path, manifest: &Manifest, records: &[Record]) -> Result<(Summary, Exit)> {
    let records = consistency::last_attempts(records);
    let summary = summarized(manifest, &records);
    write_files(directory, manifest, &summary, &records)?;
    let exit = exit(manifest, &summary, &records, false);
    Ok((summary, exit))
}

/// Whether the figures are valid: those of the headline, or strictly all. A first look only notes it. Where runs failed, figures of
/// the others are not all that there is to know.
fn exit(manifest: &Manifest, summary: &Summary, records: &[Record], strict: bool) -> Exit {
    if let Some(failed) = manifest.ending_of_failed() {
        return failed;
    }
    let trusted = match strict {
        true => records.iter().all(|record| record.trusted),
        false => manifest.is_quick() && !records.is_empty() || summary.lost.is_empty(),
    };
    if trusted { Exit::Done } else { Exit::Untrusted }
}

/// Writes all that is made of records. They themselves are on disk already.
fn write_files(directory: &Path, manifest: &Manifest, summary: &Summary, records: &[Record]) -> Result<()> {
    let write = |name: &str, content: &str| {
        directory::write_whole(&directory.join(name), content.as_bytes()).map_err(|failure| Failure {
            message: format!(
                "{failure}: all records are kept; make room, then `haltkick report {}` makes the rest",
                directory.display()
            ),
            ..failure
        })
    };
    write("summary.json", &output::to_indented_json(summary)?)?;
    write("summary.csv", &csv::summary(summary))?;
    write("runs.csv", &csv::runs(&manifest.outline, records))?;
    for picture in plot::pictures(&Data::new(summary, records)) {
        if let Some(svg) = &picture.svg {
            write(&format!("{}.svg", picture.name), &svg.file())?;
        }
    }
    write("report.html", &report::page(manifest, summary, records))
}

pub(crate) fn again(args: &ReportArgs) -> Result<Exit> {
    let exports = Export::open(&args.show.export)?;
    let (manifest, records) = read(&args.directory)?;
    let exit = conclude(&args.directory, &manifest, &records, &args.show, &exports)?;
    if args.open {
        open(&args.directory.join("report.html"))?;
    }
    Ok(exit)
}

fn open(page: &Path) -> Result<()> {
    const OPENER: &str = "xdg-open";
    let status = Command::new(OPENER).arg(page).stdin(Stdio::null()).stdout(Stdio::null()).status();
    let how = match status {
        Ok(status) if status.success() => return Ok(()),
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    };
    let page = page.display();
    Err(Failure::lacking(format!("no browser was opened: {OPENER}: {how}; the report is {page}")))
}

pub(crate) fn merge(args: &MergeArgs) -> Result<Exit> {
    let parts = args.directories.iter().map(|path| read(path)).collect::<Result<Vec<_>>>()?;
    let (manifest, records) = merge::merge(&args.directories, parts, args.anyway)?;
    let exports = Export::open(&args.show.export)?;
    let mut directory = Directory::create(&args.output)?;
    directory.write(directory::MANIFEST, &output::to_indented_json(&manifest)?)?;
    for record in &records {
        directory.append(&directory::lines(std::slice::from_ref(record))?)?;
    }
    directory.sync()?;
    conclude(&directory.path, &manifest, &records, &args.show, &exports)
}

fn read(path: &Path) -> Result<(Manifest, Vec<Record>)> {
    let manifest = Manifest::read(path)?;
    let records = manifest.records(path)?;
    Ok((manifest, records))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::synthetic::{Scratch, Sketch, World};
    use crate::results::manifest::FailedRun;

    #[test]
    fn invalid_headlines_and_failed_runs_decide_how_results_end() {
        let (scratch, plan, world) = (Scratch::new("ends"), Sketch::two().compared().plan(8), World::new(1));
        let manifest = |options: &str, failed: &[Option<u8>]| {
            let run =
                |ended_with| FailedRun { cell_id: "b".into(), block: 9, message: "-".into(), ended_with };
            let failed = failed.iter().copied().map(run).collect();
            let mut manifest = Manifest { failed, ..world.manifest(&plan) };
            manifest.source.overrides.push(options.into());
            manifest
        };
        // In how many of the eight blocks runs of `b` are invalid.
        for (invalid, options, strict, failed, expected) in [
            (0, "", true, &[][..], Exit::Done),
            (1, "", false, &[], Exit::Done),
            (1, "", true, &[], Exit::Untrusted),
            (3, "", false, &[], Exit::Untrusted),
            // A quick look ends well, unless it is strict, or lacks failed runs.
            (8, "--quick", false, &[], Exit::Done),
            (1, "--quick", true, &[], Exit::Untrusted),
            (8, "--blocks=3", false, &[], Exit::Untrusted),
            (0, "", false, &[None], Exit::NoProgress),
            (0, "--quick", false, &[None, Some(6)], Exit::NoProgress),
            (0, "--quick", false, &[Some(5)], Exit::GuestFailed),
        ] {
            let (manifest, mut records) = (manifest(options, failed), world.records(&plan));
            let is_spoiled = |it: &&mut Record| it.placed().arm == "b" && it.placed().block < invalid;
            for record in records.iter_mut().filter(is_spoiled) {
                record.warn("busy-neighbour", "somebody".into());
            }
            let show = ShowArgs { format: Format::Table, strict, verbose: false, export: vec![] };
            let ended = conclude(scratch.path(), &manifest, &records, &show, &[]);
            assert_eq!(ended, Ok(expected), "{invalid} {options} {strict} {failed:?}");
            let told = summarized(&manifest, &records).warnings;
            assert_eq!(told.iter().any(|it| it.starts_with("FAILED")), !failed.is_empty(), "{told:?}");
        }
        let manifest = manifest("--quick", &[]);
        let ended = exit(&manifest, &summarized(&manifest, &[]), &[], false);
        assert_eq!(ended, Exit::Untrusted, "nothing was measured");
    }
}
