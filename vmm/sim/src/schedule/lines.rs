//! Lines of `perf script`, of `trace-cmd report` and of ftrace's `trace`: one event each.
//!
//! ```text
//! CPU 0/KVM  1234 [002] 12345.678901: sched:sched_switch:k: prev_comm=CPU 0/KVM prev_pid=1234 prev_prio=120 prev_state=R ==> next_comm=...
//! CPU 0/KVM-1234  [002] 12345.678901: sched_switch:         CPU 0/KVM:1234 [120] R ==> swapper/2:0 [120]
//! CPU 0/KVM-1234  (   1200) [002] d..2. 12345.678901: sched_waking: comm=CPU 1/KVM pid=1235 prio=120 target_cpu=003
//! ```
//!
//! A thread's name has 15 bytes at most, and any of them but zero: spaces, brackets, arrows, line breaks, bytes that are no UTF-8. So a
//! field is found from the side that has no name, and lines are joined while an event is incomplete.

use std::iter;

/// A thread: its name and number.
pub(super) type Thread<'a> = (&'a str, u32);

/// Statement of a line.
pub(super) enum Line<'a> {
    Event(Event<'a>),
    /// A switch or wake-up that cannot be read, and why.
    Broken(&'static str),
    /// This many events before it were lost.
    Lost(u64),
    /// This many of the first events were overwritten by later ones.
    Overwritten(u64),
    /// From here on the file has the events of one more CPU.
    Started,
}

pub(super) struct Event<'a> {
    /// Its time, as the file writes it.
    pub(super) at: &'a str,
    pub(super) cpu: Option<u32>,
    /// The thread that ran there.
    pub(super) by: Option<Thread<'a>>,
    pub(super) what: What<'a>,
}

pub(super) enum What<'a> {
    Switch {
        out: Thread<'a>,
        state: &'a str,
        into: Thread<'a>,
    },
    /// `begins`: this is `sched_waking`, and the thread may not have left its CPU yet.
    Wakes {
        woken: Thread<'a>,
        begins: bool,
    },
    /// An event of another name.
    Other(&'a str),
}

/// Events whose text is a program's own: it may look like an event.
const TEXTS: [&str; 4] = ["print", "bprint", "bputs", "tracing_mark_write"];
/// Most lines of an event: names of threads may have line breaks.
const MOST_JOINED: usize = 16;
/// Most arrows that are tried: a name has room for five.
const MOST_ARROWS: usize = 8;
const NO_TIME: &str = "no time before the event's name, such as 12345.678901:";

/// The lines that say something, with their numbers.
pub(super) fn lines(text: &str) -> impl Iterator<Item = (usize, Line<'_>)> {
    let (mut rest, mut number) = (text, 1);
    iter::from_fn(move || {
        while !rest.is_empty() {
            let (line, length) = joined(rest);
            let (at, taken) = (number, &rest[..length]);
            number += taken.matches('\n').count();
            rest = &rest[length..];
            // Other programs' lines decide nothing.
            let counts =
                |line: &Line<'_>| !is_broken(line) || taken.contains("/KVM") || taken.contains("vcpu");
            if let Some(line) = line.filter(counts) {
                return Some((at, line));
            }
        }
        None
    })
}

pub(super) fn has_switch(text: &str) -> bool {
    text.lines().any(|line| heads(line).any(|head| head.name == "sched_switch"))
}

/// The first line, and how long it is with those that it goes on in.
fn joined(text: &str) -> (Option<Line<'_>>, usize) {
    let end = |from: usize| text[from..].find('\n').map_or(text.len(), |at| from + at + 1);
    let first = end(0);
    let line = read(&text[..first]);
    let mut until = first;
    for _ in 1..MOST_JOINED {
        let (from, to) = (until, end(until));
        let is_scheduling = || heads(&text[from..to]).any(|head| scheduling(&head).is_some());
        let goes_on = matches!(line, Some(Line::Broken(why)) if why != NO_TIME);
        if !goes_on || from == to || is_scheduling() {
            break;
        }
        until = to;
        if let Some(whole) = read(&text[..until]).filter(|line| !is_broken(line)) {
            return (Some(whole), until);
        }
    }
    (line, first)
}

fn is_broken(line: &Line<'_>) -> bool {
    matches!(line, Line::Broken(_))
}

fn read(line: &str) -> Option<Line<'_>> {
    event(line).or_else(|| of_buffers(line.trim()))
}

/// A line that tells what the recording lacks.
fn of_buffers(line: &str) -> Option<Line<'_>> {
    let last_number = |text: &str| {
        let mut numbers = text.rsplit(|it: char| !it.is_ascii_digit()).filter_map(|it| it.parse().ok());
        if text.contains('%') { None } else { numbers.next() }
    };
    if let Some((_, lost)) = line.split_once("PERF_RECORD_LOST") {
        return Some(Line::Lost(last_number(lost).unwrap_or(1)));
    }
    if let Some(counts) = line.strip_prefix("# entries-in-buffer/entries-written:") {
        let (kept, written) = counts.split_whitespace().next()?.split_once('/')?;
        let overwritten = written.parse::<u64>().ok()?.checked_sub(kept.parse().ok()?)?;
        return (overwritten > 0).then_some(Line::Overwritten(overwritten));
    }
    if line.starts_with("##### CPU ") && line.ends_with(" buffer started ####") {
        return Some(Line::Started);
    }
    // In brackets there may be a CPU's number before them.
    let told = line.split_once('[').map_or(line, |(_, told)| told);
    let says = |words: &[&str]| {
        let mut said = told.split(|it: char| !it.is_ascii_alphanumeric() && it != '_');
        said.any(|word| words.iter().any(|it| word.eq_ignore_ascii_case(it)))
    };
    if !line.starts_with('#') && says(&["lost", "dropped"]) && says(&["events", "samples"]) {
        return Some(last_number(told).unwrap_or(1)).filter(|count| *count > 0).map(Line::Lost);
    }
    let statistics = ["overrun:", "commit overrun:"];
    let count = statistics.iter().find_map(|name| line.strip_prefix(name)).and_then(last_number)?;
    (count > 0).then_some(Line::Lost(count))
}

/// A time and the name of an event behind it.
struct Head<'a> {
    before: &'a str,
    at: &'a str,
    name: &'a str,
    after: &'a str,
}

impl<'a> Head<'a> {
    fn event(&self, what: What<'a>) -> Line<'a> {
        let (cpu, by) = context(self.before);
        Line::Event(Event { at: self.at, cpu, by, what })
    }
}

/// All that looks like the head of an event. A name is too short for that of a switch or a wake-up.
fn heads(line: &str) -> impl Iterator<Item = Head<'_>> {
    let (mut from, mut time) = (0, None);
    iter::from_fn(move || {
        loop {
            let start = from + line[from..].find(|it: char| !it.is_whitespace())?;
            from = line[start..].find(char::is_whitespace).map_or(line.len(), |length| start + length);
            let token = &line[start..from];
            let Some(word) = token.strip_suffix(':') else {
                // A sample's period, or the time since the last event.
                let counts = token.starts_with("(+") || token.bytes().all(|byte| byte.is_ascii_digit());
                time = time.filter(|_| counts);
                continue;
            };
            if word.starts_with(|it: char| it.is_ascii_digit())
                && word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
            {
                time = Some((start, word));
            } else if let Some((start, at)) = time.take()
                && word.starts_with(|it: char| it.is_ascii_alphabetic())
            {
                return Some(Head { before: &line[..start], at, name: name(word), after: &line[from..] });
            }
        }
    })
}

/// An event's name without its system, and without what it was opened with: `sched:sched_switch/call-graph=no/k`.
fn name(word: &str) -> &str {
    let mut parts = word.split([':', '/']);
    let first = parts.next().unwrap_or_default();
    let is_system = !first.contains('_') && word[first.len()..].starts_with(':');
    if is_system { parts.next().unwrap_or(first) } else { first }
}

/// Returns the switch or wake-up that a head begins.
fn scheduling<'a>(head: &Head<'a>) -> Option<Line<'a>> {
    let what = match head.name {
        "sched_switch" => switch(head.after),
        "sched_waking" | "sched_wakeup" | "sched_wakeup_new" => {
            let begins = head.name == "sched_waking";
            let woken = in_fields(head.after, ["comm=", " pid="]).or_else(|| by_colon(head.after));
            woken
                .map(|woken| What::Wakes { woken, begins })
                .ok_or("no thread as comm=NAME pid=NUMBER, or as NAME:NUMBER [PRIORITY]")
        }
        _ => return None,
    };
    Some(what.map_or_else(Line::Broken, |what| head.event(what)))
}

fn event(line: &str) -> Option<Line<'_>> {
    let mut first = None;
    for head in heads(line) {
        if let Some(line) = scheduling(&head) {
            return Some(line);
        }
        // A thread's name is too short for all of this.
        let is_text = TEXTS.contains(&head.name) && matches!(context(head.before), (Some(_), Some(_)));
        first.get_or_insert(head);
        if is_text {
            break;
        }
    }
    if let Some(head) = first {
        return Some(head.event(What::Other(head.name)));
    }
    let names_event = |token: &str| {
        token
            .strip_suffix(':')
            .is_some_and(|word| matches!(name(word), "sched_switch" | "sched_wakeup" | "sched_waking"))
    };
    let lacks_time = !line.starts_with('#') && line.split_whitespace().any(names_event);
    lacks_time.then_some(Line::Broken(NO_TIME))
}

/// The CPU that an event was on, and the thread that ran there: what stands before the time.
fn context(before: &str) -> (Option<u32>, Option<Thread<'_>>) {
    let mut left = before.trim_end();
    // Flags may stand between.
    for _ in 0..2 {
        let (shorter, token) = left.rsplit_once(char::is_whitespace).unwrap_or(("", left));
        left = shorter.trim_end();
        let number = token.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')?.parse().ok());
        if number.is_some() {
            return (number, running(left));
        }
    }
    (None, running(before.trim_end()))
}

/// `NAME-1234`, `NAME-1234 (1200)`, `NAME 1234` or `NAME 1200/1234`.
fn running(text: &str) -> Option<Thread<'_>> {
    let text = text
        .strip_suffix(')')
        .and_then(|it| it.rsplit_once('('))
        .map_or(text, |(thread, _)| thread.trim_end());
    let of_perf = text.rsplit_once(char::is_whitespace).and_then(|(name, ids)| {
        let id = ids.rsplit_once('/').map_or(ids, |(_, thread)| thread);
        Some((name, id.parse().ok()?))
    });
    let of_ftrace = || text.rsplit_once('-').and_then(|(name, id)| Some((name, id.parse().ok()?)));
    of_perf.or_else(of_ftrace).map(|(name, id)| (name.trim(), id))
}

/// Both threads of a switch. A name may have arrows: the right one leaves names that are not too long.
fn switch(text: &str) -> Result<What<'_>, &'static str> {
    let read = |(at, arrow): (usize, &str)| {
        let (out, state) = text[..at].trim_end().rsplit_once(char::is_whitespace)?;
        let into = &text[at + arrow.len()..];
        let (state, out, into) = match state.strip_prefix("prev_state=") {
            Some(state) => {
                let out = in_fields(out, ["prev_comm=", " prev_pid="])?;
                (state, out, in_fields(into, ["next_comm=", " next_pid="])?)
            }
            None => (state, by_colon(out)?, by_colon(into)?),
        };
        state.starts_with(|it: char| it.is_ascii_alphabetic()).then_some((out, state, into))
    };
    let longest = |(out, _, into): &(Thread<'_>, &str, Thread<'_>)| out.0.len().max(into.0.len());
    let found = text.match_indices("==>").take(MOST_ARROWS).filter_map(read).min_by_key(longest);
    match found {
        Some((out, state, into)) => Ok(What::Switch { out, state, into }),
        None if text.contains("==>") => Err("a switch without two threads and a state"),
        None => Err("a switch without ==>"),
    }
}

/// A thread as `comm=NAME pid=NUMBER`, in these words.
fn in_fields<'a>(text: &'a str, [comm, pid]: [&str; 2]) -> Option<Thread<'a>> {
    let (name, rest) = text.trim().strip_prefix(comm)?.rsplit_once(pid)?;
    Some((name, rest.split_whitespace().next()?.parse().ok()?))
}

/// A thread as `NAME:NUMBER [PRIORITY]`.
fn by_colon(text: &str) -> Option<Thread<'_>> {
    let (named, priority) = text.trim().rsplit_once('[')?;
    priority.split_once(']')?.0.parse::<i64>().ok()?;
    let (name, id) = named.trim_end().rsplit_once(':')?;
    Some((name, id.parse().ok()?))
}
