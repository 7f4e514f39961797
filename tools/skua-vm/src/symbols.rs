// SPDX-License-Identifier: MIT

//! Lines of source for the kernel's addresses: the kernel's own `decode_stacktrace.sh` over the
//! symbols of the kernel and of the module that the guest ran.

use std::io::Write;
use std::process::Command;
use std::time::Duration;

use skua_guest::process::{run, Time};

use crate::Parts;

/// A time limit against a decoder that hangs.
const LIMIT: Duration = Duration::from_secs(300);

/// The lines with `(file:line)` behind each `symbol+0x10/0x20`; as they were where no symbols are.
pub(crate) fn decode(parts: &Parts, lines: Vec<String>) -> String {
    let plain = lines.join("\n");
    if !plain.contains("+0x") {
        return plain;
    }
    try_decode(parts, &plain).unwrap_or(plain)
}

fn try_decode(parts: &Parts, text: &str) -> Option<String> {
    let build = parts.build()?;
    let script = build.join("source/scripts/decode_stacktrace.sh");
    let vmlinux = build.join("vmlinux");
    if !script.exists() || !vmlinux.exists() {
        return None;
    }
    let mut input = tempfile::NamedTempFile::new().ok()?;
    input.write_all(text.as_bytes()).ok()?;
    let mut command = Command::new("/bin/bash");
    command
        .args(["-c", r#"exec bash "$1" "$2" "$3" "$4" <"$5""#, "decode"])
        .args([&script, &vmlinux, &build, &parts.products])
        .arg(input.path())
        .env("LLVM", "1");
    let mut lines = Vec::new();
    let end = run(command, Some((LIMIT, Time::OfProcess)), |line| {
        lines.push(line.to_owned());
    });
    end.ok()
        .filter(|end| end.is_success() && !lines.is_empty())
        .map(|_| lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_decoded_stays_as_it_is() {
        let line = "RIP: 0010:skua_probe+0x10/0x20 [skua]".to_owned();
        assert_eq!(decode(&Parts::of_test(), vec![line.clone()]), line);
    }
}
