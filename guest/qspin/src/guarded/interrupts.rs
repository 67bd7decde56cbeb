//! Interrupts that are off for a section.

use crate::contract::Interrupts;

/// Interrupts that are off, until it is dropped.
pub(super) struct Off<'p, P: Interrupts> {
    platform: &'p P,
    saved: Option<P::Saved>,
}

impl<'p, P: Interrupts> Off<'p, P> {
    #[inline(always)]
    pub(super) fn new(platform: &'p P) -> Self {
        Self { platform, saved: Some(platform.turn_off()) }
    }
}

impl<P: Interrupts> Drop for Off<'_, P> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(saved) = self.saved.take() {
            self.platform.restore(saved);
        }
    }
}
