// SPDX-License-Identifier: MIT

//! As much of QMP, QEMU's control protocol, as plugging a device needs.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{bail, Context, Result};
use serde_json::{json, Value};

/// A connection to QEMU's monitor.
#[derive(Debug)]
pub(crate) struct Qmp {
    stream: BufReader<UnixStream>,
}

impl Qmp {
    /// Greets QEMU over a connected socket.
    ///
    /// # Errors
    ///
    /// If QEMU does not speak QMP within ten seconds.
    pub(crate) fn new(stream: UnixStream) -> Result<Self> {
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let mut qmp = Self {
            stream: BufReader::new(stream),
        };
        let greeting = qmp.read()?;
        if greeting.get("QMP").is_none() {
            bail!("QEMU's monitor does not greet: {greeting}");
        }
        qmp.execute("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    /// Executes a command and returns what it returned.
    ///
    /// # Errors
    ///
    /// QEMU's own description if it refuses.
    pub(crate) fn execute(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let request = json!({ "execute": command, "arguments": arguments });
        writeln!(self.stream.get_mut(), "{request}").context("QMP")?;
        loop {
            let mut answer = self.read()?;
            if let Some(error) = answer.get("error") {
                bail!("{command}: {}", error["desc"].as_str().unwrap_or("refused"));
            }
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
            // An event.
        }
    }

    fn read(&mut self) -> Result<Value> {
        let mut line = String::new();
        if self.stream.read_line(&mut line).context("QMP")? == 0 {
            bail!("QEMU closed its monitor");
        }
        serde_json::from_str(&line).context("QMP")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(script: &'static [&'static str]) -> Result<Qmp> {
        let (ours, theirs) = UnixStream::pair()?;
        std::thread::spawn(move || {
            let mut theirs = BufReader::new(theirs);
            for line in script {
                if let Some(expected) = line.strip_prefix("> ") {
                    let mut got = String::new();
                    theirs.read_line(&mut got).expect("a request");
                    assert!(got.contains(expected), "{got}");
                } else {
                    writeln!(theirs.get_mut(), "{line}").expect("an answer");
                }
            }
        });
        Qmp::new(ours)
    }

    #[test]
    fn events_are_passed_over_and_errors_told() {
        let mut qmp = peer(&[
            r#"{"QMP": {"version": {}}}"#,
            "> qmp_capabilities",
            r#"{"return": {}}"#,
            "> device_del",
            r#"{"event": "RESUME"}"#,
            r#"{"return": 7}"#,
            "> device_del",
            r#"{"error": {"class": "DeviceNotFound", "desc": "no such thing"}}"#,
        ])
        .expect("a greeting");
        assert_eq!(
            qmp.execute("device_del", json!({"id": "gpu"})).expect("7"),
            7
        );
        let error = qmp.execute("device_del", json!({})).expect_err("an error");
        assert_eq!(error.to_string(), "device_del: no such thing");
    }

    #[test]
    fn something_else_is_no_monitor() {
        assert!(peer(&[r#"{"hello": 1}"#]).is_err());
    }
}
