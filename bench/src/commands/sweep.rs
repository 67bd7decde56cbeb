//! `haltkick sweep`: an experiment without a file.

use crate::cli::SweepArgs;
use crate::commands::bench;
use crate::experiment::sweep::Sweep;
use crate::results::directory::write_whole;
use crate::text::exit::{Exit, Failure, Result};
use crate::text::output;

pub(crate) fn sweep(args: &SweepArgs) -> Result<Exit> {
    let sweep = Sweep {
        vary: &args.vary,
        settings: &args.settings,
        boot: &args.boot.pairs(),
        baseline: args.compare.as_deref(),
        of: &args.of,
        blocks: args.blocks,
        robust: args.robust,
    };
    let source = sweep.source(false)?;
    if let Some(path) = &args.save {
        if path.exists() {
            let path = path.display();
            return Err(Failure::usage(format!("--save: {path} is there already: choose another name")));
        }
        let is_here = path.parent().is_none_or(|parent| parent.as_os_str().is_empty());
        let saved = if is_here { &source } else { &sweep.source(true)? };
        write_whole(path, saved.text.as_bytes())?;
        output::talk(&format!("saved: `haltkick bench {}` runs it", path.display()));
    }
    bench::run_source(source, &args.conduct)
}
