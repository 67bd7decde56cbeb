//! Which tests go into which machine, and what is made of how it ended. Machines die and hang: what they told before counts,
//! the test that one died in is to blame for it, and all others go into the next.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::group::Group;
use crate::history::{History, Outcome, Verdict};
use crate::transcript::Event;

/// After this many machines in a row that told nothing of their tests, the group gets no other.
const STILLBORN: usize = 4;

/// Starter of machines; a script of events in this program's own tests.
pub(crate) trait Machines: Sync {
    /// Runs these tests of a group in a new machine, tells what happens there as it happens, and returns how it ended.
    fn run(&self, group: &Group, tests: &[String], tell: &mut dyn FnMut(Event)) -> End;
}

/// How a machine ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The test program ended with this code, and the machine after it.
    Program(i32),
    /// It died, hung, or never came up.
    Died(String),
    /// The suite was to end.
    Stopped,
}

/// How many machines at once, and until when new ones start.
pub(crate) struct Bounds {
    pub(crate) cpus: usize,
    pub(crate) time: Duration,
}

/// A test, and what all machines told of it.
pub(crate) struct Tested {
    pub(crate) group: &'static str,
    pub(crate) test: String,
    pub(crate) outcome: Outcome,
    pub(crate) took: Duration,
}

pub(crate) struct Results {
    pub(crate) tests: Vec<Tested>,
    /// How many machines there were, and why some of them died.
    pub(crate) machines: usize,
    pub(crate) deaths: Vec<String>,
}

/// Runs these tests of these groups: first the groups whose machines take all CPUs.
pub(crate) fn run(
    groups: &[(Group, Vec<String>)],
    machines: &dyn Machines,
    bounds: &Bounds,
    say: &(dyn Fn(String) + Sync),
) -> Results {
    let queues = groups.iter().map(|(group, tests)| Queue::new(group, tests)).collect();
    let state = SuiteProgress { queues, running: 0, machines: 0, deaths: vec![] };
    let suite = Suite {
        state: Mutex::new(state),
        returned: Condvar::new(),
        machines,
        until: Instant::now() + bounds.time,
        say,
    };
    for threads in [2, 1] {
        let workers = (bounds.cpus / threads).max(1);
        std::thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| suite.work(threads, workers));
            }
        });
    }
    suite.state.into_inner().unwrap_or_else(PoisonError::into_inner).results()
}

struct Suite<'a> {
    state: Mutex<SuiteProgress<'a>>,
    /// A machine has ended: its tests may have to be run again.
    returned: Condvar,
    machines: &'a dyn Machines,
    until: Instant,
    say: &'a (dyn Fn(String) + Sync),
}

struct SuiteProgress<'a> {
    queues: Vec<Queue<'a>>,
    /// Machines that run now.
    running: usize,
    machines: usize,
    deaths: Vec<String>,
}

/// The tests of a group that a machine is to run still, and what is known of all.
struct Queue<'a> {
    group: &'a Group,
    order: &'a [String],
    fresh: VecDeque<String>,
    again: Vec<String>,
    histories: BTreeMap<String, History>,
    /// Machines in a row that told nothing of their tests.
    stillborn: usize,
    /// Why tests that are not settled go into no further machine.
    given_up: Option<String>,
}

impl<'a> Suite<'a> {
    /// Takes batches of the groups with `threads` threads a machine until there are none left.
    fn work(&self, threads: usize, workers: usize) {
        while let Some((index, group, tests, number)) = self.next(threads, workers) {
            let name = group.name;
            (self.say)(format!("machine {number}: {} tests of {name}", tests.len()));
            let mut life = Life::new(number, self.say);
            let end = self.machines.run(group, &tests, &mut |event| life.add(event));
            if let End::Died(why) = &end {
                (self.say)(format!("machine {number}: {why}"));
            }
            let mut state = self.state();
            state.running -= 1;
            state.take_back(index, tests, life, end);
            self.returned.notify_all();
        }
    }

    /// Returns the next batch for a machine, once there is one or none can come back.
    fn next(&self, threads: usize, workers: usize) -> Option<(usize, &'a Group, Vec<String>, usize)> {
        let mut state = self.state();
        loop {
            if Instant::now() >= self.until {
                state.give_up("the time for the suite was up");
            }
            let queues = state.queues.iter_mut().enumerate();
            let mut queues = queues.filter(|(_, queue)| queue.group.threads == threads);
            let batch = queues.find_map(|(index, queue)| Some((index, queue.group, queue.batch(workers)?)));
            if let Some((index, group, tests)) = batch {
                state.running += 1;
                state.machines += 1;
                return Some((index, group, tests, state.machines));
            }
            if state.running == 0 {
                return None;
            }
            state = self.returned.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn state(&self) -> MutexGuard<'_, SuiteProgress<'a>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SuiteProgress<'_> {
    fn give_up(&mut self, why: &str) {
        for queue in &mut self.queues {
            queue.give_up(why);
        }
    }

    /// Puts down what a machine told, and what of its tests is to be run again.
    fn take_back(&mut self, index: usize, tests: Vec<String>, life: Life<'_>, end: End) {
        let queue = &mut self.queues[index];
        let why = match &end {
            End::Program(code) => format!("the test program ended with code {code}"),
            End::Died(why) => why.clone(),
            End::Stopped => "the suite was stopped".into(),
        };
        let asked = |test: &String| tests.contains(test);
        let verdicts = life.verdicts.into_iter().filter(|(test, ..)| asked(test));
        let mut progress = false;
        for (test, verdict, took) in verdicts {
            queue.history(&test).add(verdict, took);
            progress = true;
        }
        if let Some(test) = life.running.as_ref().filter(|test| asked(test)) {
            match &end {
                End::Program(_) => {
                    queue.history(test).add(Verdict::Failed(format!("{why} during it")), Duration::ZERO);
                }
                End::Died(_) => queue.history(test).add_death(&why),
                End::Stopped => {}
            }
            progress = true;
        }
        if matches!(end, End::Died(_)) {
            let during = life.running.as_deref().unwrap_or("no test");
            self.deaths.push(format!("{}, during {during}: {why}", queue.group.name));
        }
        for test in tests {
            match queue.history(&test) {
                history if history.is_settled() => {}
                history if history.is_new() => queue.fresh.push_back(test),
                _ => queue.again.push(test),
            }
        }
        queue.stillborn = if progress { 0 } else { queue.stillborn + 1 };
        if queue.stillborn >= STILLBORN {
            queue.give_up(&format!("{STILLBORN} machines in a row told nothing: {why}"));
        }
        if end == End::Stopped {
            self.give_up("the suite was stopped");
        }
    }

    fn results(self) -> Results {
        let tests = self.queues.into_iter().flat_map(Queue::results).collect();
        Results { tests, machines: self.machines, deaths: self.deaths }
    }
}

impl<'a> Queue<'a> {
    fn new(group: &'a Group, tests: &'a [String]) -> Self {
        Self {
            group,
            order: tests,
            fresh: tests.iter().cloned().collect(),
            again: vec![],
            histories: tests.iter().map(|test| (test.clone(), History::default())).collect(),
            stillborn: 0,
            given_up: None,
        }
    }

    /// Large batches at first, since each costs the start of a machine; small ones at the end, so that all end together. Then
    /// what is to be run again: each test that a machine died in alone, so that it takes no other along.
    fn batch(&mut self, workers: usize) -> Option<Vec<String>> {
        if self.given_up.is_some() {
            return None;
        }
        if !self.fresh.is_empty() {
            let (least, most) = self.group.batch;
            let size = self.fresh.len().div_ceil(2 * workers).clamp(least, most).min(self.fresh.len());
            return Some(self.fresh.drain(..size).collect());
        }
        if let Some(at) = self.again.iter().position(|test| self.histories[test].has_killed()) {
            return Some(vec![self.again.swap_remove(at)]);
        }
        (!self.again.is_empty()).then(|| std::mem::take(&mut self.again))
    }

    fn give_up(&mut self, why: &str) {
        self.given_up.get_or_insert_with(|| why.into());
    }

    fn history(&mut self, test: &str) -> &mut History {
        self.histories.entry(test.into()).or_default()
    }

    fn results(self) -> impl Iterator<Item = Tested> {
        let Self { group, order, histories, given_up, .. } = self;
        let why = given_up.unwrap_or_else(|| "no machine told anything of it".into());
        order.iter().map(move |test| {
            let history = &histories[test];
            let outcome = history.outcome(&why);
            Tested { group: group.name, test: test.clone(), outcome, took: history.took }
        })
    }
}

/// Reports of a machine so far.
struct Life<'a> {
    number: usize,
    say: &'a dyn Fn(String),
    running: Option<String>,
    since: Instant,
    verdicts: Vec<(String, Verdict, Duration)>,
    /// Reports of the machine about its CPUs since the last test ended.
    stalls: Vec<String>,
}

impl<'a> Life<'a> {
    fn new(number: usize, say: &'a dyn Fn(String)) -> Self {
        Self { number, say, running: None, since: Instant::now(), verdicts: vec![], stalls: vec![] }
    }

    fn add(&mut self, event: Event) {
        match event {
            Event::Started(test) => {
                self.running = Some(test);
                self.since = Instant::now();
            }
            Event::StoodStill { cpu, ms } => {
                self.stalls.push(format!("\nCPU {cpu} of the machine stood still for {ms} ms"))
            }
            Event::Ended(test, mut verdict) => {
                let took = self.since.elapsed();
                let stalls = std::mem::take(&mut self.stalls).concat();
                if let Verdict::Failed(told) = &mut verdict {
                    told.push_str(&stalls);
                }
                let (word, told) = match &verdict {
                    Verdict::Passed => ("ok", None),
                    Verdict::Ignored => ("ignored", None),
                    Verdict::Failed(told) => ("FAILED", Some(told)),
                };
                let told = told.map(|told| format!("\n{told}")).unwrap_or_default();
                (self.say)(format!(
                    "machine {}: {test} ... {word} ({:.1} s){told}",
                    self.number,
                    took.as_secs_f64()
                ));
                self.running = None;
                self.verdicts.push((test, verdict, took));
            }
        }
    }
}
