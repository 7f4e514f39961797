// SPDX-License-Identifier: MIT

//! All programs of the kselftests in one, which is the one that it is called: the kselftests have
//! a link for each. Programs of their own would each have the libraries compiled and linked again.

mod programs;

use skua_selftests::suite;
use std::process::ExitCode;

fn main() -> ExitCode {
    let name = suite::program();
    match programs::ALL.iter().find(|(program, _)| *program == name) {
        Some((_, main)) => main(),
        None => {
            eprintln!("no such program: {name}");
            ExitCode::FAILURE
        }
    }
}
