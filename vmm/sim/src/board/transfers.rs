//! Transfers of lines to CPUs, and those that hear of them.

use std::sync::atomic::AtomicBool;

use crate::lines::{Need, Requested};

use super::fabric::Fabric;
use super::{Board, Due, FOR_A_STORE, Happening, Memory};

impl<M: Memory> Board<M> {
    /// Asks for a line for the CPU of a slot.
    pub(super) fn request(&mut self, slot: u32, now_ps: u64, line: u64, need: Need, tag: u64) {
        let Fabric { lines, machine, .. } = &mut self.fabric;
        if let Requested::UnderWay(transfer) = lines.request(machine, now_ps, (slot, line, need), tag) {
            self.enter(transfer.completes_ps, Due::Line { line, request: transfer.request });
        }
    }

    /// The transfer of a line for a request has come to its end.
    pub(super) fn line_comes(
        &mut self,
        (line, request): (u64, u64),
        at_ps: u64,
        until_ps: u64,
        stop: &AtomicBool,
    ) -> Option<Happening> {
        let Fabric { lines, machine, .. } = &mut self.fabric;
        let served = lines.complete(machine, at_ps, (line, request));
        for next in &served.next {
            self.enter(next.completes_ps, Due::Line { line, request: next.request });
        }
        if served.need == Need::Write {
            for watcher in self.fabric.lines.take_watchers(line, served.cpu) {
                self.wake(watcher, line);
            }
        }
        if served.tag == FOR_A_STORE {
            self.store_done(served.cpu, line, at_ps);
            return None;
        }
        let place = &mut self.slots[served.cpu as usize];
        place.at_ps = place.at_ps.max(at_ps);
        let other = place.other.take();
        if let Some(other) = other {
            self.seize_other(served.cpu, other, served.need);
        }
        self.execute(served.cpu, [Some(line), other], until_ps, stop)
    }

    /// Wakes those that are parked on lines which `writer` has just written. Whether there were any.
    pub(super) fn tell_watchers(&mut self, writer: u32) -> bool {
        let mut told = false;
        for (line, at_ps) in std::mem::take(&mut self.fabric.written) {
            for watcher in self.fabric.lines.take_watchers(line, writer) {
                self.wake_at(watcher, line, at_ps);
                told = true;
            }
        }
        told
    }
}
