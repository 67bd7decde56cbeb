//! This program as the first process of a Linux guest: runs the workload of the kernel's command line, prints its record on the
//! console, switches the machine off.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::process::{Command, ExitCode, Stdio};

use haltkick_vmm::INIT;
use rustix::mount::{MountFlags, mount};
use rustix::system::{RebootCommand, reboot};

use crate::experiment::workload_inside::{HERE, on_command_line};
use crate::measure::console::{MOST_BYTES, lines};
use crate::text::exit::Exit;

/// Whether a kernel has started this process as its first one.
pub(crate) fn is_this() -> bool {
    // The first process of a container has another name.
    std::process::id() == 1 && std::env::args_os().next().is_some_and(|name| name == INIT)
}

/// Does all that a first process has to. Ends in a kernel's panic where the machine cannot be switched off.
pub(crate) fn run() -> ExitCode {
    say(&format!("{HERE}\n"));
    for (kind, place) in [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev"), ("tmpfs", "/tmp")] {
        if let Err(error) = mount(kind, place, kind, MountFlags::empty(), None) {
            say(&format!("haltkick: {place} cannot be mounted: {error}\n"));
        }
    }
    let told = match workload() {
        Ok((output, exit)) => lines(&output, exit),
        Err(reason) => {
            say(&format!("haltkick: {reason}\n"));
            lines("", Exit::Internal as i32)
        }
    };
    // The kernel's own lines would tear ours.
    _ = fs::write("/proc/sys/kernel/printk", "1");
    say(&told);
    _ = rustix::termios::tcdrain(io::stdout());
    _ = reboot(RebootCommand::PowerOff);
    ExitCode::FAILURE
}

/// Runs the workload; returns its output and its exit code.
fn workload() -> Result<(String, i32), String> {
    let line = fs::read_to_string("/proc/cmdline").map_err(|error| format!("/proc/cmdline: {error}"))?;
    let words = on_command_line(&line).ok_or("the kernel's command line has no workload")?;
    let mut child = Command::new(INIT)
        .args(words)
        .args(["--format", "json"])
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("the workload cannot be started: {error}"))?;
    let mut output = Vec::new();
    let pipe = child.stdout.take().expect("it was asked for");
    let read = pipe.take(MOST_BYTES as u64).read_to_end(&mut output);
    read.map_err(|error| format!("the workload's output: {error}"))?;
    let status = child.wait().map_err(|error| format!("the workload's end: {error}"))?;
    let exit = status.code().ok_or_else(|| format!("the workload was killed: {status}"))?;
    Ok((String::from_utf8_lossy(&output).into_owned(), exit))
}

fn say(text: &str) {
    let mut console = io::stdout();
    _ = console.write_all(text.as_bytes()).and_then(|()| console.flush());
}
