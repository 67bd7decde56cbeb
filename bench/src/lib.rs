//! `haltkick`: experiments with locks on overcommitted virtual CPUs. A library for the command's own `main` and for `fuzz/` only.
//!
//! docs/architecture.md lists the rooms, from the ground up: each imports only from those before it.

mod analysis;
mod cli;
mod commands;
mod experiment;
mod host;
mod measure;
mod record;
mod results;
mod settings;
mod show;
mod text;

use std::process::ExitCode;

use clap::Parser as _;

use cli::Cli;
use text::exit::Exit;

#[global_allocator]
static ALLOCATOR: haltkick_vmm::OrGivesUp = haltkick_vmm::OrGivesUp { exit: Exit::HostLacks as i32 };

/// The command.
#[must_use]
pub fn main() -> ExitCode {
    if commands::first_process::is_this() {
        return commands::first_process::run();
    }
    end_on_panic(unless_it_bisects(Exit::Internal));
    let cli = Cli::try_parse().unwrap_or_else(|error| {
        // Names of files may have control characters.
        let printable: Vec<String> = std::env::args_os()
            .map(|argument| haltkick_vmm::printable(&argument.to_string_lossy()))
            .collect();
        let error = Cli::try_parse_from(&printable).err().unwrap_or(error);
        if error.use_stderr() {
            let words = &printable[1..];
            match cli::gone::instead(words).or_else(|| cli::gone::elsewhere(&error, words)) {
                Some(instead) => text::output::talk(&format!("haltkick: {instead}")),
                None => _ = error.print(),
            }
            refuse();
        }
        error.exit()
    });
    let mut set = std::env::vars_os().filter(|(_, value)| !value.is_empty());
    if let Some(gone) = set.find_map(|(name, _)| cli::gone::variable(name.to_str()?)) {
        text::output::talk(&format!("haltkick: {gone}"));
        refuse();
    }
    if cli.no_sandbox {
        haltkick_vmm::disable_sandbox();
    }
    commands::interrupt::survive_size_limit();
    host::identity::read_before_the_walls();
    let exit = commands::dispatch(cli.command).unwrap_or_else(|failure| {
        text::output::talk(&format!("haltkick: {failure}"));
        failure.exit
    });
    ExitCode::from(exit as u8)
}

/// Ends the process because of its command line or its environment.
fn refuse() -> ! {
    std::process::exit(unless_it_bisects(Exit::Usage) as i32)
}

/// `exit`, or what git does not take for a bad commit.
fn unless_it_bisects(exit: Exit) -> Exit {
    // An option that all commands have may come first; none of them has a value.
    let command = std::env::args_os().skip(1).find(|word| !word.as_encoded_bytes().starts_with(b"-"));
    if command.is_some_and(|word| word == "bisect") { Exit::EndsBisection } else { exit }
}

/// Makes a panic of any thread the end of the process: the others would wait forever for what that thread had in its hands.
fn end_on_panic(exit: Exit) {
    let say = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        say(panic);
        std::process::exit(exit as i32)
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_any_thread_ends_the_process_with_its_code() {
        const THIS: &str = "tests::a_panic_of_any_thread_ends_the_process_with_its_code";
        const IN_CHILD: &str = "HALTKICK_TEST_PANICS";
        if std::env::var_os(IN_CHILD).is_some() {
            end_on_panic(Exit::EndsBisection);
            _ = std::thread::spawn(|| panic!("a planted fault")).join();
            return;
        }
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let ended = child.args(["--exact", THIS, "--nocapture"]).env(IN_CHILD, "1").output().unwrap();
        assert_eq!(ended.status.code(), Some(Exit::EndsBisection as i32), "{ended:?}");
        assert!(String::from_utf8_lossy(&ended.stderr).contains("a planted fault"), "{ended:?}");
    }
}

/// Code that the targets in `fuzz/` execute on bytes that coverage has chosen.
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzz {
    pub const TARGETS: [haltkick_fuzzing::Target; 3] =
        [crate::experiment::fuzzed::TARGET, crate::measure::fuzzed::OUTCOME, crate::measure::fuzzed::RECORD];
}
