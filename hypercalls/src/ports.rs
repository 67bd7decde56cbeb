//! Hypercalls: a 32-bit `out` to one of these ports, argument in EAX. Nothing is returned.

/// First port, and the granularity of the block: ports lie within the I/O bitmap that ring 3 is given.
pub const PORT_BASE: u16 = 0x500;
/// Sleep until the next kick. A kick that came since the last wait is latched and ends it at once.
pub const PORT_WAIT: u16 = 0x500;
/// Wake vCPU EAX; latched if it does not sleep.
pub const PORT_KICK: u16 = 0x504;
/// Give up the rest of the slice, to vCPU EAX or to anyone ([`YIELD_TO_ANY`]).
pub const PORT_YIELD: u16 = 0x508;
/// This vCPU has nothing more to do. EAX is zero.
pub const PORT_EXIT: u16 = 0x50c;
/// The guest gives up. EAX is zero; the reason is in [`VcpuArea::report`](crate::VcpuArea::report).
pub const PORT_PANIC: u16 = 0x510;
/// An exception without a handler of its own. EAX is zero; the frame is in [`VcpuArea::report`](crate::VcpuArea::report).
pub const PORT_EXCEPTION: u16 = 0x514;
/// One byte of text for the console, in AL.
pub const PORT_CONSOLE: u16 = 0x518;
/// The boot vCPU is done with what only it does; the others may start. EAX is zero.
pub const PORT_BOOTED: u16 = 0x51c;
/// Every vCPU whose [`Invalidation::requested`](crate::Invalidation::requested) exceeds its
/// [`HostLine::invalidated`](crate::HostLine::invalidated) is to drop the translations that its CPU has cached before it
/// executes its next instruction: it is given an NMI. EAX is zero. The VMM acknowledges by
/// [`HostLine::invalidated`](crate::HostLine::invalidated), for vCPUs that are off their pCPU before this returns.
pub const PORT_INVALIDATE: u16 = 0x520;
/// The vCPU passes point EAX of a lock's slow path, and may be kept there.
pub const PORT_POINT: u16 = 0x524;
/// The fixed amount of work is done ([`Shape::work_sections`](crate::Shape::work_sections)). EAX is zero.
pub const PORT_WORK_DONE: u16 = 0x528;
/// The vCPU has started, and is about to enter its workload; it goes on when the others have had the time to start, too. EAX is zero.
/// Rung with [`BootFlags::EACH_SAYS_STARTED`](crate::BootFlags::EACH_SAYS_STARTED) only.
pub const PORT_STARTED: u16 = 0x52c;
/// Last port (inclusive) that ring 3 may use.
pub const PORT_LAST: u16 = 0x53f;

/// Argument of [`PORT_YIELD`]: to the next vCPU.
pub const YIELD_TO_ANY: u32 = u32::MAX;
