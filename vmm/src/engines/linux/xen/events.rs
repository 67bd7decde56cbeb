//! Event channels of two levels, as far as they are polled: a bit of the shared page for each, and who sleeps until it is set.
//!
//! Nothing is delivered to a vCPU that does not poll: no interrupt comes of an event, masked or not.
//!
//! A poll looks and makes itself known under one mutex, and a send, which has set the bit before, looks for polls under the same one. So either
//! the poll sees the bit, or the send finds the poll and kicks its thread; and a kick that comes before the thread sleeps stays pending (see
//! `signal`). A poll sleeps by waiting for kicks, so that those of the schedulers, which want the thread for themselves, end it, too.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use vm_memory::{Bytes as _, GuestAddress, GuestMemoryBackend as _, GuestMemoryMmap, VolatileMemory as _};

use super::errno::Errno;
use super::page::PAGE_BYTES;
use crate::host::locks::lock;
use crate::host::signal::{self, Thread};

/// As many ports as the page has bits. The first one is nobody's.
const PORTS: u32 = 64 * u64::BITS;
/// Most ports of one poll, which is Xen's limit, too. From memory.
pub(super) const MOST_POLLED: u32 = 128;
/// Where in the page the pending bits begin (see `haltkick_platform::xen::SharedInfo` for what this was checked against).
const PENDING: u64 = 2048;
/// A poll sleeps for so long at a time. It does not look in between: nothing but a kick ends it.
const HOUR_NS: u64 = 3_600_000_000_000;

/// The event channels of a guest.
#[derive(Debug)]
pub(super) struct Events {
    memory: GuestMemoryMmap,
    state: Mutex<State>,
    sleeps: AtomicU64,
    sends: AtomicU64,
}

#[derive(Debug)]
struct State {
    /// The shared page, once the guest has said where it wants it.
    page: Option<GuestAddress>,
    /// Which ports are open.
    open: Vec<bool>,
    /// Who sleeps in a poll: at most one for each vCPU.
    polls: Vec<Poll>,
}

#[derive(Debug)]
struct Poll {
    thread: Thread,
    ports: Vec<u32>,
    /// An event has come for it.
    is_over: bool,
}

impl State {
    /// Does something to the word in which `port` has its pending bit, and that bit.
    fn pending<R>(
        &self,
        memory: &GuestMemoryMmap,
        port: u32,
        to: impl FnOnce(&AtomicU64, u64) -> R,
    ) -> Result<R, Errno> {
        let page = self.page.ok_or(Errno::Invalid)?;
        let at = GuestAddress(page.0 + PENDING + u64::from(port / u64::BITS) * 8);
        let slice = memory.get_slice(at, 8).map_err(|_| Errno::Fault)?;
        let word = slice.get_atomic_ref::<AtomicU64>(0).map_err(|_| Errno::Fault)?;
        Ok(to(word, 1 << (port % u64::BITS)))
    }

    /// Whether one of `ports`, all of which the page has, is pending.
    fn any_pending(&self, memory: &GuestMemoryMmap, ports: &[u32]) -> Result<bool, Errno> {
        ports.iter().try_fold(false, |any, port| {
            // SeqCst, as all that is done to these bits: it is a slow path.
            Ok(any | self.pending(memory, *port, |word, bit| word.load(Ordering::SeqCst) & bit != 0)?)
        })
    }

    fn clear(&self, memory: &GuestMemoryMmap, port: u32) -> Result<(), Errno> {
        self.pending(memory, port, |word, bit| _ = word.fetch_and(!bit, Ordering::SeqCst))
    }

    fn check_open(&self, port: u32) -> Result<(), Errno> {
        let is_open = self.open.get(port as usize).is_some_and(|open| *open);
        if is_open { Ok(()) } else { Err(Errno::Invalid) }
    }
}

impl Events {
    /// Those of a guest with this memory: none, and no page for them.
    pub(super) fn new(memory: GuestMemoryMmap) -> Self {
        let state = State { page: None, open: vec![false; PORTS as usize], polls: Vec::new() };
        Self { memory, state: Mutex::new(state), sleeps: AtomicU64::new(0), sends: AtomicU64::new(0) }
    }

    /// How many polls have slept until an event came.
    pub(super) fn sleeps(&self) -> u64 {
        // Relaxed: a count.
        self.sleeps.load(Ordering::Relaxed)
    }

    /// How many events were sent.
    pub(super) fn sends(&self) -> u64 {
        // Relaxed: a count.
        self.sends.load(Ordering::Relaxed)
    }

    /// The shared page is in the guest's page of this number from here on, empty or with what it held elsewhere.
    pub(super) fn share(&self, frame: u64) -> Result<(), Errno> {
        let place = frame.checked_mul(PAGE_BYTES as u64).map(GuestAddress).ok_or(Errno::Invalid)?;
        let mut state = lock(&self.state);
        let mut contents = vec![0; PAGE_BYTES];
        if let Some(page) = state.page {
            self.memory.read_slice(&mut contents, page).map_err(|_| Errno::Fault)?;
        }
        self.memory.get_slice(place, PAGE_BYTES).map_err(|_| Errno::Invalid)?;
        self.memory.write_slice(&contents, place).map_err(|_| Errno::Invalid)?;
        state.page = Some(place);
        Ok(())
    }

    /// A new port, at which nothing is pending.
    pub(super) fn open(&self) -> Result<u32, Errno> {
        let mut state = lock(&self.state);
        let free = state.open.iter().skip(1).position(|open| !open).ok_or(Errno::NoSpace)? + 1;
        state.clear(&self.memory, free as u32)?;
        state.open[free] = true;
        Ok(free as u32)
    }

    /// `port` is nobody's from here on.
    pub(super) fn close(&self, port: u32) -> Result<(), Errno> {
        let mut state = lock(&self.state);
        state.check_open(port)?;
        state.clear(&self.memory, port)?;
        state.open[port as usize] = false;
        Ok(())
    }

    /// An event is pending at `port`, and whoever polls it sleeps no longer.
    pub(super) fn send(&self, port: u32) -> Result<(), Errno> {
        let mut state = lock(&self.state);
        state.check_open(port)?;
        state.pending(&self.memory, port, |word, bit| _ = word.fetch_or(bit, Ordering::SeqCst))?;
        for poll in state.polls.iter_mut().filter(|poll| poll.ports.contains(&port)) {
            poll.is_over = true;
            poll.thread.kick();
        }
        // Relaxed: a count.
        self.sends.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Sleeps until an event is pending at one of `ports`, or the calling thread is kicked by anybody else. `asleep` hears of the sleep
    /// before it begins, if it does, and of its end.
    pub(super) fn poll(&self, ports: Vec<u32>, asleep: impl Fn(bool)) -> Result<(), Errno> {
        if ports.is_empty() || ports.iter().any(|port| *port >= PORTS) {
            return Err(Errno::Invalid);
        }
        let thread = Thread::current();
        {
            let mut state = lock(&self.state);
            if state.any_pending(&self.memory, &ports)? {
                return Ok(());
            }
            state.polls.push(Poll { thread, ports, is_over: false });
        }
        asleep(true);
        while !signal::await_kick(HOUR_NS) {}
        let mut state = lock(&self.state);
        let own = state.polls.iter().position(|poll| poll.thread.id() == thread.id());
        let is_over = own.is_some_and(|own| state.polls.swap_remove(own).is_over);
        drop(state);
        asleep(false);
        // Kicks are one if they come together: whoever else has kicked wants the thread to look at its flags, as it does when this ends
        // its next KVM_RUN at once.
        thread.kick();
        // Relaxed: a count.
        self.sleeps.fetch_add(u64::from(is_over), Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::{Arc, mpsc};
    use std::time::{Duration, Instant};

    use super::*;

    const PAGE: u64 = 0x1000;

    fn without_page() -> Arc<Events> {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), 0x4000)]).unwrap();
        Arc::new(Events::new(memory))
    }

    fn events() -> Arc<Events> {
        let events = without_page();
        events.share(PAGE >> 12).unwrap();
        events
    }

    fn word(events: &Events, page: u64, index: u64) -> u64 {
        events.memory.read_obj(GuestAddress(page + PENDING + index * 8)).unwrap()
    }

    /// The guest takes the event, if there is one.
    fn take(events: &Events, port: u32) -> bool {
        lock(&events.state)
            .pending(&events.memory, port, |word, bit| word.fetch_and(!bit, Ordering::SeqCst) & bit != 0)
            .unwrap()
    }

    /// Polls once in a thread that can be kicked; whether it slept, or what was wrong.
    fn poll(events: &Arc<Events>, ports: &[u32]) -> Result<bool, Errno> {
        let (done, is_done) = mpsc::channel();
        let (events, ports) = (Arc::clone(events), ports.to_vec());
        std::thread::spawn(move || {
            signal::block_all();
            let slept = AtomicBool::new(false);
            let polled = events.poll(ports, |asleep| _ = slept.fetch_or(asleep, Ordering::SeqCst));
            _ = done.send(polled.map(|()| slept.into_inner()));
        });
        is_done.recv_timeout(Duration::from_secs(60)).expect("it does not sleep for ever")
    }

    #[test]
    fn a_send_sets_the_bit_of_its_port_and_no_other() {
        let events = events();
        let ports: Vec<u32> = (1..=65).map(|_| events.open().unwrap()).collect();
        assert_eq!(ports, (1..=65).collect::<Vec<_>>(), "none is 0, and none is given twice");
        for port in [1, 65] {
            events.send(port).unwrap();
        }
        assert_eq!([0, 1, 2].map(|index| word(&events, PAGE, index)), [1 << 1, 1 << 1, 0]);
        assert_eq!(events.sends(), 2);
    }

    #[test]
    fn a_port_that_is_not_open_takes_no_events_and_cannot_be_closed() {
        let events = events();
        let port = events.open().unwrap();
        for wrong in [0, port + 1, PORTS - 1, PORTS, u32::MAX] {
            let results = (events.send(wrong), events.close(wrong));
            assert_eq!(results, (Err(Errno::Invalid), Err(Errno::Invalid)), "{wrong}");
        }
        events.send(port).unwrap();
        events.close(port).unwrap();
        assert_eq!(word(&events, PAGE, 0), 0, "who gets the port next gets no old event");
        assert_eq!((events.send(port), events.close(port)), (Err(Errno::Invalid), Err(Errno::Invalid)));
        assert_eq!((events.open(), events.sends()), (Ok(port), 1));
    }

    #[test]
    fn there_are_as_many_channels_as_the_page_has_bits_but_one() {
        let events = events();
        assert!((1..PORTS).all(|port| events.open() == Ok(port)));
        assert_eq!(events.open(), Err(Errno::NoSpace));
        events.send(PORTS - 1).unwrap();
        assert_eq!(word(&events, PAGE, 63), 1 << 63);
        assert_eq!(word(&events, PAGE, 64), 0, "the masks begin here");
    }

    #[test]
    fn without_a_shared_page_there_are_no_channels() {
        let events = without_page();
        assert_eq!((events.open(), poll(&events, &[1])), (Err(Errno::Invalid), Err(Errno::Invalid)));
        for nowhere in [4, 1 << 40, u64::MAX >> 12, u64::MAX] {
            assert_eq!(events.share(nowhere), Err(Errno::Invalid), "{nowhere:#x}");
        }
        assert_eq!(events.open(), Err(Errno::Invalid));
    }

    #[test]
    fn a_shared_page_that_moves_takes_what_is_pending_along() {
        let events = events();
        let port = events.open().unwrap();
        events.send(port).unwrap();
        events.share(2).unwrap();
        assert_eq!(word(&events, 0x2000, 0), 1 << port);
        events.share(2).unwrap();
        assert_eq!(word(&events, 0x2000, 0), 1 << port, "and to where it is already");
        assert_eq!(events.share(9), Err(Errno::Invalid));
        take(&events, port);
        assert_eq!(word(&events, 0x2000, 0), 0, "it has stayed where it was");
    }

    #[test]
    fn a_poll_of_what_is_pending_does_not_sleep() {
        let events = events();
        let [one, other] = [events.open().unwrap(), events.open().unwrap()];
        events.send(other).unwrap();
        assert_eq!(poll(&events, &[one, other]), Ok(false));
        assert_eq!((events.sleeps(), word(&events, PAGE, 0)), (0, 1 << other), "and leaves it pending");
        for wrong in [&[][..], &[PORTS], &[one, u32::MAX]] {
            assert_eq!(poll(&events, wrong), Err(Errno::Invalid));
        }
    }

    #[test]
    fn a_kick_that_is_no_event_ends_a_poll_and_is_passed_on() {
        let events = events();
        let port = events.open().unwrap();
        let other = events.open().unwrap();
        let passed_on = std::thread::spawn(move || {
            signal::block_all();
            Thread::current().kick();
            // Nor is one at another port an event for it.
            events.poll(vec![port], |asleep| assert!(!asleep || events.send(other).is_ok())).unwrap();
            (signal::await_kick(0), events.sleeps(), lock(&events.state).polls.len())
        });
        assert_eq!(passed_on.join().unwrap(), (true, 0, 0));
    }

    /// Two threads that wake each other in turn, so often that a send comes at each step of a poll.
    #[test]
    fn no_event_is_lost_between_the_look_and_the_sleep() {
        const ROUNDS: u32 = 20_000;
        let events = events();
        let ports = [events.open().unwrap(), events.open().unwrap()];
        let partner = |own: usize| {
            let events = Arc::clone(&events);
            move || {
                signal::block_all();
                for round in 0..ROUNDS {
                    if (own, round) != (1, 0) {
                        events.send(ports[1 - own]).unwrap();
                    }
                    while !take(&events, ports[own]) {
                        // The kick that every sleep leaves for the next KVM_RUN.
                        signal::take_kick();
                        events.poll(vec![ports[own]], |_| {}).unwrap();
                    }
                }
            }
        };
        // No scope, which would wait for who sleeps for ever.
        let threads = [std::thread::spawn(partner(0)), std::thread::spawn(partner(1))];
        let began = Instant::now();
        // The first one's last event is still to come.
        while !threads[1].is_finished() {
            assert!(began.elapsed() < Duration::from_secs(120), "somebody sleeps for ever");
            std::thread::sleep(Duration::from_millis(1));
        }
        events.send(ports[0]).unwrap();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(events.sends(), u64::from(2 * ROUNDS));
        assert!(events.sleeps() > 0);
    }
}
