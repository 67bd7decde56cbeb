//! A lock's word, decoded: what the guest says of its layout, applied to what lies there.

use haltkick_hypercalls::{
    WORD_FUTEX, WORD_MCS, WORD_MUTEX, WORD_OWNER_YIELD, WORD_PV_TICKET, WORD_QSPINLOCK, WORD_QSPINLOCK_WHOLE,
    WORD_TAS, WORD_TICKET, WORD_UNFAIR_TICKET,
};
use serde::Serialize;

/// A lock's word.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Word {
    /// The lock's address.
    pub address: u64,
    /// Its first bytes.
    pub value: u64,
    /// Meaning of the bytes, in words.
    pub meaning: String,
}

/// Decodes the word of the lock at `address`, and says whether no vCPU stands in the lock as far as the word tells. `bytes` are its first
/// eight; `format` is the guest's, and may be anything.
pub(super) fn decode(address: u64, bytes: [u8; 8], format: u32) -> Option<(Word, bool)> {
    let [low, high] = halves(bytes);
    let (meaning, is_at_rest) = match format {
        WORD_TAS => (if low != 0 { "held" } else { "free" }.to_owned(), low == 0),
        WORD_TICKET => (tickets(low, high, 1), low == high),
        WORD_PV_TICKET => {
            let sleepers = if high & 1 != 0 { "; somebody may sleep" } else { "" };
            (tickets(low, high & !1, 2) + sleepers, low == high & !1)
        }
        WORD_QSPINLOCK => (qspinlock(low, low >> 18, low >> 16 & 3), low == 0),
        WORD_QSPINLOCK_WHOLE => (qspinlock(low, low >> 11, low >> 9 & 3), low == 0),
        WORD_MCS => match (low / 8).checked_sub(1) {
            Some(vcpu) => (format!("held; last in the queue: vCPU {vcpu}, node {}", low % 8), false),
            None if low == 0 => ("free".into(), true),
            None => (format!("{low}, which no lock writes"), false),
        },
        WORD_OWNER_YIELD => (owner_yield(low), low & 1 == 0 && low >> 17 == 0),
        WORD_UNFAIR_TICKET => (unfair_ticket(low), low >> 16 == 0),
        WORD_MUTEX => (mutex(low), low >> 3 == 0),
        WORD_FUTEX => match low {
            0 => ("free".into(), true),
            1 => ("held; no vCPU sleeps".into(), false),
            2 => ("held; a vCPU may sleep".into(), false),
            other => (format!("{other}, which no lock writes"), false),
        },
        _ => return None,
    };
    let is_wide = matches!(format, WORD_TICKET | WORD_PV_TICKET);
    let value = if is_wide { u64::from_le_bytes(bytes) } else { u64::from(low) };
    Some((Word { address, value, meaning }, is_at_rest))
}

/// Whether the head of the queue has forbidden to steal the lock.
pub(super) fn forbids_stealing(bytes: [u8; 8], format: u32) -> bool {
    let [low, _] = halves(bytes);
    match format {
        WORD_QSPINLOCK | WORD_QSPINLOCK_WHOLE => low & 0x100 != 0,
        WORD_OWNER_YIELD => low & 1 << 16 != 0,
        _ => false,
    }
}

pub(super) fn halves(bytes: [u8; 8]) -> [u32; 2] {
    [0, 4].map(|at| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]))
}

fn tickets(next: u32, served: u32, step: u32) -> String {
    match next.wrapping_sub(served) / step {
        0 => format!("free; ticket {served} is next"),
        drawn => format!("held by ticket {served}; {} more drawn", drawn - 1),
    }
}

fn unfair_ticket(word: u32) -> String {
    match word >> 16 {
        0 => "free".into(),
        1 => "held; no vCPU has tried since".into(),
        drawn => format!("held; {} have tried since", drawn - 1),
    }
}

fn mutex(word: u32) -> String {
    let owner = match (word >> 3).checked_sub(1) {
        None => "free".into(),
        Some(cpu) if word & 1 << 2 != 0 => format!("kept for vCPU {cpu}, which does not know it yet"),
        Some(cpu) => format!("held by vCPU {cpu}"),
    };
    let handoff = if word & 1 << 1 != 0 { "; the next unlock names the first sleeper" } else { "" };
    let waiters = if word & 1 != 0 { "; a vCPU sleeps" } else { "; no vCPU sleeps" };
    format!("{owner}{handoff}{waiters}")
}

fn last_in_queue(cpu_plus_one: u32, node: u32) -> String {
    match cpu_plus_one.checked_sub(1) {
        Some(cpu) => format!("last in the queue: vCPU {cpu}, node {node}"),
        None => "no queue".into(),
    }
}

fn qspinlock(word: u32, cpu_plus_one: u32, node: u32) -> String {
    let locked = match word & 0xff {
        0 => "free".to_owned(),
        1 => "held".into(),
        3 => "held and slow: unlock must look for a sleeper".into(),
        other => format!("locked byte {other}, which no lock writes"),
    };
    let pending = if word & 0x100 != 0 { "; pending" } else { "" };
    format!("{locked}{pending}; {}", last_in_queue(cpu_plus_one, node))
}

fn owner_yield(word: u32) -> String {
    let locked = match word & 1 {
        0 => "free".to_owned(),
        _ => format!("held by vCPU {}", word >> 1 & 0x3fff),
    };
    let sleepy = if word & 1 << 15 != 0 { "; the owner was seen preempted" } else { "" };
    let must_queue = if word & 1 << 16 != 0 { "; no stealing" } else { "" };
    format!("{locked}{sleepy}{must_queue}; {}", last_in_queue(word >> 17, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_every_family_are_told_in_words() {
        for (format, value, meaning) in [
            (WORD_TAS, 1_u64, "held"),
            (WORD_TICKET, 5 << 32 | 8, "held by ticket 5; 2 more drawn"),
            (WORD_TICKET, 5 << 32 | 5, "free; ticket 5 is next"),
            (WORD_PV_TICKET, 11 << 32 | 14, "held by ticket 10; 1 more drawn; somebody may sleep"),
            (WORD_QSPINLOCK, 0, "free; no queue"),
            (
                WORD_QSPINLOCK,
                8 << 18 | 1 << 16 | 3,
                "held and slow: unlock must look for a sleeper; last in the queue: vCPU 7, node 1",
            ),
            (WORD_QSPINLOCK_WHOLE, 8 << 11 | 1 << 8 | 1, "held; pending; last in the queue: vCPU 7, node 0"),
            (WORD_MCS, 8 * (3 + 1) + 2, "held; last in the queue: vCPU 3, node 2"),
            (WORD_MCS, 7, "7, which no lock writes"),
            (
                WORD_OWNER_YIELD,
                4 << 17 | 1 << 15 | 9 << 1 | 1,
                "held by vCPU 9; the owner was seen preempted; last in the queue: vCPU 3, node 0",
            ),
            (WORD_UNFAIR_TICKET, 3 << 16, "held; 2 have tried since"),
            (WORD_MUTEX, 5 << 3 | 1, "held by vCPU 4; a vCPU sleeps"),
            (WORD_MUTEX, 5 << 3 | 1 << 2, "kept for vCPU 4, which does not know it yet; no vCPU sleeps"),
            (WORD_FUTEX, 2, "held; a vCPU may sleep"),
        ] {
            let (word, _) = decode(0x1000, value.to_le_bytes(), format).expect("a known format");
            assert_eq!((word.meaning.as_str(), word.value), (meaning, value));
        }
        assert_eq!(decode(0x1000, [0; 8], u32::MAX), None);
    }
}
