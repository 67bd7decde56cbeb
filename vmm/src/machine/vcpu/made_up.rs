//! A vCPU without a guest: what it comes back with is made up.

use std::io;

use crate::machine::exits::Exit;

/// See the module.
pub(crate) struct MadeUpVcpu {
    /// Index in the guest.
    pub(super) id: u32,
    comes_back: Box<dyn FnMut() -> io::Result<Exit> + Send>,
}

impl MadeUpVcpu {
    /// Number `id`, which comes back as `comes_back` says.
    pub(crate) fn new(id: u32, comes_back: impl FnMut() -> io::Result<Exit> + Send + 'static) -> Self {
        Self { id, comes_back: Box::new(comes_back) }
    }

    /// One KVM_RUN.
    pub(super) fn run(&mut self) -> io::Result<Exit> {
        (self.comes_back)()
    }
}
