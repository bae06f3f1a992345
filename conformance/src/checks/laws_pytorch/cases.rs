//! Random cases of laws that need their own programs: drawn, run, and shrunk if the law breaks.

use std::cell::{Cell, RefCell};
use std::fmt::Debug;

use proptest::strategy::Strategy;
use proptest::test_runner::{TestCaseError, TestError};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::campaign::Stopped;
use crate::checks::draw::{hunt, program_line};
use crate::suite::{Effort, Evidence, Trouble, Verdict};

/// Runs drawn cases; each returns its number of operations. The smallest case found that breaks the law is reported with its
/// script.
pub(super) fn run<S>(effort: &Effort, salt: u64, strategy: &S, one: impl Fn(&S::Value) -> Result<u64, Stopped>) -> Verdict
where
    S: Strategy,
    S::Value: Debug + Serialize + DeserializeOwned,
{
    let (operations, unable, broken) = (Cell::new(0), RefCell::new(None), RefCell::new(None));
    let outcome = hunt(effort, salt, strategy, |case| match one(&case) {
        Ok(done) => {
            operations.set(operations.get() + done);
            Ok(())
        }
        Err(Stopped::Unable(reason)) => {
            unable.replace(Some(reason));
            Ok(())
        }
        Err(Stopped::Broken(found, script)) => {
            // The last failing case is the smallest.
            let message = found.to_string();
            broken.replace(Some((found, script)));
            Err(TestCaseError::fail(message))
        }
    });
    if let Some(reason) = unable.take() {
        return Err(reason.into());
    }
    match (outcome, broken.take()) {
        (Ok(()), _) => {
            let measured = format!("{} operations in {} programs", operations.get(), effort.cases);
            Ok(Evidence { operations: operations.get(), measured, text: String::new() })
        }
        (Err(TestError::Fail(_, program)), Some((found, script))) => {
            Err(Trouble::Fail { reason: found.to_string(), script: Some(script + &program_line(&program)) })
        }
        (Err(error), _) => Err(Trouble::fail(error.to_string())),
    }
}
