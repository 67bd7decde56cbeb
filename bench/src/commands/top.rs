//! `haltkick top`: looks at runs that show themselves, from other CPUs than theirs.

use std::io::{self, IsTerminal as _};
use std::time::{Duration, Instant};

use haltkick_vmm::{allowed_cpus, keep_off};

use crate::cli::{Format, TopArgs};
use crate::results::live::{FoundLive, View};
use crate::show::top::{table, with_rates};
use crate::text::exit::{Exit, Failure, Result};
use crate::text::output;

/// Frames are written ten times a second.
const SHORTEST: Duration = Duration::from_millis(100);
/// Rates of a single look are of this long, or of less where runs are too short for it.
const GLANCE: Duration = Duration::from_millis(500);
/// How long a single look waits for a run, in an experiment that is between two.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) fn top(args: &TopArgs) -> Result<Exit> {
    if args.interval.0 < SHORTEST {
        return Err(Failure::usage("--interval: a run shows itself ten times a second: use 100ms or more"));
    }
    let found = FoundLive::find(&args.target)?;
    let mut watched = Watched { found, allowed: allowed_cpus(), is_off: true };
    if args.once {
        return once(args, &mut watched);
    }
    let mut earlier: Option<View> = None;
    loop {
        let frame = watched.look()?;
        if is_over(earlier.as_ref(), &frame) {
            output::talk(&format!("process {} has no run left", frame.process));
            return Ok(Exit::Done);
        }
        if !show(args, &watched, earlier.as_ref(), &frame)? {
            return Ok(Exit::Done);
        }
        earlier = Some(frame);
        std::thread::sleep(args.interval.0);
    }
}

/// Two frames of one run, of which the second is shown.
fn once(args: &TopArgs, watched: &mut Watched) -> Result<Exit> {
    let began = Instant::now();
    let mut glance = GLANCE.min(args.interval.0);
    loop {
        let earlier = watched.look()?;
        let is_over = is_over(None, &earlier);
        if !is_over {
            std::thread::sleep(glance);
        }
        let frame = watched.look()?;
        let is_of_run = frame.run == earlier.run && !frame.guests.is_empty();
        if is_over || is_of_run || began.elapsed() > PATIENCE {
            show(args, watched, Some(&earlier), &frame)?;
            return Ok(Exit::Done);
        }
        glance = (glance / 2).max(SHORTEST);
    }
}

/// Whether nothing more is to come: the process says so, or it shows nothing new and is gone.
fn is_over(earlier: Option<&View>, frame: &View) -> bool {
    let is_new = earlier.is_some_and(|earlier| earlier != frame);
    frame.is_ended() || !is_new && !frame.is_of_living_process()
}

/// A view, and the CPUs that the process which looks at it may use.
struct Watched {
    found: FoundLive,
    /// The CPUs that this process had at first.
    allowed: Vec<u32>,
    /// Whether this process keeps off the pCPUs of the run.
    is_off: bool,
}

impl Watched {
    fn look(&mut self) -> Result<View> {
        let frame = self.found.read()?;
        if !frame.virtual_time && !frame.cpus.is_empty() {
            self.is_off = keep_off(&self.allowed, &frame.cpus);
        }
        Ok(frame)
    }
}

/// Shows a frame. Whether anybody takes it.
fn show(args: &TopArgs, watched: &Watched, earlier: Option<&View>, frame: &View) -> Result<bool> {
    let view = with_rates(earlier, frame, watched.is_off);
    let is_redrawn = !args.once && io::stdout().is_terminal();
    output::is_taken(&match args.format {
        Format::Json => format!("{}\n", output::to_json(&view)?),
        Format::Table if is_redrawn => {
            // The last line of the terminal stays empty: with the end of a line there it would scroll.
            let height = terminal_size::terminal_size().map_or(24, |(_, height)| usize::from(height.0));
            format!("\x1b[H\x1b[J{}", table(&view, height.saturating_sub(1)))
        }
        Format::Table if earlier.is_some() && !args.once => format!("\n{}", table(&view, usize::MAX)),
        Format::Table => table(&view, usize::MAX),
    })
}
