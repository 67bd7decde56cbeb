//! Watchdog that keeps a test on threads of the host from waiting forever.

use std::{
    env,
    sync::{
        atomic::{AtomicBool, Ordering::*},
        mpsc,
    },
    thread,
    time::Duration,
};

use crate::threads::until;

/// Something that happens once, in one thread, and that others wait for. It stays until the process ends, so that hooks may copy it.
#[derive(Clone, Copy, Debug)]
pub struct Signal(&'static AtomicBool);

impl Signal {
    /// Signals that are not yet given.
    pub fn several<const N: usize>() -> [Self; N] {
        [(); N].map(|()| Self(Box::leak(Box::new(AtomicBool::new(false)))))
    }

    /// It happens.
    pub fn give(&self) {
        self.0.store(true, Release);
    }

    /// Whether it has happened.
    pub fn given(&self) -> bool {
        self.0.load(Acquire)
    }

    /// Waits for it.
    pub fn await_it(&self) {
        until(|| self.given());
    }
}

/// Ends the process, with a report, unless dropped in time.
#[derive(Debug)]
pub(crate) struct Watchdog {
    fed: Option<mpsc::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Watchdog {
    /// Watches the calling test. `report` says how far it is, if it does not end.
    pub(crate) fn new(report: impl FnOnce() -> String + Send + 'static) -> Self {
        let limit = env::var("WATCHDOG_SECONDS").map_or(120, |seconds| seconds.parse().expect("a number"));
        let limit = Duration::from_secs(if cfg!(miri) { 3600 } else { limit });
        let (fed, starved) = mpsc::channel();
        let test = thread::current().name().unwrap_or("test").to_owned();
        let thread = thread::spawn(move || {
            if starved.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!("{test}: no progress for {limit:?}\n{}", report());
                std::process::abort();
            }
        });
        Self { fed: Some(fed), thread: Some(thread) }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.fed.take());
        _ = self.thread.take().unwrap().join();
    }
}
