//! Frame of the live view: the data that a run shows of itself while it goes, and its encoding.
//!
//! ```text
//!    0  8  "HALTLIVE"            then for each pCPU   u32 number
//!    8  4  version of all this   then for each guest  name, lock, workload: u8 length, text
//!   12  4  bytes of the frame                         u8 flags, u32 locks, u32 vCPUs
//!   16  8  FNV-1a of the rest        for each vCPU    u8 state, u8 doing, u32 lock
//!   24  8  frames before this one                     u64 since, sections, exits, kicks, sleeps
//!   32  8  runs begun
//!   40  8  when, by the clock of the run
//!   48  4  process
//!   52  4  u8 phase, u8 flags, u16 guests
//!   56  4  pCPUs
//! ```
//!
//! Numbers are little-endian. The file may come from anybody, and is read while it is written: [`LiveFrame::decode`] believes no
//! number before it has looked.

use crate::guest::activity::Activity;
use crate::observe::whereabouts::Where;

/// How a frame begins.
const MAGIC: &[u8; 8] = b"HALTLIVE";
/// Version of the layout.
const VERSION: u32 = 1;
/// Offset of the first byte that the checksum covers.
const COVERED_FROM: usize = 24;
/// The longest frame: 1024 guests of one vCPU each with long names, and more.
pub(super) const MOST_BYTES: usize = 4 << 20;
/// A time that is not known.
const UNKNOWN: u64 = u64::MAX;

const VIRTUAL_TIME: u8 = 1;
const HOST_SCHEDULES: u8 = 2;
const PARAVIRTUAL: u8 = 1;
const KICKS_SEEN: u8 = 2;

/// A moment of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveFrame {
    /// Frames before this one.
    pub sequence: u64,
    /// Runs that this process has begun, this one included: figures of two of them have nothing to do with each other.
    pub run: u64,
    /// The process.
    pub process: u32,
    /// How far the run is.
    pub phase: LivePhase,
    /// When this was, by the clock of the run, in nanoseconds.
    pub at_ns: u64,
    /// The machine is simulated: pCPUs are no CPUs of this host, and time is virtual.
    pub virtual_time: bool,
    /// The host's scheduler decides who runs.
    pub host_schedules: bool,
    /// The pCPUs.
    pub cpus: Vec<u32>,
    /// The guests.
    pub guests: Vec<LiveGuest>,
}

/// A guest of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveGuest {
    /// Its name.
    pub name: String,
    /// Its lock.
    pub lock: String,
    /// In the paravirtual form.
    pub pv: bool,
    /// Its workload.
    pub workload: String,
    /// How many locks it spreads its sections over.
    pub locks: u32,
    /// Kicks and sleeps are exits, which the VMM sees; else they are the kernel's business.
    pub kicks_seen: bool,
    /// Its vCPUs.
    pub vcpus: Vec<LiveVcpu>,
}

/// A vCPU of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveVcpu {
    /// The vCPU's whereabouts.
    pub at: Where,
    /// Since when, by the clock of the run, where that is known.
    pub since_ns: Option<u64>,
    /// The vCPU's own statement of its activity.
    pub doing: Activity,
    /// The lock that it says this of.
    pub lock: u32,
    /// Sections that it says it has entered.
    pub sections: u64,
    /// Exits to the VMM.
    pub exits: u64,
    /// Exits that were kicks.
    pub kicks: u64,
    /// Exits that asked for sleep.
    pub sleeps: u64,
}

/// Defines an enum whose variants have codes from 0 on.
macro_rules! codes {
    ($(#[$meta:meta])* $name:ident { $($(#[$of:meta])* $variant:ident),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum $name { $($(#[$of])* $variant),+ }

        impl $name {
            /// All of them, in the order of their codes.
            pub const ALL: &[Self] = &[$(Self::$variant),+];
        }
    };
}

codes! {
    /// How far a run is.
    LivePhase {
        /// No run is under way.
        #[default]
        Between,
        /// vCPUs start.
        Starts,
        /// The guest runs, but nothing counts yet.
        WarmsUp,
        /// The measuring window is open.
        Window,
        /// It is closed.
        Closed,
        /// The process is done.
        Ended,
    }
}

/// The code of a place. Codes are part of the layout.
fn code_of(at: Where) -> u8 {
    match at {
        Where::NotStarted => 0,
        Where::Running => 1,
        Where::Runnable | Where::Blocked => 2,
        Where::Ready => 3,
        Where::Preempted(_) | Where::KeptOut(_) => 4,
        Where::Asleep => 5,
        Where::Left => 6,
    }
}

/// The place with this code, of a vCPU that is `doing` something.
fn place_of(code: u8, doing: Activity) -> Option<Where> {
    Some(match code {
        0 => Where::NotStarted,
        1 => Where::Running,
        2 => Where::Runnable,
        3 => Where::Ready,
        4 => Where::Preempted(doing),
        5 => Where::Asleep,
        6 => Where::Left,
        _ => return None,
    })
}

/// Activities in the order of their codes.
const ACTIVITIES: [Activity; 4] = [Activity::Other, Activity::Holder, Activity::Head, Activity::Waiter];

fn code_of_activity(doing: Activity) -> u8 {
    match doing {
        Activity::Other => 0,
        Activity::Holder => 1,
        Activity::Head => 2,
        Activity::Waiter => 3,
    }
}

/// Why something is no frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoFrame {
    /// It is half of one and half of the next, or damaged: another look says which.
    Torn,
    /// It never was one; the rest of a sentence about the file.
    Foreign(String),
}

impl LiveFrame {
    /// As it is written down.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut to = Vec::with_capacity(256);
        to.extend_from_slice(MAGIC);
        to.extend_from_slice(&VERSION.to_le_bytes());
        to.extend_from_slice(&[0; 12]); // length and checksum: below
        [self.sequence, self.run, self.at_ns].iter().for_each(|word| to.extend(word.to_le_bytes()));
        to.extend(self.process.to_le_bytes());
        let flags = flag(self.virtual_time, VIRTUAL_TIME) | flag(self.host_schedules, HOST_SCHEDULES);
        to.extend([self.phase as u8, flags]);
        to.extend((self.guests.len() as u16).to_le_bytes());
        to.extend((self.cpus.len() as u32).to_le_bytes());
        self.cpus.iter().for_each(|cpu| to.extend(cpu.to_le_bytes()));
        self.guests.iter().for_each(|guest| guest.encode(&mut to));
        let bytes = to.len() as u32;
        to[12..16].copy_from_slice(&bytes.to_le_bytes());
        let sum = checksum(&to[COVERED_FROM..]);
        to[16..24].copy_from_slice(&sum.to_le_bytes());
        to
    }

    /// Decodes the frame at the beginning of `bytes`.
    ///
    /// # Errors
    /// Why that is no frame.
    pub fn decode(bytes: &[u8]) -> Result<Self, NoFrame> {
        let foreign = |text: &str| NoFrame::Foreign(text.into());
        let mut from = Reader(bytes);
        if from.take(8).ok_or_else(|| foreign("is too short to be the live view of a run"))? != MAGIC {
            return Err(foreign("is not the live view of a run"));
        }
        let version = from.u32().ok_or(NoFrame::Torn)?;
        if version != VERSION {
            return Err(NoFrame::Foreign(format!(
                "is a live view of version {version}, where this haltkick reads version {VERSION}: use the haltkick that runs"
            )));
        }
        Self::decode_rest(bytes, &mut from).ok_or(NoFrame::Torn)
    }

    /// Behind the version. `None`: it does not fit together.
    fn decode_rest(bytes: &[u8], from: &mut Reader<'_>) -> Option<Self> {
        let length = from.u32()? as usize;
        let sum = from.u64()?;
        if checksum(bytes.get(COVERED_FROM..length)?) != sum {
            return None;
        }
        // The checksum is right, so a program wrote the rest as a frame; its contents may still be made up.
        let mut from = Reader(&bytes[COVERED_FROM..length]);
        let (sequence, run, at_ns, process) = (from.u64()?, from.u64()?, from.u64()?, from.u32()?);
        let phase = *LivePhase::ALL.get(usize::from(from.u8()?))?;
        let flags = from.u8()?;
        let (guests, cpus) = (from.u16()?, from.u32()?);
        let frame = Self {
            sequence,
            run,
            process,
            phase,
            at_ns,
            virtual_time: flags & VIRTUAL_TIME != 0,
            host_schedules: flags & HOST_SCHEDULES != 0,
            // Each ends the collection when there is nothing left, long before a number that is made up is reached.
            cpus: (0..cpus).map(|_| from.u32()).collect::<Option<_>>()?,
            guests: (0..guests).map(|_| LiveGuest::decode(&mut from)).collect::<Option<_>>()?,
        };
        from.0.is_empty().then_some(frame)
    }
}

impl LiveGuest {
    fn encode(&self, to: &mut Vec<u8>) {
        for text in [&self.name, &self.lock, &self.workload] {
            let text = &text[..text.floor_char_boundary(usize::from(u8::MAX))];
            to.push(text.len() as u8);
            to.extend_from_slice(text.as_bytes());
        }
        to.push(flag(self.pv, PARAVIRTUAL) | flag(self.kicks_seen, KICKS_SEEN));
        to.extend(self.locks.to_le_bytes());
        to.extend((self.vcpus.len() as u32).to_le_bytes());
        for vcpu in &self.vcpus {
            to.extend([code_of(vcpu.at), code_of_activity(vcpu.doing)]);
            to.extend(vcpu.lock.to_le_bytes());
            let since_ns = vcpu.since_ns.unwrap_or(UNKNOWN);
            let words = [since_ns, vcpu.sections, vcpu.exits, vcpu.kicks, vcpu.sleeps];
            words.iter().for_each(|word| to.extend(word.to_le_bytes()));
        }
    }

    fn decode(from: &mut Reader<'_>) -> Option<Self> {
        let (name, lock, workload) = (from.text()?, from.text()?, from.text()?);
        let flags = from.u8()?;
        let (locks, vcpus) = (from.u32()?, from.u32()?);
        let vcpus = (0..vcpus).map(|_| LiveVcpu::decode(from)).collect::<Option<_>>()?;
        let (pv, kicks_seen) = (flags & PARAVIRTUAL != 0, flags & KICKS_SEEN != 0);
        Some(Self { name, lock, pv, workload, locks, kicks_seen, vcpus })
    }
}

impl LiveVcpu {
    fn decode(from: &mut Reader<'_>) -> Option<Self> {
        let place = from.u8()?;
        let doing = *ACTIVITIES.get(usize::from(from.u8()?))?;
        Some(Self {
            at: place_of(place, doing)?,
            doing,
            lock: from.u32()?,
            since_ns: Some(from.u64()?).filter(|since_ns| *since_ns != UNKNOWN),
            sections: from.u64()?,
            exits: from.u64()?,
            kicks: from.u64()?,
            sleeps: from.u64()?,
        })
    }
}

/// The bytes that are still to be read. Each read returns `None` when too few are left.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Option<String> {
        let bytes = usize::from(self.u8()?);
        String::from_utf8(self.take(bytes)?.to_vec()).ok()
    }
}

const fn flag(is_set: bool, flag: u8) -> u8 {
    if is_set { flag } else { 0 }
}

/// FNV-1a.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame() -> LiveFrame {
        let vcpu = |number: u64| LiveVcpu {
            at: place_of(number as u8 % 7, ACTIVITIES[number as usize % 4]).expect("seven places have codes"),
            since_ns: (!number.is_multiple_of(3)).then_some(number * 1000),
            doing: ACTIVITIES[number as usize % 4],
            lock: number as u32 % 2,
            sections: number << 40,
            exits: 7 * number,
            kicks: 3 * number,
            sleeps: number,
        };
        let guest = |name: &str| LiveGuest {
            name: name.into(),
            lock: "qspinlock".into(),
            pv: true,
            workload: "critical-section".into(),
            locks: 2,
            kicks_seen: name == "b",
            vcpus: (0..9).map(vcpu).collect(),
        };
        LiveFrame {
            sequence: 5,
            run: 2,
            process: 4321,
            phase: LivePhase::Window,
            at_ns: 77,
            virtual_time: false,
            host_schedules: true,
            cpus: vec![0, 3, 5],
            guests: vec![guest("a"), guest("b")],
        }
    }

    #[test]
    fn what_is_written_is_what_is_read_whatever_lay_there_before() {
        let mut bytes = frame().encode();
        assert_eq!(LiveFrame::decode(&bytes), Ok(frame()));
        bytes.extend([0xaa; 100]);
        assert_eq!(LiveFrame::decode(&bytes), Ok(frame()), "a longer frame was there before");
        let empty = LiveFrame::default();
        assert_eq!(LiveFrame::decode(&empty.encode()), Ok(empty));
    }

    #[test]
    fn half_a_frame_and_one_with_a_wrong_bit_are_no_frames() {
        let bytes = frame().encode();
        for length in 0..bytes.len() {
            assert!(LiveFrame::decode(&bytes[..length]).is_err(), "{length} of {} bytes", bytes.len());
        }
        for at in 0..bytes.len() {
            let mut wrong = bytes.clone();
            wrong[at] ^= 1 << (at % 8);
            assert!(LiveFrame::decode(&wrong).is_err(), "byte {at}");
        }
    }

    #[test]
    fn made_up_numbers_with_a_right_sum_are_refused_without_allocation() {
        let bytes = frame().encode();
        let with = |at: usize, number: u32| {
            let mut made_up = bytes.clone();
            made_up[at..at + 4].copy_from_slice(&number.to_le_bytes());
            let sum = checksum(&made_up[COVERED_FROM..]);
            made_up[16..24].copy_from_slice(&sum.to_le_bytes());
            LiveFrame::decode(&made_up)
        };
        assert_eq!(with(56, u32::MAX), Err(NoFrame::Torn), "pCPUs");
        assert_eq!(with(52, 0xffff_0000), Err(NoFrame::Torn), "guests");
        assert_eq!(with(52, 0x0002_0209), Err(NoFrame::Torn), "a phase that there is not");
        assert_eq!(with(56, 4), Err(NoFrame::Torn), "what follows is read at another place");
    }

    #[test]
    fn a_file_of_another_version_or_kind_says_which() {
        let mut bytes = frame().encode();
        bytes[8] = 9;
        let Err(NoFrame::Foreign(why)) = LiveFrame::decode(&bytes) else { panic!("it was read") };
        assert!(why.contains("version 9") && why.contains("version 1"), "{why}");
        assert!(matches!(LiveFrame::decode(b"{\"schema\": \"haltkick.run\"}"), Err(NoFrame::Foreign(_))));
        assert!(matches!(LiveFrame::decode(b""), Err(NoFrame::Foreign(_))));
    }

    #[test]
    fn long_names_are_cut_where_a_letter_ends() {
        let mut frame = frame();
        frame.guests[0].name = "ü".repeat(200);
        let read = LiveFrame::decode(&frame.encode()).expect("a frame");
        assert_eq!(read.guests[0].name, "ü".repeat(127));
        assert_eq!(read.guests[1], frame.guests[1]);
    }
}
