//! `parkade diff` compares two recordings of a program, or checks one against a bound.

mod compared;
mod folders;
mod json;
mod table;
mod words;

use anyhow::Result;

use self::compared::{Compared, compare};
use crate::terminal::answer::Answer;
use crate::terminal::json_struct::sections;
use crate::terminal::runner::{Command, Form, Lines, Outcome};

pub(crate) use self::compared::Args;
pub(crate) use self::folders::run_diff;

sections! {
    "diff": json::Object<'_>;
    "diff of folders": folders::Object<'_>;
}

impl Command for Args {
    type Found = Compared;

    fn compute(&self) -> Result<Compared> {
        compare(self)
    }

    fn outcome(&self, compared: &Compared) -> Outcome {
        compared.checks.iter().fold(Outcome::Good, |worst, checked| worst.worse(compared.verdict(checked).outcome()))
    }

    fn form(&self) -> Form {
        self.print.form()
    }

    fn answer(&self, compared: &Compared) -> Answer {
        table::answer(compared, self.all)
    }

    fn json(&self, compared: &Compared, lines: &mut Lines) -> Result<()> {
        lines.add(&json::Object::of(compared))
    }
}
