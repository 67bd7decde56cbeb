//! Xen, as far as paravirtual spin locks need one: its CPUID, the hypercall page, event channels that are polled, and run states. By Xen's guest
//! guide ("Hypercall ABI") and its public interface; the files say what is from memory.
//!
//! Which instruction of a guest calls Xen is Xen's own business, for the guest calls a page that Xen fills. So KVM need know nothing of it:
//! here the page reads from a port, and what a vCPU gets there is the answer.

mod calls;
mod cpuid;
mod errno;
mod events;
mod page;
mod run_states;
mod view;

use kvm_ioctls::VcpuFd;
use vm_memory::GuestMemoryMmap;

use self::calls::{Call, Served};
use self::events::Events;
use self::run_states::RunStates;
use self::view::View;

pub(super) use self::cpuid::{number, offered};

/// The host of one guest.
#[derive(Debug)]
pub(crate) struct Xen {
    memory: GuestMemoryMmap,
    served: Served,
}

impl Xen {
    /// That of a guest with this memory, and so many vCPUs.
    pub(super) fn new(memory: GuestMemoryMmap, vcpus: u32) -> Self {
        let events = Events::new(memory.clone());
        Self { memory, served: Served { events, run_states: RunStates::new(vcpus), vcpus } }
    }

    /// How many polls have slept until an event came.
    pub(super) fn sleeps(&self) -> u64 {
        self.served.events.sleeps()
    }

    /// How many events were sent.
    pub(super) fn sends(&self) -> u64 {
        self.served.events.sends()
    }

    /// A vCPU has written `value` to `register`. Whether that is the one for the hypercall page, and a page that can be filled.
    pub(super) fn writes(&self, register: u32, value: u64) -> bool {
        register == page::REGISTER && page::fill(&self.memory, value)
    }

    /// Vcpu number `id`, of the calling thread, reads four bytes from `port`: the answer, if that is where calls come from. May sleep.
    pub(super) fn call(&self, port: u16, id: u32, vcpu: &VcpuFd) -> Option<u32> {
        if port != page::PORT {
            return None;
        }
        let registers = vcpu.get_regs().ok()?;
        let call = Call {
            number: registers.rax,
            arguments: [registers.rdi, registers.rsi, registers.rdx],
            vcpu: id,
            view: View { memory: &self.memory, tables: vcpu },
        };
        Some(self.served.answer(&call).cast_unsigned())
    }
}
