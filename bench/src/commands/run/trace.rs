//! The file of `--trace`: opened before the guest starts, so that a long run is not lost to a wrong path.

use std::fs::File;
use std::path::{Path, PathBuf};

use haltkick_vmm::Trace;

use crate::record::Traced;
use crate::text::exit::{Failure, Result};
use crate::text::output;

/// A file that will hold a trace.
pub(crate) struct TraceFile {
    path: PathBuf,
    file: File,
}

impl TraceFile {
    /// Creates `path`, or empties it.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        if path.extension().is_some_and(|it| it.eq_ignore_ascii_case("json")) {
            let (json, named) = (path.display(), path.with_extension("pftrace"));
            return Err(Failure::usage(format!(
                "--trace {json}: the trace is Perfetto's own format, and no JSON: write --trace {}",
                named.display()
            )));
        }
        let file = File::create(path).map_err(|error| {
            Failure::usage(format!("--trace: {}: {error}: choose a file that can be written", path.display()))
        })?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Writes `trace` and says what is in it. Of one that does not fit on the disk an empty file is left at most.
    pub(crate) fn write(self, trace: &Trace) -> Result<Traced> {
        let path = self.path.display().to_string();
        let bytes = trace.write(&self.file).map_err(|error| {
            if self.file.metadata().is_ok_and(|file| file.is_file()) {
                // The walls let nothing be removed; what is left is empty.
                let _ = self.file.set_len(0).and_then(|()| std::fs::remove_file(&self.path));
            }
            Failure::internal(format!("--trace: {path}: {error}: the record is complete, the trace is lost"))
        })?;
        let ((host_events, host_events_dropped), (guest_sections, guest_sections_dropped)) =
            (trace.host_events(), trace.guest_sections());
        let guest_sections_implausible = trace.implausible_sections();
        Ok(Traced {
            path,
            bytes,
            host_events,
            host_events_dropped,
            guest_sections,
            guest_sections_dropped,
            guest_sections_implausible,
            missing: trace.missing().to_vec(),
        })
    }
}

/// Writes `trace`, if there is one, and tells about it. A disk that is full costs the trace, not the run.
pub(crate) fn write(file: Option<TraceFile>, trace: Option<&Trace>) -> (Option<Traced>, Result<()>) {
    match file.zip(trace).map(|(file, trace)| file.write(trace)) {
        None => (None, Ok(())),
        Some(Ok(traced)) => {
            output::talk(&traced.story());
            (Some(traced), Ok(()))
        }
        Some(Err(failure)) => (None, Err(failure)),
    }
}
