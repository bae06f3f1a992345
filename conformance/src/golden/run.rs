//! One script with the real allocator's answers, and how it is checked against the core.

use parkade::profile::TieBreak;
use serde_json::Value;

use super::compare::{Comparison, without_registration};
use super::difference::Difference;
use super::error::GoldenError;
use parkade_replay::ops::{OpsOptions, OpsRunner};

/// One script in one configuration, with the real allocator's answers.
#[derive(Clone, Debug)]
pub struct GoldenRun {
    /// The kind of script: the name of the file.
    pub flavour: String,
    /// The name of the settings, from `CONFIGS` in `differential/programs.py`.
    pub config: String,
    /// What the script ran on.
    pub options: OpsOptions,
    /// The real allocator's answers, one line per operation.
    pub answers: Vec<String>,
}

/// How well a run agrees with the real allocator's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Agreement {
    /// Every byte is equal, apart from the registration counters of 2.11.
    Exact,
    /// Equal except for an order that follows from the addresses of the real allocator's objects, in this many operations.
    UpToHashOrder(u64),
}

impl GoldenRun {
    /// The run's flavour and configuration, for messages.
    #[must_use]
    pub fn title(&self) -> String {
        format!("{}.{}", self.flavour, self.config)
    }

    /// The operation of each line, as text.
    ///
    /// # Errors
    /// [`GoldenError::NoOperation`] for an answer without one.
    pub fn script(&self) -> Result<Vec<String>, GoldenError> {
        let operation = |(line, answer): (usize, &String)| {
            let value: Option<Value> = serde_json::from_str(answer).ok();
            let operation = value.and_then(|value| value["op"].as_str().map(str::to_owned));
            operation.ok_or_else(|| GoldenError::NoOperation { run: self.title(), line, answer: answer.clone() })
        };
        self.answers.iter().enumerate().map(operation).collect()
    }

    /// Runs the script on the core and returns its answers.
    ///
    /// # Errors
    /// [`GoldenError::Settings`] if the settings are refused, [`GoldenError::NoOperation`] if a line holds no operation.
    pub fn replay(&self) -> Result<Vec<String>, GoldenError> {
        let mut runner = OpsRunner::new(&self.options).map_err(|cause| GoldenError::Settings { run: self.title(), cause })?;
        let answer = |(line, operation): (usize, &String)| {
            let answer = runner.run_line(operation);
            answer.ok_or_else(|| GoldenError::NoOperation { run: self.title(), line, answer: self.answers[line].clone() })
        };
        self.script()?.iter().enumerate().map(answer).collect()
    }

    /// Compares the real answers with `ours`, the core's.
    ///
    /// # Errors
    /// The first line that differs, and how.
    pub fn compare(&self, ours: &[String]) -> Result<Agreement, Difference> {
        if self.answers.len() != ours.len() {
            let (theirs, ours) = (self.answers.len(), ours.len());
            return Err(Difference::new(format!("{}: {theirs} answers are recorded, {ours} were given", self.title())));
        }
        let pairs = || self.answers.iter().zip(ours);
        let is_exact = |(theirs, ours): (&String, &String)| match self.options.profile.tie_break {
            TieBreak::Address => without_registration(theirs) == *ours,
            TieBreak::SegmentAge | TieBreak::BlockAge => theirs == ours,
        };
        if pairs().all(is_exact) {
            return Ok(Agreement::Exact);
        }
        let mut comparison = Comparison::new(self.options.profile);
        for (number, (theirs, ours)) in pairs().enumerate() {
            let place = |difference: Difference| {
                Difference::new(format!("{}, line {number}: {difference}\n    {theirs:.200}", self.title()))
            };
            comparison.line(theirs, ours).map_err(place)?;
        }
        Ok(Agreement::UpToHashOrder(comparison.tolerated))
    }

    /// Runs the script on the core and compares the answers.
    ///
    /// # Errors
    /// As [`GoldenRun::replay`], and [`GoldenError::Differs`] with the first line that differs.
    pub fn check(&self) -> Result<Agreement, GoldenError> {
        Ok(self.compare(&self.replay()?)?)
    }
}
