//! Hypercalls: what a guest says, and what is done about it. By numbers and layouts of Xen's public interface, as `haltkick_platform::xen` has
//! them (`hypercall.rs` there says what they were checked against, and what is from memory). What is not here is -ENOSYS.

use super::errno::Errno;
use super::events::{Events, MOST_POLLED};
use super::run_states::{RunStates, State};
use super::view::View;

const MEMORY_OP: u64 = 12;
const VCPU_OP: u64 = 24;
const SCHED_OP: u64 = 29;
const EVENT_CHANNEL_OP: u64 = 32;

const ADD_TO_PHYSMAP: u64 = 7;
const REGISTER_RUN_STATE: u64 = 5;
const YIELD: u64 = 0;
const POLL: u64 = 3;
const CLOSE: u64 = 3;
const SEND: u64 = 4;
const BIND_IPI: u64 = 7;

/// A call of one vCPU: its number, and the arguments that are looked at.
pub(super) struct Call<'a> {
    pub(super) number: u64,
    pub(super) arguments: [u64; 3],
    /// Who calls.
    pub(super) vcpu: u32,
    /// What its addresses lead to.
    pub(super) view: View<'a>,
}

/// What calls are about.
#[derive(Debug)]
pub(super) struct Served {
    pub(super) events: Events,
    pub(super) run_states: RunStates,
    /// How many vCPUs there are.
    pub(super) vcpus: u32,
}

impl Served {
    /// What the guest gets: 0, or a negative number.
    pub(super) fn answer(&self, call: &Call<'_>) -> i32 {
        match self.serve(call) {
            Ok(()) => 0,
            Err(errno) => errno as i32,
        }
    }

    fn serve(&self, call: &Call<'_>) -> Result<(), Errno> {
        let [first, second, third] = call.arguments;
        match (call.number, first) {
            (MEMORY_OP, ADD_TO_PHYSMAP) => self.add_to_physmap(&call.view, second),
            (SCHED_OP, YIELD) => {
                std::thread::yield_now();
                Ok(())
            }
            (SCHED_OP, POLL) => self.poll(call, second),
            (EVENT_CHANNEL_OP, BIND_IPI) => self.bind_ipi(&call.view, second),
            (EVENT_CHANNEL_OP, CLOSE) => self.events.close(word(&call.view, second)?),
            (EVENT_CHANNEL_OP, SEND) => self.events.send(word(&call.view, second)?),
            (VCPU_OP, REGISTER_RUN_STATE) => self.register_run_state(&call.view, second, third),
            _ => Err(Errno::NotServed),
        }
    }

    /// `struct xen_add_to_physmap`: domain and size of 16 bits, space of 32, index and frame of 64.
    fn add_to_physmap(&self, view: &View<'_>, at: u64) -> Result<(), Errno> {
        const SELF: u16 = 0x7ff0;
        const SHARED_INFO: u32 = 0;
        let told: [u8; 24] = view.read(at)?;
        let domain = u16::from_le_bytes(part(&told, 0));
        let (space, index) = (u32::from_le_bytes(part(&told, 4)), u64::from_le_bytes(part(&told, 8)));
        if (domain, space, index) != (SELF, SHARED_INFO, 0) {
            return Err(Errno::Invalid);
        }
        self.events.share(u64::from_le_bytes(part(&told, 16)))
    }

    /// `struct sched_poll`: the address of ports, how many of 32 bits, a deadline of 64 bits.
    fn poll(&self, call: &Call<'_>, at: u64) -> Result<(), Errno> {
        let told: [u8; 24] = call.view.read(at)?;
        let (ports, count) = (u64::from_le_bytes(part(&told, 0)), u32::from_le_bytes(part(&told, 8)));
        // A deadline is in the guest's time, of which it is told nothing here.
        if u64::from_le_bytes(part(&told, 16)) != 0 {
            return Err(Errno::NotServed);
        }
        if count > MOST_POLLED {
            return Err(Errno::Invalid);
        }
        let mut bytes = vec![0; count as usize * 4];
        call.view.read_to(ports, &mut bytes)?;
        let ports = bytes.chunks_exact(4).map(|port| u32::from_le_bytes(part(port, 0))).collect();
        self.events.poll(ports, |asleep| {
            let state = if asleep { State::Blocked } else { State::Running };
            self.run_states.set(call.view.memory, call.vcpu, state);
        })
    }

    /// `struct evtchn_bind_ipi`: a vCPU, and room for a port.
    fn bind_ipi(&self, view: &View<'_>, at: u64) -> Result<(), Errno> {
        if word(view, at)? >= self.vcpus {
            return Err(Errno::NotThere);
        }
        let answer = at.checked_add(4).ok_or(Errno::Fault)?;
        // Before there is a port that nobody would know.
        view.word(answer)?;
        view.write_word(answer, self.events.open()?)
    }

    /// The address of an address, which is 0 for none.
    fn register_run_state(&self, view: &View<'_>, vcpu: u64, at: u64) -> Result<(), Errno> {
        let address = u64::from_le_bytes(view.read(at)?);
        let place = if address == 0 { None } else { Some(view.word(address)?) };
        if !self.run_states.register(vcpu, place) {
            return Err(Errno::NotThere);
        }
        if place.is_some() { view.write_word(address, State::Running as u32) } else { Ok(()) }
    }
}

/// `struct evtchn_send` and `struct evtchn_close`: a port. `struct evtchn_bind_ipi` begins with a word, too.
fn word(view: &View<'_>, at: u64) -> Result<u32, Errno> {
    view.read(at).map(u32::from_le_bytes)
}

/// `N` of `bytes`, from `at` on, which are there.
fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("as many bytes")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use vm_memory::{Bytes as _, GuestAddress, GuestMemoryMmap};

    use super::*;
    use crate::engines::linux::xen::view::testing::{Reversed, memory};
    use crate::host::signal::{self, Thread};

    const NOT_THERE: i32 = -2;
    const FAULT: i32 = -14;
    const INVALID: i32 = -22;
    const NOT_SERVED: i32 = -38;

    /// Where the guest has its arguments, and where that is; the page behind leads to the first one.
    const AT: u64 = 0x1100;
    const PHYSICAL: u64 = 0x1100;

    struct Guest {
        memory: GuestMemoryMmap,
        served: Served,
    }

    impl Guest {
        fn new() -> Self {
            let memory = memory();
            let served =
                Served { events: Events::new(memory.clone()), run_states: RunStates::new(4), vcpus: 4 };
            Self { memory, served }
        }

        /// With its shared page, in the first page.
        fn with_page() -> Self {
            let guest = Self::new();
            assert_eq!(guest.told(&[0x7ff0, 0, 0, 0, 0, 0], 12, |at| [7, at, 0]), 0);
            guest
        }

        fn call(&self, number: u64, arguments: [u64; 3]) -> i32 {
            let view = View { memory: &self.memory, tables: &Reversed };
            self.served.answer(&Call { number, arguments, vcpu: 1, view })
        }

        /// A call that is told these words, at the address that its arguments are made with.
        fn told(&self, words: &[u32], number: u64, arguments: impl Fn(u64) -> [u64; 3]) -> i32 {
            for (index, word) in words.iter().enumerate() {
                self.memory.write_obj(*word, GuestAddress(PHYSICAL + 4 * index as u64)).unwrap();
            }
            self.call(number, arguments(AT))
        }

        fn bind(&self, vcpu: u32) -> (i32, u32) {
            let result = self.told(&[vcpu, 0], 32, |at| [7, at, 0]);
            (result, self.memory.read_obj(GuestAddress(PHYSICAL + 4)).unwrap())
        }
    }

    /// Waits for something that takes no time.
    fn until(come: impl Fn() -> bool) {
        let began = Instant::now();
        while !come() {
            assert!(began.elapsed() < Duration::from_secs(60), "it does not come");
            std::thread::yield_now();
        }
    }

    #[test]
    fn the_shared_page_goes_where_the_guest_has_memory_and_nothing_else_does() {
        let guest = Guest::new();
        // Domain and size, space, index, frame.
        for (words, expected) in [
            ([0x7ff0, 0, 0, 0, 2, 0], INVALID),
            ([0x7ff0, 0, 0, 0, 0, 0x10_0000], INVALID),
            ([0x7ff0, 0, 0, 0, !0, !0], INVALID),
            ([0x7ff0, 1, 0, 0, 0, 0], INVALID),
            ([0x7ff0, 0, 1, 0, 0, 0], INVALID),
            ([0x7ff1, 0, 0, 0, 0, 0], INVALID),
            ([0x7ff0, 0, 0, 0, 0, 0], 0),
            ([0x0001_7ff0, 0, 0, 0, 0, 0], 0),
        ] {
            assert_eq!(guest.told(&words, 12, |at| [7, at, 0]), expected, "{words:x?}");
        }
        assert_eq!(guest.call(12, [7, 0x3000, 0]), FAULT);
    }

    #[test]
    fn a_channel_is_bound_to_a_vcpu_that_there_is() {
        let guest = Guest::new();
        assert_eq!(guest.bind(0), (INVALID, 0), "there is no shared page yet");
        let guest = Guest::with_page();
        assert_eq!([guest.bind(0), guest.bind(3)], [(0, 1), (0, 2)]);
        assert_eq!([guest.bind(4), guest.bind(!0)], [(NOT_THERE, 0); 2]);
        // No room for the answer, or not in one page, or nothing at all; what is told, where it is there, is vCPU 0.
        guest.memory.write_obj(0_u64, GuestAddress(PHYSICAL)).unwrap();
        for (at, expected) in [(0x2ffc, FAULT), (0x1102, INVALID), (0x3000, FAULT), (u64::MAX - 3, FAULT)] {
            assert_eq!(guest.call(32, [7, at, 0]), expected, "{at:#x}");
        }
        assert_eq!(guest.bind(0), (0, 3), "those that failed have taken no port");
    }

    #[test]
    fn events_are_sent_to_open_ports_and_polled_there() {
        // A poll that slept, which none here should, would not sleep for ever.
        signal::block_all();
        Thread::current().kick();
        let guest = Guest::with_page();
        let (_, port) = guest.bind(1);
        let send = |port| guest.told(&[port], 32, |at| [4, at, 0]);
        assert_eq!((send(port), send(port + 1), send(!0)), (0, INVALID, INVALID));
        // The ports are where the call is told of them: eight words on.
        let poll = |count, deadline| {
            let words = [AT as u32 + 32, 0, count, 0, deadline, 0, 0, 0, port];
            guest.told(&words, 29, |at| [3, at, 0])
        };
        assert_eq!((poll(1, 0), poll(1, 1), poll(0, 0), poll(129, 0)), (0, NOT_SERVED, INVALID, INVALID));
        assert_eq!(poll(!0, 0), INVALID, "and no memory is taken for so many");
        assert_eq!(guest.told(&[0x3000, 0, 1, 0, 0, 0], 29, |at| [3, at, 0]), FAULT);
        let close = || guest.told(&[port], 32, |at| [3, at, 0]);
        assert_eq!((close(), close(), send(port)), (0, INVALID, INVALID));
        assert_eq!(guest.served.events.sends(), 1);
    }

    #[test]
    fn a_run_state_says_that_its_vcpu_sleeps() {
        let guest = Arc::new(Guest::with_page());
        let (_, port) = guest.bind(1);
        let register = |vcpu, address: u32| guest.told(&[address, 0], 24, |at| [5, vcpu, at]);
        let state = || guest.memory.read_obj::<u32>(GuestAddress(0x1000)).unwrap();
        guest.memory.write_obj(7_u32, GuestAddress(0x1000)).unwrap();
        assert_eq!(
            (register(4, 0x1000), register(1 << 32, 0x1000), register(1, 0x1002)),
            (NOT_THERE, NOT_THERE, INVALID)
        );
        assert_eq!((register(1, 0x3000), guest.call(24, [5, 1, 0x3000]), state()), (FAULT, FAULT, 7));
        assert_eq!((register(1, 0x1000), state()), (0, 0));
        // No scope, which would wait for who sleeps for ever.
        let sleeper = Arc::clone(&guest);
        let polls = std::thread::spawn(move || {
            signal::block_all();
            let words = [AT as u32 + 32, 0, 1, 0, 0, 0, 0, 0, port];
            assert_eq!(sleeper.told(&words, 29, |at| [3, at, 0]), 0);
        });
        until(|| state() == 2);
        guest.served.events.send(port).unwrap();
        until(|| polls.is_finished());
        polls.join().unwrap();
        assert_eq!((state(), guest.served.events.sleeps()), (0, 1));
        assert_eq!(register(1, 0), 0);
    }

    #[test]
    fn what_is_not_served_says_so_and_a_yield_is() {
        let guest = Guest::with_page();
        assert_eq!(guest.call(29, [0; 3]), 0);
        for (number, first) in [(0, 0), (12, 0), (24, 0), (29, 1), (29, 2), (32, 0), (33, 0), (!0, !0)] {
            assert_eq!(guest.call(number, [first, AT, AT]), NOT_SERVED, "{number} {first}");
        }
    }

    /// Calls that somebody made up who knows their numbers, and some of whose addresses are good.
    #[test]
    fn any_call_is_answered() {
        let answers = std::thread::spawn(|| {
            signal::block_all();
            let guest = Guest::with_page();
            let mut random = 0x9e37_79b9_7f4a_7c15_u64;
            let mut next = || {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random
            };
            let mut answers = std::collections::BTreeMap::new();
            for _ in 0..100_000 {
                let place = GuestAddress((next() % 0x2000) & !7);
                let value = if next() % 2 == 0 { next() % 64 } else { next() >> (next() % 64) };
                guest.memory.write_obj(value, place).unwrap();
                let number = [12, 24, 29, 32, next() % 64][(next() % 5) as usize];
                let mut argument = || if next() % 4 == 0 { next() } else { 0x1000 + next() % 0x1400 };
                let (second, third) = (argument(), argument());
                // A poll that sleeps ends by this one.
                Thread::current().kick();
                *answers.entry(guest.call(number, [next() % 9, second, third])).or_insert(0) += 1;
            }
            answers
        });
        let answers = answers.join().unwrap();
        for expected in [0, NOT_THERE, FAULT, INVALID, NOT_SERVED] {
            assert!(answers.contains_key(&expected), "never {expected}: {answers:?}");
        }
    }
}
