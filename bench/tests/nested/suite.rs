//! Which tests go into which machine, and what is made of how it ended. Machines die and hang: what they told before counts,
//! the test that one died in is to blame for it, and all others go into the next.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::flakes::Flakes;
use crate::group::Group;
use crate::machine::{End, Event, Verdict};

/// A test that failed, or during which a machine died, has this many machines in all.
const RUNS: usize = 3;

/// Starter of machines; a script of events in this program's own tests.
pub(crate) trait Machines: Sync {
    /// Runs these tests of a group in a new machine, tells what happens there as it happens, and returns how it ended.
    fn run(&self, group: &Group, tests: &[String], tell: &mut dyn FnMut(Event)) -> End;
}

/// A test, and the reports of all machines about it.
#[derive(Debug)]
pub(crate) struct Test {
    /// Its place among the groups.
    group: usize,
    pub(crate) name: String,
    /// Whether a machine has it now.
    is_out: bool,
    pub(crate) passed: bool,
    /// Skipped there, which is no pass.
    pub(crate) ignored: bool,
    /// Output of each failure.
    pub(crate) failures: Vec<String>,
    /// Why machines died during it.
    pub(crate) deaths: Vec<String>,
    /// How long it took where it passed.
    pub(crate) took: Duration,
}

impl Test {
    fn new(group: usize, name: String) -> Self {
        let (failures, deaths, took) = (vec![], vec![], Duration::ZERO);
        Self { group, name, is_out: false, passed: false, ignored: false, failures, deaths, took }
    }

    /// Whether no further machine could change the outcome, or none is worth it.
    fn is_settled(&self) -> bool {
        self.passed || self.ignored || self.failures.len().max(self.deaths.len()) >= RUNS
    }
}

pub(crate) struct Results {
    pub(crate) tests: Vec<Test>,
    pub(crate) machines: usize,
    /// Why some of them died.
    pub(crate) deaths: Vec<String>,
    /// Why tests that are not settled went into no further machine.
    pub(crate) given_up: Option<String>,
    /// Machines that run now.
    running: usize,
}

struct Suite<'a> {
    groups: &'a [Group],
    machines: &'a dyn Machines,
    flakes: &'a Flakes,
    until: Instant,
    say: &'a (dyn Fn(String) + Sync),
    state: Mutex<Results>,
    /// A machine has ended: its tests may have to be run again.
    returned: Condvar,
}

/// Runs these tests, named with the place of their group, on this number of CPUs: first the groups whose machines take all of them. No
/// machine starts after `time`.
pub(crate) fn run(
    groups: &[Group],
    tests: Vec<(usize, String)>,
    machines: &dyn Machines,
    flakes: &Flakes,
    cpus: usize,
    time: Duration,
    say: &(dyn Fn(String) + Sync),
) -> Results {
    let tests = tests.into_iter().map(|(group, name)| Test::new(group, name)).collect();
    let state = Mutex::new(Results { tests, machines: 0, deaths: vec![], given_up: None, running: 0 });
    let until = Instant::now() + time;
    let suite = Suite { groups, machines, flakes, until, say, state, returned: Condvar::new() };
    for threads in [2, 1] {
        let workers = (cpus / threads).max(1);
        std::thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| suite.work(threads, workers));
            }
        });
    }
    suite.state.into_inner().unwrap_or_else(PoisonError::into_inner)
}

impl Suite<'_> {
    /// Takes batches of the groups with `threads` threads a machine until there are none left.
    fn work(&self, threads: usize, workers: usize) {
        while let Some((batch, number)) = self.next(threads, workers) {
            let state = self.state();
            let group = &self.groups[state.tests[batch[0]].group];
            let tests: Vec<_> = batch.iter().map(|&test| state.tests[test].name.clone()).collect();
            drop(state);
            (self.say)(format!("machine {number}: {} tests of {}", tests.len(), group.name));
            let mut running = None;
            let end = self.machines.run(group, &tests, &mut |event| match event {
                Event::Started(name) => {
                    let test = tests.iter().position(|test| *test == name).map(|at| batch[at]);
                    running = test.map(|test| (test, Instant::now()));
                }
                Event::Ended(verdict) => {
                    if let Some((test, since)) = running.take() {
                        self.ended(number, test, verdict, since.elapsed());
                    }
                }
            });
            self.take_back(group, &batch, running.map(|(test, _)| test), number, end);
        }
    }

    /// Returns the next batch for a machine, once there is one or none can come back.
    fn next(&self, threads: usize, workers: usize) -> Option<(Vec<usize>, usize)> {
        let mut state = self.state();
        loop {
            if Instant::now() >= self.until {
                state.given_up.get_or_insert_with(|| "the time for the suite was up".into());
            }
            let places = (0..self.groups.len()).filter(|&group| self.groups[group].threads == threads);
            let batch =
                places.map(|group| self.batch(&state.tests, group, workers)).find(|batch| !batch.is_empty());
            match batch.filter(|_| state.given_up.is_none()) {
                Some(batch) => {
                    batch.iter().for_each(|&test| state.tests[test].is_out = true);
                    state.running += 1;
                    state.machines += 1;
                    return Some((batch, state.machines));
                }
                None if state.running == 0 => return None,
                None => state = self.returned.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Large batches at first, since each costs the start of a machine; small ones at the end, so that all end together. Then
    /// what is to be run again: each test that a machine died in alone, so that it takes no other along.
    fn batch(&self, tests: &[Test], group: usize, workers: usize) -> Vec<usize> {
        let is_due = |test: &Test| test.group == group && !test.is_out && !test.is_settled();
        let due = (0..tests.len()).filter(|&test| is_due(&tests[test]));
        let (mut fresh, mut again, mut killers) = (vec![], vec![], vec![]);
        for test in due {
            match (tests[test].deaths.is_empty(), tests[test].failures.is_empty()) {
                (false, _) => killers.push(test),
                (true, true) => fresh.push(test),
                (true, false) => again.push(test),
            }
        }
        let (least, most) = self.groups[group].batch;
        fresh.truncate(fresh.len().div_ceil(2 * workers).clamp(least, most));
        match (fresh.is_empty(), killers.first()) {
            (false, _) => fresh,
            (true, Some(&killer)) => vec![killer],
            (true, None) => again,
        }
    }

    fn ended(&self, number: usize, test: usize, verdict: Verdict, took: Duration) {
        let mut state = self.state();
        let test = &mut state.tests[test];
        let word = match verdict {
            Verdict::Passed => {
                (test.passed, test.took) = (true, took);
                "ok".into()
            }
            Verdict::Ignored => {
                test.ignored = true;
                "ignored".into()
            }
            Verdict::Failed(told) => {
                test.failures.push(told);
                format!("FAILED\n{}", test.failures.last().map_or("", String::as_str))
            }
        };
        (self.say)(format!("machine {number}: {} ... ({:.1} s) {word}", test.name, took.as_secs_f64()));
    }

    /// Puts down how a machine ended, during the test that was `running`.
    fn take_back(&self, group: &Group, batch: &[usize], running: Option<usize>, number: usize, end: End) {
        let mut state = self.state();
        state.running -= 1;
        batch.iter().for_each(|&test| state.tests[test].is_out = false);
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
            if state.deaths.len() > self.flakes.machines_die_at_most {
                state.given_up.get_or_insert_with(|| "more machines have died than are borne".into());
            }
        }
        self.returned.notify_all();
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
