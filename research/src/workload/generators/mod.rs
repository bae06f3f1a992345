//! Generators: each creates a [`Workload`] from options and a seed.
//!
//! | kind | generators |
//! |---|---|
//! | models, with the lifetimes that autograd gives to tensors | [`transformer`], [`cnn`], [`mlp`] |
//! | the operations of a model by themselves | [`autograd`] |
//! | programs around a model | [`around_a_model`] |
//! | a server for a language model | [`serving`] |
//! | a chain of layers whose peak is a formula | [`chain`] |
//! | workloads that attack a policy | [`adversaries`] |
//!
//! `ALL` lists them by name. **To add one**, write a file here: a struct with its options, `workload()`, which writes events
//! into a `Program`, and `impl Generator`, which reads options from text. Add it to `ALL`, so that [`parse`](super::parse)
//! finds it by name. A line in the tests' `SMALL` makes the tests try random options with it, an entry in `catalogue.rs` puts
//! it into studies, and the table in `docs/workloads.md` describes it.
//!
//! Every workload has the option `prealloc`: one large request before everything else, which is freed immediately (A17). A
//! caching allocator keeps the memory, in one piece, for what follows.

pub mod adversaries;
pub mod around_a_model;
pub mod autograd;
pub mod chain;
pub mod cnn;
mod lengths;
pub mod mlp;
mod options;
pub mod serving;
mod training;
pub mod transformer;

pub use autograd::Work;
pub use lengths::Lengths;
pub use options::{MAX_BYTES, MAX_EVENTS, WorkloadError};
pub use training::Optimizer;

use std::collections::BTreeSet;

use super::{Event, Workload};
use adversaries::{Pattern, RobsonAgainst};
use around_a_model::{Alternate, Graphs, Prefetch, Varlen};
use chain::DescribedChain;
use cnn::Cnn;
use mlp::Mlp;
use options::{Generator, Key, Trained, within};
use serving::Serving;
use transformer::Transformer;

/// Creates a generator with its default options.
type Default = fn() -> Box<dyn Generator>;

/// The generator of [`transformer`].
pub(super) const TRANSFORMER: &str = "transformer";

/// All generators, in the order in which messages list them. A generator that is not listed here cannot be found by name.
const ALL: [(&str, Default); 13] = [
    (TRANSFORMER, || Box::new(Trained { model: Transformer::default(), steps: 20 })),
    ("chain", || Box::new(DescribedChain::default())),
    ("cnn", || Box::new(Cnn::default())),
    ("mlp", || Box::new(Trained { model: Mlp::default(), steps: 20 })),
    ("varlen", || Box::new(Varlen::default())),
    ("serving", || Box::new(Serving::default())),
    ("alternate", || Box::new(Alternate::default())),
    ("prefetch", || Box::new(Prefetch::default())),
    ("graphs", || Box::new(Graphs::default())),
    ("robson", || Box::new(RobsonAgainst::new("best-fit-remap:fit=first"))),
    ("comb", || Box::new(Pattern::comb())),
    ("fence", || Box::new(Pattern::fence())),
    ("stream-per-buffer", || Box::new(Pattern::stream_per_buffer())),
];

/// The option that every generator has in addition to its own: bytes that are requested before the workload
/// ([`preallocate`]).
const PREALLOC: Key = "prealloc";

/// Returns the names of the generators.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    ALL.into_iter().map(|(name, _)| name)
}

/// Returns the keys of a generator's options, or `None` if there is no generator with this name.
pub(super) fn keys(name: &str) -> Option<Vec<Key>> {
    let (_, default) = ALL.into_iter().find(|(known, _)| *known == name)?;
    Some(default().keys().into_iter().chain([PREALLOC]).collect())
}

/// Creates a workload from lists of options, `key=value` separated by commas. A later list overrides an earlier one; within a
/// list, no key may occur twice. Returns `None` if there is no generator with this name.
pub(super) fn make(name: &str, lists: &[&str]) -> Option<Result<Workload, WorkloadError>> {
    let (name, default) = ALL.into_iter().find(|(known, _)| *known == name)?;
    Some(configured(name, default(), lists))
}

/// Returns the transformer that lists of options describe, as in [`make`], and the number of steps.
pub(super) fn transformer_of(lists: &[&str]) -> Result<(Transformer, u64), WorkloadError> {
    let mut trained = Trained { model: Transformer::default(), steps: 20 };
    match set_all(TRANSFORMER, &mut trained, lists)? {
        Some(bytes) => options::refused(PREALLOC, &bytes.to_string(), "no value in a search for the largest batch"),
        None => Ok((trained.model, trained.steps)),
    }
}

fn configured(name: &'static str, mut generator: Box<dyn Generator>, lists: &[&str]) -> Result<Workload, WorkloadError> {
    let reserved = set_all(name, &mut *generator, lists)?;
    let workload = generator.make()?;
    match reserved {
        Some(bytes) => preallocate(&workload, bytes),
        None => Ok(workload),
    }
}

/// Sets all options and returns the value of [`PREALLOC`], in bytes.
fn set_all(name: &'static str, generator: &mut dyn Generator, lists: &[&str]) -> Result<Option<u64>, WorkloadError> {
    let mut reserved = None;
    for options in lists {
        let mut keys = BTreeSet::new();
        for (at, option) in parkade_policies::items(options).enumerate() {
            let key = option.split('=').next().unwrap_or(option);
            if !keys.insert(key) {
                return Err(WorkloadError::Twice { option: key.into() });
            }
            set(generator, name, (at, option), &mut reserved)?;
        }
    }
    Ok(reserved)
}

fn set(
    generator: &mut dyn Generator,
    name: &'static str,
    (at, option): (usize, &str),
    reserved: &mut Option<u64>,
) -> Result<(), WorkloadError> {
    let Some((key, text)) = option.split_once('=') else { return Err(WorkloadError::NoValue { text: option.into() }) };
    if key == PREALLOC {
        *reserved = Some(options::bytes(PREALLOC, text)?);
        return Ok(());
    }
    let keys = generator.keys();
    let Some(&known) = keys.iter().find(|known| **known == key) else {
        let allowed = keys.into_iter().chain([PREALLOC]).collect::<Vec<_>>().join(", ");
        return Err(WorkloadError::UnknownOption { generator: name, option: key.into(), allowed });
    };
    // A preset sets all other options.
    if known == "preset" && at > 0 {
        return options::refused(known, text, "only as the first option");
    }
    generator.set(known, text)
}

/// Returns the same workload after one request for `bytes` bytes that is freed immediately.
///
/// # Errors
/// Returns [`WorkloadError`] if the size is 0 or beyond [`MAX_BYTES`], or if two more events would exceed [`MAX_EVENTS`].
pub fn preallocate(workload: &Workload, bytes: u64) -> Result<Workload, WorkloadError> {
    within("prealloc", bytes, 1, MAX_BYTES)?;
    if workload.events.len() + 2 > MAX_EVENTS {
        return Err(WorkloadError::TooManyEvents);
    }
    let moved = workload.events.iter().map(|&event| match event {
        Event::Allocate { buffer, bytes, stream } => Event::Allocate { buffer: buffer + 1, bytes, stream },
        Event::Free { buffer } => Event::Free { buffer: buffer + 1 },
        Event::Use { buffer, stream } => Event::Use { buffer: buffer + 1, stream },
        other => other,
    });
    let reservation = [Event::Allocate { buffer: 0, bytes, stream: 0 }, Event::Free { buffer: 0 }];
    Ok(Workload {
        name: format!("{}-prealloc", workload.name),
        says: format!("{}; after a request for {bytes} bytes that is freed immediately", workload.says),
        events: reservation.into_iter().chain(moved).collect(),
        steps: workload.steps.iter().map(|step| step + 2).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workload_after_it_is_the_same() {
        let model = Transformer { layers: 1, hidden: 8, heads: 1, sequence: 8, vocabulary: 10, ..Transformer::default() };
        let plain = model.workload(2).unwrap();
        let behind = preallocate(&plain, 1 << 30).unwrap();
        assert_eq!(behind.check(), Ok(()));
        assert_eq!(behind.load_bytes(1), 1 << 30);
        assert_eq!(behind.curve()[2..], plain.curve());
        assert_eq!(behind.steps, [plain.steps[0] + 2, plain.steps[1] + 2]);
        assert_eq!(behind.name, "transformer-prealloc");
        for bytes in [0, u64::MAX] {
            assert!(matches!(preallocate(&plain, bytes), Err(WorkloadError::Option { option: "prealloc", .. })));
        }
    }
}
