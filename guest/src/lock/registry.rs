//! The image's tables: which locks and workloads there are, by name, and the code of each.
//!
//! [`lock!`] and [`workload!`] stand next to the code and put an entry into each table, so that there is no
//! list of all. The tables lie in sections of their own so that the VMM can list them without running the
//! image; the linker sorts them by the number that each entry begins with, and an entry's position is the index
//! by which the VMM asks for it.
#![expect(unsafe_code, reason = "statics in sections that the linker sorts and the VMM reads from the file")]

use haltkick_hypercalls::{ACTIVITY_ANY, BootFlags, Descriptor, TIMES, WorkloadFlags};
use haltkick_locks::Point;

use crate::cpu::percpu::boot;
use crate::image::{locks, padded, table, workloads};
use crate::lock::calls::Calls;
use crate::lock::form::Form;
use crate::lock::object;

/// One lock's code: its native form and its paravirtual one.
pub(crate) type LockCode = [Option<Form>; 2];

/// Returns the functions of a form, for the VMM.
pub(crate) const fn calls(form: &Option<Form>) -> Calls {
    match form {
        Some(form) => form.calls,
        None => {
            Calls { lock: None, unlock: None, read: None, read_unlock: None, lock_bytes: 0, cpu_bytes: 0 }
        }
    }
}

pub(crate) const fn descriptor(name: &str, summary: &str, flags: u32, times: &[&str]) -> Descriptor {
    let (mut fields, mut slot) = ([[0; 16]; TIMES], 0);
    while slot < times.len() {
        fields[slot] = padded(times[slot]);
        slot += 1;
    }
    Descriptor { name: padded(name), summary: padded(summary), flags, reserved: 0, times: fields }
}

/// Declares locks: of each its place in the list, name, summary and flags, and its forms. A form is a kind that is declared
/// elsewhere, or one that is declared right here in braces (see `guest_kind`).
macro_rules! lock {
    ($($order:literal $name:literal, $summary:expr, [$($flag:ident)*];
     $(native $native:tt)? $(paravirt $paravirt:tt)?)+) => {$(
        $($crate::lock::registry::declare!($native);)?
        $($crate::lock::registry::declare!($paravirt);)?
        #[expect(unsafe_code, reason = "entries of the tables that `registry` walks")]
        const _: () = {
            const NATIVE: Option<$crate::lock::form::Form> = $crate::lock::registry::form!($($native)?);
            const PARAVIRT: Option<$crate::lock::form::Form> = $crate::lock::registry::form!($($paravirt)?);

            #[used]
            #[unsafe(link_section = concat!(".haltkick.locks.", $order))]
            static DESCRIPTOR: haltkick_hypercalls::Descriptor = {
                use haltkick_hypercalls::LockFlags;
                let flags = LockFlags::NONE
                    $(.with(LockFlags::$flag))*
                    .with_if(NATIVE.is_some(), LockFlags::HAS_NATIVE)
                    .with_if(PARAVIRT.is_some(), LockFlags::HAS_PARAVIRT);
                $crate::lock::registry::descriptor($name, $summary, flags.0, &[])
            };

            #[used]
            #[unsafe(link_section = concat!(".haltkick.calls.", $order))]
            static CALLS: [$crate::lock::calls::Calls; 2] =
                [$crate::lock::registry::calls(&NATIVE), $crate::lock::registry::calls(&PARAVIRT)];

            #[used]
            #[unsafe(link_section = concat!(".haltkick.code.", $order))]
            static CODE: $crate::lock::registry::LockCode = [NATIVE, PARAVIRT];
        };
    )+};
}

macro_rules! declare {
    ({ $($kind:tt)+ }) => {
        $crate::lock::kind::guest_kind!($($kind)+);
    };
    ($kind:ident) => {};
}

macro_rules! form {
    () => {
        None
    };
    ({ $kind:ident: $($rest:tt)+ }) => {
        Some($crate::lock::form::Form::of_kind::<$kind>())
    };
    ($kind:ident) => {
        Some($crate::lock::form::Form::of_kind::<$kind>())
    };
}

/// Declares workloads: of each its place in the list, name, summary and flags, what it reports in each of the results' times,
/// and what each vCPU does.
macro_rules! workload {
    ($($order:literal $name:literal, $summary:expr, [$($flag:ident)*], [$($time:literal),*] => $run:expr;)+) => {$(
        #[expect(unsafe_code, reason = "entries of the tables that `registry` walks")]
        const _: () = {
            #[used]
            #[unsafe(link_section = concat!(".haltkick.workloads.", $order))]
            static DESCRIPTOR: haltkick_hypercalls::Descriptor = {
                use haltkick_hypercalls::WorkloadFlags;
                let flags = WorkloadFlags::NONE $(.with(WorkloadFlags::$flag))*;
                $crate::lock::registry::descriptor($name, $summary, flags.0, &[$($time),*])
            };

            #[used]
            #[unsafe(link_section = concat!(".haltkick.run.", $order))]
            static RUN: fn() = $run;
        };
    )+};
}

pub(crate) use {declare, form, lock, workload};

unsafe extern "C" {
    static __haltkick_code_start: u8;
    static __haltkick_code_end: u8;
    static __haltkick_run_start: u8;
    static __haltkick_run_end: u8;
}

/// The code of this run's lock: one of the image's own, or one that was linked behind it.
pub(crate) fn form_of_run() -> Form {
    // SAFETY: the section's ends; only `lock!` puts anything there: the code of each lock, in the order of the descriptors.
    let codes: &[LockCode] =
        unsafe { table(&raw const __haltkick_code_start, &raw const __haltkick_code_end) };
    let paravirt = boot().flags.has(BootFlags::PARAVIRT);
    let Some(code) = codes.get(boot().lock as usize) else {
        return Form::of_object(object::calls(paravirt));
    };
    code[usize::from(paravirt)].expect("the VMM checked that the lock has this form")
}

pub(crate) fn workload_of_run() -> fn() {
    // SAFETY: as above: only `workload!` puts anything there, a function for each, in the order of the descriptors.
    let run: &[fn()] = unsafe { table(&raw const __haltkick_run_start, &raw const __haltkick_run_end) };
    run[boot().workload as usize]
}

pub(crate) fn workload_flags_of_run() -> WorkloadFlags {
    WorkloadFlags(workloads()[boot().workload as usize].flags)
}

/// Name of this run's lock; empty for one that was linked behind the image.
pub(crate) fn lock_of_run() -> &'static [u8] {
    let entry = locks().get(boot().lock as usize);
    entry.and_then(|it| it.name.split(|&byte| byte == 0).next()).unwrap_or_default()
}

const fn points() -> [Descriptor; Point::ALL.len()] {
    let mut points = [descriptor("", "", 0, &[]); Point::ALL.len()];
    let mut i = 0;
    while i < points.len() {
        let point = Point::ALL[i];
        assert!(point as usize == i && i < u64::BITS as usize, "points are numbered from 0, and fit a mask");
        let activity = match point.activity() {
            Some(activity) => activity as u32,
            None => ACTIVITY_ANY,
        };
        points[i] = descriptor(point.name(), point.summary(), activity, &[]);
        i += 1;
    }
    points
}

#[used]
#[unsafe(link_section = ".haltkick.points")]
static POINTS: [Descriptor; Point::ALL.len()] = points();
