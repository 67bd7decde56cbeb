//! The kernel's own lines on a console, and those that say that something went wrong.
//!
//! User space writes to the same line, and may quote a kernel. A line is the kernel's if it begins with what `printk` puts before
//! its text: a level (`<0>` to `<7>`), a time stamp (`[    1.234567]`), or both. Kernels may print neither; where none of the lines
//! before user space had a stamp, a line is taken for the kernel's if it begins with the very words.

use crate::run::outcome::Complaint;

/// First words of a kernel's panic message.
const PANIC: &str = "Kernel panic - not syncing";

/// Bad news from a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum News {
    Panic,
    Complaint(Complaint),
}

/// Bad news in `line`, if it is the kernel's; `has_stamps` of a kernel that puts stamps before all that it says.
pub(super) fn news(line: &str, has_stamps: bool) -> Option<News> {
    let text = without_level(line)?;
    let is_marked = text.len() < line.len() || without_stamp(text).is_some();
    if has_stamps && !is_marked {
        return None;
    }
    let text = without_stamp(text).unwrap_or(text);
    match text.starts_with(PANIC) {
        true => Some(News::Panic),
        false => complaint(text, is_marked).map(News::Complaint),
    }
}

/// Whether a line begins with a time stamp.
pub(super) fn is_stamped(line: &str) -> bool {
    without_level(line).and_then(without_stamp).is_some()
}

/// Returns the text behind a level, or the whole line; `None` for user space's own log, whose levels are higher.
fn without_level(line: &str) -> Option<&str> {
    let after = line.strip_prefix('<').and_then(|rest| rest.split_once('>'));
    match after.and_then(|(level, text)| Some((level.parse::<u32>().ok()?, text))) {
        Some((level, text)) => (level < 8).then_some(text),
        None => Some(line),
    }
}

/// Returns the text behind `[    1.234567] `, or behind `[    1.234567][    T1] ` with the caller.
fn without_stamp(line: &str) -> Option<&str> {
    let are_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (stamp, text) = line.strip_prefix('[')?.split_once(']')?;
    let (seconds, micros) = stamp.trim_start().split_once('.')?;
    let text = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((caller, text)) if are_digits(caller.trim_start().trim_start_matches(['C', 'T'])) => text,
        _ => text,
    };
    text.strip_prefix(' ').filter(|_| are_digits(seconds) && are_digits(micros) && micros.len() == 6)
}

/// The kind of complaint that the kernel's text begins. Without a mark of the kernel's, words that programs have in common with it
/// must be followed by its own.
fn complaint(text: &str, is_marked: bool) -> Option<Complaint> {
    /// Exceptions of code in the kernel, which adds a number of its own: `[#1]`. The other list has beginnings of its warnings.
    const EXCEPTIONS: [&str; 7] = [
        "Oops: ",
        "general protection fault",
        "invalid opcode: ",
        "divide error: ",
        "stack segment: ",
        "double fault: ",
        "int3: ",
    ];
    const OF_KERNELS: [&str; 13] = [
        "CPU: ",
        "at ",
        "possible ",
        "suspicious ",
        "inconsistent ",
        "bad unlock ",
        "lock held ",
        "held lock ",
        "Nested lock ",
        "HARDIRQ-",
        "SOFTIRQ-",
        "stack ",
        "kernel stack ",
    ];
    const HARD_LOCKUP: &str = "Watchdog detected hard LOCKUP";
    let prefix = ["watchdog: ", "NMI watchdog: ", "rcu: "].into_iter().find(|it| text.starts_with(it));
    let text = &text[prefix.map_or(0, str::len)..];
    let begins = |starts: &[&str]| starts.iter().any(|start| text.starts_with(start));
    let has = |words: &str| text.contains(words);
    let is_hard = prefix.is_some() && has(HARD_LOCKUP) || begins(&[HARD_LOCKUP]);
    if is_hard || begins(&["BUG: "]) && has(" lockup") {
        Some(Complaint::Lockup)
    } else if begins(&["INFO: rcu"]) && has(" stall") {
        Some(Complaint::Stall)
    } else if begins(&["INFO: task "]) && has(" blocked") && has(" for more than ") {
        Some(Complaint::HungTask)
    } else if begins(&EXCEPTIONS) && has(" [#") || begins(&["Oops: "]) && is_marked {
        Some(Complaint::Oops)
    } else if begins(&["BUG: ", "[ BUG: ", "kernel BUG at "]) {
        Some(Complaint::Bug)
    } else {
        let warning = text.strip_prefix("WARNING: ")?;
        let is_kernels = is_marked || has(" CPU#") || OF_KERNELS.iter().any(|it| warning.starts_with(it));
        is_kernels.then_some(Complaint::Warning)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_news_is_told_from_its_likes_with_every_mark() {
        use Complaint::{Bug, HungTask, Lockup, Oops, Stall, Warning};
        let told = |kind| Some(News::Complaint(kind));
        for (text, expected) in [
            ("Kernel panic - not syncing: Attempted to kill init!", Some(News::Panic)),
            ("watchdog: BUG: soft lockup - CPU#1 stuck for 23s! [work:31]", told(Lockup)),
            ("NMI watchdog: BUG: soft lockup - CPU#1 stuck for 23s! [work:31]", told(Lockup)),
            ("BUG: workqueue lockup - pool cpus=1 node=0", told(Lockup)),
            ("watchdog: CPU3: Watchdog detected hard LOCKUP on cpu 3", told(Lockup)),
            ("Watchdog detected hard LOCKUP on cpu 0", told(Lockup)),
            ("rcu: INFO: rcu_preempt self-detected stall on CPU", told(Stall)),
            ("INFO: rcu_sched detected stalls on CPUs/tasks: {", told(Stall)),
            ("rcu: INFO: rcu_preempt detected expedited stalls on", told(Stall)),
            ("INFO: task work:31 blocked for more than 120 seconds.", told(HungTask)),
            ("INFO: task work:31 blocked in I/O wait for more than 122 seconds.", told(HungTask)),
            ("INFO: task work:31 is blocked on a mutex likely owned by task x:2.", None),
            ("Oops: 0002 [#1] SMP NOPTI", told(Oops)),
            ("general protection fault, probably for address 0x1: 0000 [#1] SMP", told(Oops)),
            ("BUG: kernel NULL pointer dereference, address: 0000000000000008", told(Bug)),
            ("kernel BUG at mm/slub.c:448!", told(Bug)),
            ("WARNING: CPU: 1 PID: 31 at kernel/rcu/tree.c:2 x+0x1/0x2", told(Warning)),
            ("WARNING: possible circular locking dependency detected", told(Warning)),
            ("---[ end Kernel panic - not syncing: x ]---", None),
            ("INFO: lockdep is turned off.", None),
            ("traps: work[31] general protection fault ip:401000 sp:7ffc error:0", None),
            ("Spectre V2 : WARNING: Unprivileged eBPF is enabled", None),
            ("Run /init as init process", None),
        ] {
            for mark in ["[    1.234567] ", "[12345.000001][  C12] ", "<4>", "<0>[    2.000000] ", ""] {
                assert_eq!(news(&format!("{mark}{text}"), false), expected, "{mark}{text}");
                let with_stamps = expected.filter(|_| !mark.is_empty());
                assert_eq!(news(&format!("{mark}{text}"), true), with_stamps, "{mark}{text}");
            }
            for quoted in
                ["case 7: ", "<12>", "<30>[    1.234567] ", "[    1.2345] ", "[1] ", " ", "[    1.234567]"]
            {
                let quoted = format!("{quoted}{text}");
                assert_eq!(news(&quoted, quoted.starts_with('[')), None, "{quoted}");
            }
        }
    }

    #[test]
    fn a_program_may_warn_and_a_kernel_that_says_so_warns() {
        for text in ["WARNING: the disk is nearly full", "Oops: try again", "rcu: no stall"] {
            assert_eq!(news(text, false), None, "{text}");
        }
        for (text, expected) in [("WARNING: x", Complaint::Warning), ("Oops: x", Complaint::Oops)] {
            assert_eq!(news(&format!("[    1.234567] {text}"), false), Some(News::Complaint(expected)));
        }
    }
}
