// SPDX-License-Identifier: MIT

//! What was measured: a line for each row, and the same as JSON.
//!
//! ```text
//! submit.one.doorbells: 1 per submission (target <= 1, limit 1)
//! submit.one.instructions: 7691 instructions [min 7691, max 12284, 101 times] (target < 8000)
//! ```
//!
//! A missed target is printed, and is no failure; a row without a value is one.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{bail, Context, Result};
use serde_json::{json, Value};

use crate::clock::Clock;
use crate::row::{Number, Row, ROWS};
use crate::sample::Sample;
use crate::submit::CLOCKED;

/// The value of a row, and what is known about how it came about.
#[derive(Clone, Debug, PartialEq)]
struct Measured {
    /// In the row's unit.
    value: f64,
    /// What `value` is the median of, if that is how it was measured.
    sample: Option<Sample>,
    /// More about it, for the JSON.
    detail: Value,
}

/// A report in the making.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// By the names of rows, each of which is here or in `unmeasured`.
    values: BTreeMap<&'static str, Measured>,
    /// Why there is no value.
    unmeasured: BTreeMap<&'static str, String>,
    /// About the machine, for the JSON.
    machine: BTreeMap<&'static str, Value>,
}

impl Report {
    /// Says something about the machine.
    pub fn machine(&mut self, key: &'static str, value: impl Into<Value>) {
        self.machine.insert(key, value.into());
    }

    /// Fills a row, with more about it for the JSON.
    ///
    /// # Errors
    ///
    /// If there is no such row, or it was filled before.
    pub fn detailed(&mut self, name: &str, value: f64, detail: Value) -> Result<()> {
        self.insert(
            name,
            Measured {
                value,
                sample: None,
                detail,
            },
        )
    }

    /// Fills a row with a count per unit of work.
    ///
    /// # Errors
    ///
    /// As [`Report::detailed`].
    pub fn ratio(&mut self, name: &str, count: u64, units: u64) -> Result<()> {
        // CAST: counts are far below 2^53.
        let value = count as f64 / units.max(1) as f64;
        self.detailed(name, value, json!({ "count": count, "units": units }))
    }

    /// Fills a row with the median of repetitions.
    ///
    /// # Errors
    ///
    /// As [`Report::detailed`].
    pub fn sample(&mut self, name: &str, sample: Option<Sample>) -> Result<()> {
        let sample = sample.context("no repetitions")?;
        self.insert(
            name,
            Measured {
                // CAST: counts are far below 2^53.
                value: sample.median as f64,
                sample: Some(sample),
                detail: Value::Null,
            },
        )
    }

    /// Fills a row with the median of repetitions by a clock, if that counts instructions.
    ///
    /// # Errors
    ///
    /// As [`Report::detailed`].
    pub fn instructions(
        &mut self,
        clock: &Clock,
        name: &str,
        sample: Option<Sample>,
    ) -> Result<()> {
        if clock.counts_instructions() {
            self.sample(name, sample)
        } else {
            self.unmeasured(name, "(the clock counts no instructions)")
        }
    }

    /// Fills a row with the instructions of `f`, which is called [`CLOCKED`] times.
    ///
    /// # Errors
    ///
    /// As [`Report::detailed`].
    pub fn clocked(&mut self, clock: &Clock, name: &str, f: impl FnMut()) -> Result<()> {
        self.instructions(clock, name, clock.sample(CLOCKED, f))
    }

    /// Says that a row cannot be measured on this machine, and why.
    ///
    /// # Errors
    ///
    /// As [`Report::detailed`].
    pub fn unmeasured(&mut self, name: &str, why: &str) -> Result<()> {
        let row = self.vacant(name)?;
        self.unmeasured.insert(row.name, why.to_owned());
        Ok(())
    }

    fn insert(&mut self, name: &str, measured: Measured) -> Result<()> {
        let row = self.vacant(name)?;
        self.values.insert(row.name, measured);
        Ok(())
    }

    fn vacant(&self, name: &str) -> Result<&'static Row> {
        let row = Row::named(name).with_context(|| format!("there is no row {name}"))?;
        if self.values.contains_key(row.name) || self.unmeasured.contains_key(row.name) {
            bail!("row {name} is filled twice");
        }
        Ok(row)
    }

    /// The rows without a value.
    pub fn missing(&self) -> Vec<&'static str> {
        let missing = ROWS
            .iter()
            .filter(|row| !self.values.contains_key(row.name));
        missing.map(|row| row.name).collect()
    }

    /// The rows whose target was missed.
    pub fn missed(&self) -> Vec<&'static str> {
        ROWS.iter()
            .filter(|row| self.is_met(row) == Some(false))
            .map(|row| row.name)
            .collect()
    }

    fn is_met(&self, row: &Row) -> Option<bool> {
        let measured = self.values.get(row.name)?;
        Some(row.target?.is_met(measured.value))
    }

    /// The JSON: about the machine, and an object for each row.
    pub fn json(&self) -> Value {
        let rows = ROWS.iter().map(|row| {
            let measured = self.values.get(row.name);
            json!({
                "measure": row.measure,
                "name": row.name,
                "unit": row.unit,
                "value": measured.map(|m| m.value),
                "sample": measured.and_then(|m| m.sample),
                "detail": measured.map(|m| m.detail.clone()),
                "target": row.target,
                "limit": row.limit,
                "met": self.is_met(row),
                "repeats": row.repeats,
                "unmeasured": self.unmeasured.get(row.name),
            })
        });
        json!({
            "version": 1,
            "machine": self.machine,
            "rows": rows.collect::<Vec<_>>(),
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in ROWS {
            write!(f, "{}: ", row.name)?;
            let Some(measured) = self.values.get(row.name) else {
                let why = self.unmeasured.get(row.name).map_or("", String::as_str);
                writeln!(f, "not measured {why}")?;
                continue;
            };
            write!(f, "{} {}", Number(measured.value), row.unit)?;
            if let Some(sample) = measured.sample {
                let Sample {
                    count, min, max, ..
                } = sample;
                write!(f, " [min {min}, max {max}, {count} times]")?;
            }
            let target = row.target.map(|target| format!("target {target}"));
            let limit = row.limit.map(|limit| format!("limit {}", Number(limit)));
            let words: Vec<_> = target.into_iter().chain(limit).collect();
            if !words.is_empty() {
                write!(f, " ({})", words.join(", "))?;
            }
            let miss = self.is_met(row) == Some(false);
            writeln!(f, "{}", if miss { " MISS" } else { "" })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_value_unit_target_and_limit() {
        let mut report = Report::default();
        report.ratio("submit.one.doorbells", 16, 16).expect("a row");
        report.ratio("submit.one.ioctls", 24, 16).expect("a row");
        let sample = Sample::of(vec![5, 6, 9]);
        report
            .sample("submit.one.instructions", sample)
            .expect("a row");
        report.unmeasured("memory.vm", "(no slabs)").expect("a row");
        let text = report.to_string();
        for line in [
            "submit.one.doorbells: 1 per submission (target <= 1, limit 1)",
            "submit.one.ioctls: 1.5 per submission (target <= 1, limit 1) MISS",
            "submit.one.instructions: 6 instructions [min 5, max 9, 3 times] (target < 8000)",
            "memory.vm: not measured (no slabs)",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
        assert_eq!(text.lines().count(), ROWS.len());
        assert_eq!(report.missed(), ["submit.one.ioctls"]);
        assert_eq!(report.missing().len(), ROWS.len() - 3);
    }

    #[test]
    fn rows_are_filled_once() {
        let mut report = Report::default();
        report.ratio("memory.vm", 1, 1).expect("a row");
        assert!(report.ratio("memory.vm", 1, 1).is_err());
        assert!(report.unmeasured("memory.vm", "").is_err());
        assert!(report.ratio("memory.of.elephants", 1, 1).is_err());
        assert!(report.sample("memory.job", None).is_err());
    }

    #[test]
    fn json_has_every_row() {
        let mut report = Report::default();
        report.machine("clock", "tsc");
        report.ratio("wait.load.interrupts", 1, 1).expect("a row");
        let json = report.json();
        let rows = json["rows"].as_array().expect("rows");
        assert_eq!(rows.len(), ROWS.len());
        let row = rows
            .iter()
            .find(|row| row["name"] == "wait.load.interrupts")
            .expect("the row");
        assert_eq!(row["value"], 1.0);
        assert_eq!(row["met"], false);
        assert_eq!(row["target"]["below"], 1.0);
        assert_eq!(json["machine"]["clock"], "tsc");
    }
}
