//! A clone goes on as its original does, whatever state it was made in; and an allocator that is dropped in any state gives
//! everything back, after waiting for whoever may still use memory that it unmaps.

mod side;

use crate::law::{Law, ensure};
use parkade::units::{MIB, PoolId};
use proptest::prelude::*;

use crate::core_laws::run::{Draws, Outcome, run};
use side::Side;

/// Handles of streams.
const STREAMS: [u64; 4] = [0, 7, 0x1000, u64::MAX];

/// The private pools of programs.
const POOLS: [PoolId; 2] = [PoolId(0, 1), PoolId(3, 0)];

/// Settings strings that both releases understand.
const TEXTS: [&str; 6] = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:24",
    "expandable_segments:True,large_segment_size_mb:12",
    "garbage_collection_threshold:0.3",
    "roundup_power2_divisions:4",
];

/// One step; numbers wrap around.
#[derive(Clone, Copy, Debug)]
enum Step {
    Allocate(u64, usize),
    Free(usize),
    Record(usize, usize),
    Complete(usize),
    CompleteAll,
    ProcessEvents,
    ReleaseCached,
    Begin(usize, bool),
    End(usize),
    Release(usize),
    ReleaseCachedPool(usize),
    Serve(usize, bool),
    KeepWhole(usize),
    Capturing(bool),
    Save(usize),
    Restore(usize),
    Limit(Option<u64>),
    Apply(usize),
    Reset(bool),
    Snapshot,
    /// The n-th next call of the device fails.
    Fail(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let which = any::<usize>;
    let sizes = prop::sample::select(vec![1, 5000, MIB, MIB + 1, 3 * MIB, 11 * MIB, 20 * MIB, 30 * MIB]);
    let limits = prop::sample::select(vec![None, Some(40 * MIB), Some(90 * MIB)]);
    prop_oneof![
        24 => (sizes, which()).prop_map(|(size, stream)| Step::Allocate(size, stream)),
        14 => which().prop_map(Step::Free),
        12 => (which(), which()).prop_map(|(what, stream)| Step::Record(what, stream)),
        2 => which().prop_map(Step::Complete),
        1 => Just(Step::CompleteAll),
        1 => Just(Step::ProcessEvents),
        2 => Just(Step::ReleaseCached),
        4 => (which(), any::<bool>()).prop_map(|(pool, all)| Step::Begin(pool, all)),
        4 => which().prop_map(Step::End),
        2 => which().prop_map(Step::Release),
        1 => which().prop_map(Step::ReleaseCachedPool),
        1 => (which(), any::<bool>()).prop_map(|(pool, serves)| Step::Serve(pool, serves)),
        1 => which().prop_map(Step::KeepWhole),
        2 => any::<bool>().prop_map(Step::Capturing),
        2 => which().prop_map(Step::Save),
        2 => which().prop_map(Step::Restore),
        1 => limits.prop_map(Step::Limit),
        1 => which().prop_map(Step::Apply),
        1 => any::<bool>().prop_map(Step::Reset),
        1 => Just(Step::Snapshot),
        2 => (1..6_u64).prop_map(Step::Fail),
    ]
}

pub(crate) fn check(draws: &Draws) -> Outcome {
    let first = (any::<bool>(), 0..TEXTS.len(), any::<u64>());
    let strategy = (first, prop::collection::vec(step(), 1..50), prop::collection::vec(step(), 0..30), any::<u64>());
    run(&draws.each_for(2), 360, &strategy, |(first, before, after, end)| {
        let mut side = Side::new(first)?;
        for step in before {
            side.act(step)?;
        }
        let mut copy = side.copy()?;
        for (number, step) in after.iter().enumerate() {
            let answers = [side.act(step)?, copy.act(step)?];
            let during = || format!("step {number} after the cloning, {step:?}");
            ensure(Law::Determinism, answers[0] == answers[1], || format!("{answers:?}"))
                .map_err(|broken| broken.during(during()))?;
            side.same_as(&copy).map_err(|broken| broken.during(during()))?;
        }
        let left = copy.seen();
        side.drop(*end)?;
        ensure(Law::Determinism, copy.seen() == left, || "a clone has changed when its original was dropped".to_owned())?;
        copy.drop(*end >> 8)?;
        Ok((before.len() + after.len()) as u64)
    })
}
