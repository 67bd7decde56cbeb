//! Guests with a quota, or that come and go: a vCPU gets its turn only if its guest is there and has CPU time left, and takes it.

use crate::host::locks::lock;
use crate::sched::core::{Bell, Core};
use crate::sched::pcpu::Pcpu;
use crate::sched::queue::Task;
use crate::sched::slice::Timer;

impl<'a, B: Bell> Core<'a, B> {
    /// Takes a slice out of the purse of the guest of `task`, which is to run on `pcpu` from `now_ns` on. `None`: there is nothing in it,
    /// or the guest is not there; the vCPU lies aside until then.
    pub(super) fn admits<T: Timer>(
        &self,
        mut task: Box<Task<'a>>,
        pcpu: &mut Pcpu<'a, T>,
        now_ns: u64,
    ) -> Option<Box<Task<'a>>> {
        if let Some(until_ns) = task.guest.absent_until(now_ns) {
            self.lays_aside(task, until_ns);
            return None;
        }
        let Some(purse) = &task.guest.purse else { return Some(task) };
        match purse.take(self.slice_ns, now_ns) {
            Ok(portion) => {
                pcpu.portion = Some(portion);
                task.account.books.settle_quota(task.guest);
                Some(task)
            }
            Err(until_ns) => {
                let at = task.account.whereabouts().at;
                task.account.books.throttle(task.guest, at, now_ns, until_ns);
                self.lays_aside(task, until_ns);
                None
            }
        }
    }

    fn lays_aside(&self, task: Box<Task<'a>>, until_ns: u64) {
        lock(&self.apart).aside.insert((until_ns, task.number()), task);
        // Idle pCPUs sleep at most until then.
        self.bell.ring_all();
    }

    /// The portion of `task` has ended at `now_ns`, and no other vCPU is due: whether its guest is there and has the CPU time for
    /// another one, of its slice or of the next.
    pub(super) fn goes_on<T: Timer>(&self, task: &Task<'a>, pcpu: &mut Pcpu<'a, T>, now_ns: u64) -> bool {
        if task.guest.absent_until(now_ns).is_some() {
            return false;
        }
        let Some(purse) = &task.guest.purse else { return true };
        let slice_ends_ns =
            pcpu.portion.map(|portion| portion.slice_ends_ns).filter(|ends_ns| *ends_ns > now_ns);
        self.spends(task, pcpu, now_ns);
        let left_ns = slice_ends_ns.map_or(self.slice_ns, |ends_ns| ends_ns - now_ns);
        pcpu.portion = purse.take(left_ns, now_ns).ok();
        if let Some(portion) = pcpu.portion.filter(|portion| portion.ns < self.slice_ns) {
            pcpu.slice.extend(now_ns + portion.ns);
        }
        pcpu.portion.is_some()
    }

    /// `task` has run on `pcpu` until `now_ns`: gives back the rest of what it took.
    pub(super) fn spends<T: Timer>(&self, task: &Task<'a>, pcpu: &mut Pcpu<'a, T>, now_ns: u64) {
        if let (Some(purse), Some(portion)) = (&task.guest.purse, pcpu.portion.take()) {
            purse.settle(portion, now_ns);
        }
    }
}
