//! The `haltkick` command: see the library in this package.

use std::process::ExitCode;

fn main() -> ExitCode {
    haltkick::main()
}
