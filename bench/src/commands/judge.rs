//! `haltkick judge`: a lock object's check, figures and worst points in one directory. Each part is a command of its own, since each
//! confines its process to what it needs.

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use haltkick_vmm::{Entry, FILE_PREFIX};

use crate::analysis::consistency;
use crate::analysis::summary::{Summary, words};
use crate::cli::JudgeArgs;
use crate::commands::guest_image;
use crate::results::directory::{self, Directory};
use crate::results::manifest::Manifest;
use crate::text::exit::{Exit, Failure, Result};
use crate::text::output;

pub(crate) fn judge(args: &JudgeArgs) -> Result<Exit> {
    // A file that cannot be linked is refused before there is a directory.
    let image = guest_image::load(None, [&*format!("{FILE_PREFIX}{}", args.object.display())])?;
    let entry = image.locks.last().expect("it was linked");
    let output = Directory::anew(args.output.as_deref(), "judge")?;
    let mut text = format!("{}\n\n", args.object.display());
    let mut verdict = Exit::Done;
    for (part, line) in parts(args, entry, &output) {
        let code = run(part, &line, &output)?;
        if code == i32::from(Exit::Interrupted as u8) {
            return Err(Failure { exit: Exit::Interrupted, message: format!("{part}: interrupted") });
        }
        let _ = writeln!(text, "{part:<14} {}", said(part, code, &output)?);
        if verdict == Exit::Done {
            verdict = exit_of(code);
        }
    }
    let _ = writeln!(text, "\nEverything is in {}", output.display());
    directory::write_whole(&output.join("summary.txt"), &text)?;
    output::data(&text)?;
    Ok(verdict)
}

/// The parts in the order in which they run: the name of a part's directory or file, and its command line.
fn parts(args: &JudgeArgs, entry: &Entry, output: &Path) -> Vec<(&'static str, String)> {
    // Only a zero byte cannot be quoted, and no argument has one.
    let quoted = |text: String| shlex::try_quote(&text).unwrap_or_default().into_owned();
    let into = |name: &str| format!(" --output {}", quoted(output.join(name).display().to_string()));
    let (object, machine) = (quoted(args.object.display().to_string()), quoted(args.machine.clone()));
    let (time, quick) = (args.time, if args.quick { " --quick" } else { "" });
    let simulated = format!(" --engine sim --machine {machine} --cpus 0-7");
    let place = if args.simulated { simulated.as_str() } else { "" };
    let bench = format!("bench judge --with {object}{quick}");
    let mut parts = vec![("check", format!("check {object} --time {time}{place}"))];
    if !args.simulated {
        parts.push(("real", bench.clone() + &into("real")));
    }
    // Windows of eight rounds of 64 vCPUs take long, and seeds scatter little.
    let sets = format!(
        "--set engine=sim --set machine={machine} --set cpus=0-7 --set window=5ms/8 --set slice=250us \
         --set warmup=2ms --blocks 6"
    );
    parts.push(("simulated", format!("{bench} {sets}{}", into("simulated"))));
    let forms = [("off", "worst-native", entry.has_native()), ("on", "worst-pv", entry.has_paravirt())];
    for (pv, name, _) in forms.into_iter().filter(|(.., has)| *has) {
        let how = format!("--pv {pv} --machine {machine} --cpus 0-3 --top 5 --budget {time}{}", into(name));
        parts.push((name, format!("worst --lock-object {object} {how}")));
    }
    parts
}

/// Runs a part, and keeps what it prints.
fn run(part: &str, line: &str, output: &Path) -> Result<i32> {
    let wrong = |error: std::io::Error| Failure::internal(format!("{part}: {error}"));
    let words = shlex::split(line).expect("its words are quoted");
    output::talk(&format!("haltkick {line}"));
    let program = std::env::current_exe().map_err(wrong)?;
    let ended = Command::new(program).args(words).stderr(Stdio::inherit()).output().map_err(wrong)?;
    let text = String::from_utf8_lossy(&ended.stdout);
    directory::write_whole(&output.join(format!("{part}.txt")), text.as_bytes())?;
    output::data(&format!("{text}\n"))?;
    Ok(ended.status.code().unwrap_or(i32::from(Exit::Internal as u8)))
}

/// The finding of a part in a line or a few.
fn said(part: &str, code: i32, output: &Path) -> Result<String> {
    let path = output.join(part);
    let ending = match code {
        0 if part == "check" => "no fault found".to_owned(),
        0 => "done".to_owned(),
        4 => "skipped: this host, or a simulated CPU, lacks something".to_owned(),
        5 | 6 => "A FAULT WAS FOUND".to_owned(),
        7 => "finished, but its figures are invalid".to_owned(),
        code => format!("failed with exit code {code}"),
    };
    if !path.join(directory::MANIFEST).exists() {
        return Ok(format!("{ending} ({part}.txt)"));
    }
    let manifest = Manifest::read(&path)?;
    let summary = Summary::new(&manifest.outline, &consistency::last_attempts(&manifest.records(&path)?));
    let ending = if code == 0 { String::new() } else { format!("{ending}; ") };
    let mut text = format!("{ending}report: {}", path.join("report.html").display());
    for compared in &summary.comparisons {
        let at = words("", &compared.setting);
        let (ratio, word) = (compared.as_ratio(), compared.verdict.word(&compared.of));
        let _ = write!(text, "\n    {at:<10} {:<40} {ratio}, {word}", compared.name);
    }
    manifest.failed_cells().iter().for_each(|(_, failure)| _ = write!(text, "\n    {failure}"));
    Ok(text)
}

fn exit_of(code: i32) -> Exit {
    use Exit::{BadExperiment, Done, GuestFailed, HostLacks, NoProgress, Untrusted, Usage};
    let known = [Done, Usage, BadExperiment, HostLacks, GuestFailed, NoProgress, Untrusted];
    known.into_iter().find(|exit| *exit as i32 == code).unwrap_or(Exit::Internal)
}
