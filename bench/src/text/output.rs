//! Data to stdout, talk to stderr. A reader that went away (`| head`) is no error.

use std::io::{ErrorKind, IsTerminal as _, Write as _};

use serde::Serialize;

use crate::text::exit::{Failure, Result};

/// Writes data to stdout.
pub(crate) fn data(text: &str) -> Result<()> {
    let mut stdout = anstream::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::internal(format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Writes one line to stderr; if even that fails there is nobody to tell.
pub(crate) fn talk(line: &str) {
    let _ = writeln!(anstream::stderr().lock(), "{line}");
}

/// Whether a person watches stderr.
pub(crate) fn is_watched() -> bool {
    std::io::stderr().is_terminal()
}

/// The record as one line of JSON.
pub(crate) fn to_json(record: &impl Serialize) -> Result<String> {
    serde_json::to_string(record).map_err(|error| Failure::internal(format!("the record as JSON: {error}")))
}
