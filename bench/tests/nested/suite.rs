//! Which tests go into which machine, and what is made of how it ended. Machines die and hang: what they told before counts,
//! the test that one died in is to blame for it, and all others go into the next.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::group::Group;
use crate::machine::{End, Event, Kind};

/// A test that failed, or during which a machine died, has this many machines in all.
const RUNS: usize = 3;

/// Runs tests in a machine, as [`Launcher::run`](crate::machine::Launcher::run) does; by a script in this program's own tests.
pub(crate) type Machine<'a> = &'a (dyn Fn(&Group, &[String], &mut dyn FnMut(Event)) -> End + Sync);

/// A test, and the reports of all machines about it.
#[derive(Debug, Default)]
pub(crate) struct Test {
    /// Its place among the groups.
    group: usize,
    pub(crate) name: String,
    pub(crate) passed: bool,
    /// Skipped there, which is no pass.
    pub(crate) ignored: bool,
    /// Output of each failure.
    pub(crate) failures: Vec<String>,
    /// Why machines died during it.
    pub(crate) deaths: Vec<String>,
    /// How long it took in the last machine.
    pub(crate) took: Duration,
}

impl Test {
    /// Whether no further machine could change the outcome, or none is worth it.
    fn is_settled(&self) -> bool {
        self.passed || self.ignored || self.failures.len().max(self.deaths.len()) >= RUNS
    }
}

#[derive(Default)]
pub(crate) struct Results {
    pub(crate) tests: Vec<Test>,
    pub(crate) machines: usize,
    /// Why some of them died.
    pub(crate) deaths: Vec<String>,
    /// Why tests that are not settled went into no further machine.
    pub(crate) given_up: Option<String>,
    /// Tests that no machine of this round has yet.
    waiting: VecDeque<Vec<usize>>,
}

struct Suite<'a> {
    groups: &'a [Group],
    machine: Machine<'a>,
    machines_die_at_most: usize,
    until: Instant,
    say: &'a (dyn Fn(String) + Sync),
    state: Mutex<Results>,
}

/// Runs these tests, named with the place of their group, on this number of CPUs: first the groups whose machines take all of them. What
/// a round of machines leaves open goes into the next. No machine starts after `time`.
pub(crate) fn run(
    groups: &[Group],
    tests: Vec<(usize, String)>,
    machine: Machine<'_>,
    machines_die_at_most: usize,
    cpus: usize,
    time: Duration,
    say: &(dyn Fn(String) + Sync),
) -> Results {
    let tests = tests.into_iter().map(|(group, name)| Test { group, name, ..Test::default() }).collect();
    let state = Mutex::new(Results { tests, ..Results::default() });
    let suite = Suite { groups, machine, machines_die_at_most, until: Instant::now() + time, say, state };
    for threads in [2, 1] {
        let workers = (cpus / threads).max(1);
        while suite.plan(threads, workers) {
            std::thread::scope(|scope| (0..workers).for_each(|_| _ = scope.spawn(|| suite.work())));
        }
    }
    suite.state.into_inner().unwrap_or_else(PoisonError::into_inner)
}

impl Suite<'_> {
    /// Takes batches until there are none left.
    fn work(&self) {
        while let Some((batch, number)) = self.next() {
            let state = self.state();
            let group = &self.groups[state.tests[batch[0]].group];
            let tests: Vec<_> = batch.iter().map(|&test| state.tests[test].name.clone()).collect();
            drop(state);
            (self.say)(format!("machine {number}: {} tests of {}", tests.len(), group.name));
            let mut running = None;
            let end = (self.machine)(group, &tests, &mut |event: Event| {
                if event.kind == Kind::Started {
                    let test = tests.iter().position(|test| *test == event.name).map(|at| batch[at]);
                    running = test.map(|test| (test, Instant::now()));
                } else if let Some((test, since)) = running.take() {
                    self.ended(number, test, event, since.elapsed());
                }
            });
            self.conclude(group, &batch, running.map(|(test, _)| test), number, end);
        }
    }

    /// The next batch, and the number of its machine.
    fn next(&self) -> Option<(Vec<usize>, usize)> {
        let mut state = self.state();
        if Instant::now() >= self.until {
            state.given_up.get_or_insert_with(|| "the time for the suite was up".into());
        }
        let batch = if state.given_up.is_none() { state.waiting.pop_front() } else { None };
        state.machines += usize::from(batch.is_some());
        batch.map(|batch| (batch, state.machines))
    }

    /// Divides among machines what is not settled of the groups with `threads` threads a machine, if there is any: large batches at first,
    /// since each costs the start of a machine; small ones at the end, so that all end together. Then each test that a machine died in
    /// alone, so that it takes no other along.
    fn plan(&self, threads: usize, workers: usize) -> bool {
        let mut state = self.state();
        state.waiting.clear();
        for (place, group) in self.groups.iter().enumerate().filter(|(_, group)| group.threads == threads) {
            let is_due = |test: &usize| state.tests[*test].group == place && !state.tests[*test].is_settled();
            let due = (0..state.tests.len()).filter(is_due);
            let (mut others, killers): (Vec<_>, Vec<_>) =
                due.partition(|&it| state.tests[it].deaths.is_empty());
            let (least, most) = group.batch;
            while !others.is_empty() {
                let size = others.len().div_ceil(2 * workers).clamp(least, most).min(others.len());
                state.waiting.push_back(others.drain(..size).collect());
            }
            state.waiting.extend(killers.into_iter().map(|killer| vec![killer]));
        }
        state.given_up.is_none() && !state.waiting.is_empty()
    }

    fn ended(&self, number: usize, test: usize, Event { kind, stdout, .. }: Event, took: Duration) {
        let mut state = self.state();
        let test = &mut state.tests[test];
        (test.passed, test.ignored, test.took) = (kind == Kind::Ok, kind == Kind::Ignored, took);
        let word = match &kind {
            Kind::Failed => format!("FAILED\n{stdout}"),
            word => format!("{word:?}").to_lowercase(),
        };
        if kind == Kind::Failed {
            test.failures.push(stdout);
        }
        (self.say)(format!("machine {number}: {} ... ({:.1} s) {word}", test.name, took.as_secs_f64()));
    }

    /// Puts down how a machine ended, during the test that was `running`.
    fn conclude(&self, group: &Group, batch: &[usize], running: Option<usize>, number: usize, end: End) {
        let mut state = self.state();
        let died = match (end, running) {
            (End::Program(code), Some(test)) => {
                let why = format!("the test program ended with code {code} during it");
                state.tests[test].failures.push(why);
                None
            }
            (End::Program(_), None) if batch.iter().all(|&test| state.has_told_of(test)) => None,
            (End::Program(code), None) => {
                Some(format!("the test program ended with code {code} before its tests"))
            }
            (End::Died(why), _) => Some(why),
            (End::Stopped, _) => {
                state.given_up.get_or_insert_with(|| "the suite was stopped".into());
                None
            }
        };
        if let Some(why) = died {
            (self.say)(format!("machine {number}: {why}"));
            let during = running.map_or("no test", |test| &state.tests[test].name);
            let death = format!("{}, during {during}: {why}", group.name);
            state.deaths.push(death);
            if let Some(test) = running {
                state.tests[test].deaths.push(why);
            }
            if state.deaths.len() > self.machines_die_at_most {
                state.given_up.get_or_insert_with(|| "more machines have died than are borne".into());
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, Results> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Results {
    fn has_told_of(&self, test: usize) -> bool {
        let test = &self.tests[test];
        test.is_settled() || !test.failures.is_empty()
    }
}
