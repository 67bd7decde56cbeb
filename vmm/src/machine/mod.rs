//! A guest's machine, ready to start: on KVM, with what its kernel side is set to, or in this process. How a vCPU begins, how it
//! is run and why it came back.

pub(crate) mod boot;
pub(crate) mod build;
pub(crate) mod exits;
pub(crate) mod in_kernel;
pub(crate) mod invalidate;
pub(crate) mod ring_probe;
pub(crate) mod vcpu;
pub(crate) mod vm;
pub(crate) mod wanted;
