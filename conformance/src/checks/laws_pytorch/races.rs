//! The no-race law: a program that uses one stream, or records every stream that uses its memory, never races.
//!
//! The simulated device's detector checks every access by physical bytes, whenever events complete. On every backend the
//! contents are read back and must match the program's own order. As a control for the detector, the same programs also run
//! without recording their streams, and a good part of them must race.

use std::cell::Cell;

use crate::backend::{AnyBackend, EventTiming, TestDevice as _};
use crate::checks::campaign::Subject;
use crate::law::Law;
use crate::program::contents::Contents;
use crate::program::draw::{on_one_stream, sharing};
use crate::program::search::{may_expand, run_cases, timings};
use crate::suite::{Effort, Entry, Evidence, Group, Trouble, Verdict};

/// Of the programs that do not record their streams, at least one in this many must race.
const RACING_ONE_IN: u32 = 2;
/// With fewer programs per timing, the share of racing programs would vary too much.
const LEAST_OF_EACH: u32 = 20;

/// Returns the entries of this law.
pub(super) fn entries(backend: &AnyBackend) -> Vec<Entry> {
    let mut entries = Vec::new();
    let kinds = [
        (true, "one-stream", "a program with one stream never races, and reads back what it wrote"),
        (false, "told-streams", "a program that records every stream's use never races, and reads back what it wrote"),
    ];
    for (has_one_stream, kind, says) in kinds {
        for (timing_name, timing) in timings(backend) {
            let name = format!("{}/{kind}/{timing_name}", Law::NoRace.name());
            entries.push(Entry::new(Group::Law, name, says, move |backend, effort| {
                no_race(backend, effort, has_one_stream, timing)
            }));
        }
    }
    if backend.is_simulated() {
        let says = "control: the same programs race if they do not record their streams";
        entries.push(Entry::new(Group::Law, format!("{}/untold-streams-race", Law::NoRace.name()), says, untold));
    }
    entries
}

fn no_race(backend: &AnyBackend, effort: &Effort, has_one_stream: bool, timing: EventTiming) -> Verdict {
    let salt = 0x4ace_u64 + u64::from(!has_one_stream);
    // These programs are long.
    let effort = Effort { cases: effort.cases.div_ceil(2), ..*effort };
    run_cases(&effort, salt, sharing(timing, may_expand(backend)), |(setup, steps)| {
        let steps = if has_one_stream { on_one_stream(steps) } else { steps.clone() };
        Subject::pytorch().whole_run(backend, setup, &steps).map(|_| steps.len() as u64)
    })
}

/// Runs the control programs under all timings in turn.
fn untold(backend: &AnyBackend, effort: &Effort) -> Verdict {
    let (racing, all) = (Cell::new(0), Cell::new(0));
    let share = Effort { cases: effort.cases.div_ceil(4).max(LEAST_OF_EACH), ..*effort };
    let subject = Subject::pytorch().with_contents(Contents::Unchecked);
    let mut operations = 0;
    for (_, timing) in timings(backend) {
        let verdict = run_cases(&share, 0x4acf_u64, sharing(timing, may_expand(backend)), |(setup, steps)| {
            let player = subject.play(backend, setup, steps)?;
            let races = player.caller.device.steer().insight().map_or(0, |device| device.races().len());
            player.finish()?;
            all.set(all.get() + 1);
            racing.set(racing.get() + u32::from(races > 0));
            Ok(steps.len() as u64)
        })?;
        operations += verdict.operations;
    }
    let (racing, all) = (racing.get(), all.get());
    if racing * RACING_ONE_IN < all {
        return Err(Trouble::fail(format!("only {racing} of {all} programs that do not record their streams race")));
    }
    Ok(Evidence { measured: format!("{racing} of {all} programs race"), operations, text: String::new() })
}
