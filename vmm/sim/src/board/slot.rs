//! One CPU of the machine: what runs on it, and what it waits for.

use crate::cpu::state::Cpu;
use crate::machine::Smt;

use super::alike::Alike;
use super::slot_state::SlotState;
use super::spin::{Last, Parked};

/// See the module.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) cpu: Option<Box<Cpu>>,
    pub(super) state: SlotState,
    /// The CPU's own time.
    pub(super) at_ps: u64,
    /// When it was last put into its slot, or resumed.
    pub(super) entered_ps: u64,
    /// Its alarm.
    pub(super) alarm_ps: u64,
    /// The alarm has rung, and the CPU could not be stopped.
    pub(super) alarm_rang: bool,
    /// It is due at `alarm_ps`.
    pub(super) alarm_is_due: bool,
    /// Due events with another token are void.
    pub(super) token: u64,
    pub(super) alarm_token: u64,
    /// The first store of its buffer is on its way.
    pub(super) storing: bool,
    /// Lines that stores of its buffer have asked for, if those do not wait for each other.
    pub(super) asked: Vec<u64>,
    /// The other line of the access that waits for one.
    pub(super) other: Option<u64>,
    /// The last PAUSE.
    pub(super) last: Option<Box<Last>>,
    pub(super) parked: Option<Box<Parked>>,
    /// Rounds that it is taken through at once.
    pub(super) tries_ahead: usize,
    /// The last round that others were found to be like.
    pub(super) alike: Option<Box<Alike>>,
    /// Rounds since then that no others were found to be like.
    pub(super) unlike: u32,
}

impl Default for Slot {
    fn default() -> Self {
        Self {
            cpu: None,
            state: SlotState::Still,
            at_ps: 0,
            entered_ps: 0,
            alarm_ps: u64::MAX,
            alarm_rang: false,
            alarm_is_due: false,
            token: 0,
            alarm_token: 0,
            storing: false,
            asked: Vec::new(),
            other: None,
            last: None,
            parked: None,
            tries_ahead: 0,
            alike: None,
            unlike: 0,
        }
    }
}

impl Slot {
    /// How much it takes of what a busy sibling takes from a thread, in thousandths.
    pub(super) fn takes_permille(&self, smt: Smt) -> u64 {
        /// A guess: PAUSE leaves most slots to the other thread.
        const SPINNING: u64 = 100;
        match (self.state, smt) {
            _ if self.cpu.is_none() => 0,
            (SlotState::Still, _) | (SlotState::Parked, Smt::Busy) => 0,
            (SlotState::Parked, Smt::Issue) => SPINNING,
            (SlotState::Due, _) | (SlotState::Line | SlotState::Drain | SlotState::Full, Smt::Busy) => 1000,
            (SlotState::Line | SlotState::Drain | SlotState::Full, Smt::Issue) => 0,
        }
    }
}
