//! The no-race law: a program that uses one stream, or tells the allocator every stream that uses its memory, never races.
//!
//! Programs declare what they access. The simulated device's detector checks every access by physical bytes, whenever events
//! complete; on every backend the contents are read back and must match the program's own order. As a control for the detector,
//! the same programs also run without telling the allocator, and a good part of them must race.

mod play;

use parkade::units::MIB;
use proptest::prelude::*;

use super::campaign::Stopped;
use super::cases;
use crate::backend::{AnyBackend, EventTiming};
use crate::checks::draw::{may_expand, timings};
use crate::law::Law;
use crate::suite::{Effort, Entry, Evidence, Group, Trouble, Verdict};
use play::{Kind, Play, Step};
use serde::{Deserialize, Serialize};

/// Of the programs that do not record their streams, at least one in this many must race.
const RACING_ONE_IN: u32 = 2;
/// The maximum number of steps of a program.
const LONGEST: usize = 120;

/// A program and its event timing.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Program {
    timing: EventTiming,
    is_virtual: bool,
    steps: Vec<Step>,
}

/// The entries of this law.
pub(super) fn entries(backend: &AnyBackend) -> Vec<Entry> {
    let mut entries = Vec::new();
    let kinds = [
        (Kind::OneStream, "one-stream", "a program with one stream never races, and reads back what it wrote"),
        (Kind::Told, "told-streams", "a program that records every stream's use never races, and reads back what it wrote"),
    ];
    for (kind, kind_name, says) in kinds {
        for (timing_name, timing) in timings(backend) {
            let name = format!("{}/{kind_name}/{timing_name}", Law::NoRace.name());
            entries.push(Entry::new(Group::Law, name, says, move |backend, effort| no_race(backend, effort, kind, timing)));
        }
    }
    if backend.is_simulated() {
        let says = "control: the same programs do race if they do not record their streams";
        entries.push(Entry::new(Group::Law, format!("{}/untold-streams-race", Law::NoRace.name()), says, untold));
    }
    entries
}

fn programs(timing: EventTiming, may_expand: bool) -> impl Strategy<Value = Program> {
    let timing = match timing {
        EventTiming::Seeded(_) => any::<u64>().prop_map(EventTiming::Seeded).boxed(),
        other => Just(other).boxed(),
    };
    // Some sizes repeat, so that blocks are reused.
    let again = prop::sample::select(vec![512, MIB, 4 * MIB, 12 * MIB]);
    let size = prop_oneof![3 => again, 2 => 4..MIB, 2 => MIB..12 * MIB, 1 => 12 * MIB..24 * MIB];
    let (which, stream) = (0..64_usize, 0..4_usize);
    let step = prop_oneof![
        6 => (size, stream.clone()).prop_map(|(bytes, stream)| Step::Allocate(bytes, stream)),
        5 => which.clone().prop_map(Step::Free),
        4 => which.clone().prop_map(Step::Replace),
        3 => (which.clone(), stream.clone()).prop_map(|(which, stream)| Step::Fill(which, stream)),
        5 => (which.clone(), which.clone(), stream.clone()).prop_map(|(from, to, stream)| Step::Copy(from, to, stream)),
        3 => (stream, 1_000..200_000_u64).prop_map(|(stream, duration)| Step::Spin(stream, duration)),
        1 => which.prop_map(Step::Read),
        1 => Just(Step::ProcessEvents),
        1 => Just(Step::ReleaseCached),
    ];
    (timing, any::<bool>(), prop::collection::vec(step, 1..LONGEST)).prop_map(move |(timing, is_virtual, steps)| Program {
        timing,
        is_virtual: is_virtual && may_expand,
        steps,
    })
}

/// Runs a program to its end; returns the number of races and its script.
fn play(backend: &AnyBackend, program: &Program, kind: Kind) -> Result<(usize, String), Stopped> {
    let mut play = Play::new(backend, program.timing, program.is_virtual, kind).map_err(Stopped::Unable)?;
    for &step in &program.steps {
        play.step(step).map_err(|broken| Stopped::Broken(broken.during(format!("{step:?}")), play.script()))?;
    }
    let script = play.script();
    let races = play.finish().map_err(|broken| Stopped::Broken(broken.during("at the end"), script.clone()))?;
    Ok((races, script))
}

fn no_race(backend: &AnyBackend, effort: &Effort, kind: Kind, timing: EventTiming) -> Verdict {
    let salt = 0x4ace_u64 + u64::from(kind == Kind::Told);
    cases::run(effort, salt, &programs(timing, may_expand(backend)), |program| {
        play(backend, program, kind).map(|_| program.steps.len() as u64)
    })
}

/// With fewer programs per timing, the share of racing ones would be too random.
const LEAST_OF_EACH: u32 = 20;

/// Runs the control programs under all timings in turn.
fn untold(backend: &AnyBackend, effort: &Effort) -> Verdict {
    let (racing, all) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    let share = Effort { cases: effort.cases.div_ceil(4).max(LEAST_OF_EACH), ..*effort };
    let mut operations = 0;
    for (_, timing) in timings(backend) {
        let verdict = cases::run(&share, 0x4acf_u64, &programs(timing, may_expand(backend)), |program| {
            let (races, _) = play(backend, program, Kind::Untold)?;
            all.set(all.get() + 1);
            racing.set(racing.get() + u32::from(races > 0));
            Ok(program.steps.len() as u64)
        })?;
        operations += verdict.operations;
    }
    let (racing, all) = (racing.get(), all.get());
    if racing * RACING_ONE_IN < all {
        return Err(Trouble::fail(format!("only {racing} of {all} programs that do not record their streams race")));
    }
    Ok(Evidence { measured: format!("{racing} of {all} programs race"), operations, text: String::new() })
}
