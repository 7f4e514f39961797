// SPDX-License-Identifier: MIT

//! `skua-asm`: assembles a program for the Skua GPU, or shows one as source.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;

/// Assembles a program for the Skua GPU.
///
/// The output is the bare program: 8 bytes for each instruction. What the source declares about it
/// (threads, shared memory, arguments) is printed with --info.
#[derive(Parser)]
#[command(version)]
struct Options {
    /// Source, or with --disassemble a program.
    input: PathBuf,
    /// Where to write to; nothing is written without it, except that --disassemble prints.
    #[arg(short, long)]
    output: Option<PathBuf>,
    /// Turn a program into source.
    #[arg(short, long)]
    disassemble: bool,
    /// Print threads, shared memory and arguments.
    #[arg(long, conflicts_with = "disassemble")]
    info: bool,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), String> {
    let name = options.input.display().to_string();
    let failed = |what: &str, path: &Path, e: std::io::Error| {
        format!("skua-asm: cannot {what} {}: {e}", path.display())
    };
    let bytes = std::fs::read(&options.input).map_err(|e| failed("read", &options.input, e))?;
    let write = |path: &Path, bytes: &[u8]| {
        std::fs::write(path, bytes).map_err(|e| failed("write", path, e))
    };
    if options.disassemble {
        let text = skua_asm::disassemble(&bytes).map_err(|e| format!("{name}: error: {e}"))?;
        return match &options.output {
            Some(path) => write(path, text.as_bytes()),
            None => std::io::stdout()
                .write_all(text.as_bytes())
                .map_err(|e| format!("skua-asm: cannot print: {e}")),
        };
    }
    let source =
        String::from_utf8(bytes).map_err(|_| format!("{name}: error: the file is not UTF-8"))?;
    // Beside the source that includes it.
    let find = |name: &str| std::fs::read_to_string(options.input.with_file_name(name)).ok();
    let program = skua_asm::assemble_with(&source, find).map_err(|errors| {
        let mut text = String::new();
        for error in &errors {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{}", error.display(&name));
        }
        let count = errors.len();
        let _ = write!(text, "{count} error{}", if count == 1 { "" } else { "s" });
        text
    })?;
    if let Some(path) = &options.output {
        write(path, &program.bytes())?;
    }
    if options.info {
        let [x, y, z] = program.threads();
        println!("instructions: {}", program.instructions().len());
        println!("threads: {x}, {y}, {z}");
        println!("shared: {}", program.shared_bytes());
        for argument in program.arguments() {
            let bits = argument.words * 32;
            println!(
                "argument {}: {} ({bits} bits)",
                argument.index, argument.name
            );
        }
    }
    Ok(())
}
