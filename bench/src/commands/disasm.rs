//! `haltkick disasm`: the call sites of a lock, before and after the VMM has rewritten them.

use std::fmt::Write as _;

use haltkick_vmm::{Disassembler, Edit, Form, Image, Line, Operation};

use crate::cli::DisasmArgs;
use crate::commands::guest_image;
use crate::settings::Settings;
use crate::text::exit::{Exit, Failure, Result};
use crate::text::output;

pub(crate) fn disasm(args: &DisasmArgs) -> Result<Exit> {
    let image = guest_image::load(args.guest.as_deref(), [&*args.lock])?;
    let mut settings = Settings::default();
    settings.set("lock", &args.lock).map_err(Failure::usage)?;
    if let Some(pv) = &args.pv {
        settings.set("pv", pv).map_err(Failure::usage)?;
    }
    let (name, pv) = settings.lock_form(&image.locks).map_err(|wrong| Failure::usage(wrong.message))?;
    let lock = image.locks.iter().position(|lock| lock.name == name).expect("lock_form found it");
    let edits = image.edits(lock, pv)?;
    let count = |operation| edits.iter().filter(|edit| edit.operation == operation).count();
    let mut text = format!("{name}, pv {}: ", if pv { "on" } else { "off" });
    if edits.is_empty() {
        text += "no call site: this form is compiled into the workloads\n";
        output::data(&text)?;
        return Ok(Exit::Done);
    }
    let counted = OPERATIONS.into_iter().filter(|operation| count(*operation) > 0);
    let counted: Vec<_> =
        counted.map(|operation| format!("{} {operation} sites", count(operation))).collect();
    let _ = writeln!(text, "{}", counted.join(", "));
    let mut disassembler = Disassembler::new(&image);
    for edit in if args.all { edits.iter().collect() } else { examples(&image, &edits) } {
        text += &site(&image, &mut disassembler, edit);
    }
    for (operation, target) in targets(&edits) {
        text += &function(&image, &mut disassembler, operation, target);
    }
    output::data(&text)?;
    Ok(Exit::Done)
}

const OPERATIONS: [Operation; 5] =
    [Operation::Lock, Operation::Unlock, Operation::Read, Operation::ReadUnlock, Operation::Section];

/// One site for each operation: of the workload that measures, if it has one.
fn examples<'a>(image: &Image, edits: &'a [Edit]) -> Vec<&'a Edit> {
    let measures = |edit: &&Edit| image.symbols().describe(edit.address).contains("critical_section");
    OPERATIONS
        .into_iter()
        .filter_map(|operation| {
            let mut of = edits.iter().filter(|edit| edit.operation == operation);
            of.clone().find(measures).or_else(|| of.next())
        })
        .collect()
}

fn site(image: &Image, disassembler: &mut Disassembler, edit: &Edit) -> String {
    let mut text = format!("\n{} site at {}\n", edit.operation, image.symbols().describe(edit.address));
    let frames = image.lines().map(|lines| lines.frames(edit.address)).unwrap_or_default();
    if let Some(frame) = frames.last() {
        let _ = writeln!(text, "  in {frame}");
    }
    for (title, code) in [("as built", &edit.before), ("patched", &edit.after)] {
        for (index, line) in disassembler.decode(code, edit.address).iter().enumerate() {
            text += &row(if index == 0 { title } else { "" }, line);
        }
    }
    text
}

/// The functions that the sites lead to, each once.
fn targets(edits: &[Edit]) -> Vec<(Operation, u64)> {
    let mut targets: Vec<(Operation, u64)> = edits
        .iter()
        .map(|edit| {
            let (Form::Call(target) | Form::Inline(target)) = edit.form;
            (edit.operation, target)
        })
        .collect();
    targets.sort_unstable();
    targets.dedup();
    targets
}

/// The function at `target`, up to the padding behind it.
fn function(image: &Image, disassembler: &mut Disassembler, operation: Operation, target: u64) -> String {
    let mut text = format!("\nwhat {operation} sites lead to: {}\n", image.symbols().describe(target));
    let size = image.symbols().at(target).map_or(0, |(symbol, offset)| symbol.size.saturating_sub(offset));
    let code = image.bytes_at(target, size).unwrap_or_default();
    for line in disassembler.decode(code, target) {
        text += &row("", &line);
    }
    text
}

fn row(title: &str, line: &Line) -> String {
    let bytes: Vec<String> = line.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("  {title:<9} {:6x}  {:<24}  {}\n", line.address, bytes.join(" "), line.text)
}
