//! Everything that is made from records: summary, CSV, plots, report, table.

use std::path::Path;

use crate::cli::{Format, MergeArgs, ReportArgs};
use crate::csv;
use crate::directory::{self, Directory};
use crate::exit::{Exit, Failure, Result};
use crate::manifest::Manifest;
use crate::merge;
use crate::output;
use crate::plot::{self, Data};
use crate::record::Record;
use crate::report;
use crate::summary::Summary;
use crate::table;

/// Writes and shows what the records say, all that are planned or those that there are.
pub(crate) fn conclude(
    directory: &Path,
    manifest: &Manifest,
    records: &[Record],
    format: Format,
) -> Result<Exit> {
    // The table needs no room on the disk.
    let summary = Summary::new(&manifest.outline, records);
    match format {
        Format::Table => output::data(&table::summary(&summary))?,
        Format::Json => output::data(&to_json(&summary)?)?,
    }
    let (_, exit) = write(directory, manifest, records)?;
    output::talk(&format!("results: {0}, report: {0}/report.html", directory.display()));
    Ok(exit)
}

/// Writes what the records say. The records themselves are on disk already.
pub(crate) fn write(directory: &Path, manifest: &Manifest, records: &[Record]) -> Result<(Summary, Exit)> {
    let summary = Summary::new(&manifest.outline, records);
    let write = |name: &str, content: &str| {
        directory::write_whole(&directory.join(name), content).map_err(|failure| Failure {
            message: format!(
                "{failure}: all {} records are kept; make room, then `haltkick report {}` makes the rest",
                records.len(),
                directory.display()
            ),
            ..failure
        })
    };
    write("summary.json", &to_json(&summary)?)?;
    write("summary.csv", &csv::summary(&summary))?;
    write("runs.csv", &csv::runs(&manifest.outline, records))?;
    for picture in plot::pictures(&Data::new(&summary, records)) {
        if let Some(svg) = &picture.svg {
            write(&format!("{}.svg", picture.name), &svg.file())?;
        }
    }
    write("report.html", &report::html(manifest, &summary, records))?;
    let trusted = records.iter().all(|record| record.trusted);
    Ok((summary, if trusted { Exit::Done } else { Exit::Untrusted }))
}

/// `haltkick report`.
pub(crate) fn again(args: &ReportArgs) -> Result<Exit> {
    let (manifest, records) = read(&args.directory)?;
    conclude(&args.directory, &manifest, &records, args.format)
}

/// `haltkick merge`.
pub(crate) fn merge(args: &MergeArgs) -> Result<Exit> {
    let parts = args.directories.iter().map(|path| read(path)).collect::<Result<Vec<_>>>()?;
    let (manifest, records) = merge::merge(&args.directories, parts, args.anyway)?;
    let mut directory = Directory::create(&args.output)?;
    directory.write(directory::MANIFEST, &manifest.to_json()?)?;
    for record in &records {
        directory.append(&crate::output::to_json(record)?)?;
    }
    conclude(directory.path(), &manifest, &records, args.format)
}

/// What a directory holds.
pub(crate) fn read(path: &Path) -> Result<(Manifest, Vec<Record>)> {
    let manifest = Manifest::read(path)?;
    Ok((manifest, directory::read_records(path)?))
}

fn to_json(summary: &Summary) -> Result<String> {
    serde_json::to_string_pretty(summary)
        .map(|json| json + "\n")
        .map_err(|error| Failure::internal(format!("the summary as JSON: {error}")))
}
