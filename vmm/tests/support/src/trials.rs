//! Tests under the names of their functions.

/// Trials of functions, each under its name. A trial with a condition is ignored where that does not hold.
#[macro_export]
macro_rules! trials {
    [$($test:ident $(if $can_run:expr)?),+ $(,)?] => {
        vec![$($crate::Trial::test(stringify!($test), $test)$(.with_ignored_flag(!$can_run))?),+]
    };
}

/// Trials of functions that take a scheduler: each under the VMM's and under the host's.
#[macro_export]
macro_rules! under_either_scheduler {
    [$($test:ident),+ $(,)?] => {
        [("vmm", $crate::Sched::Vmm), ("host", $crate::Sched::Host)]
            .into_iter()
            .flat_map(|(name, sched)| {
                [$($crate::Trial::test(format!("{}_under_sched_{name}", stringify!($test)), move || $test(sched))),+]
            })
            .collect::<Vec<_>>()
    };
}
