//! All generators by name, and how one is made from options given as text.

use std::collections::BTreeSet;

use super::chain::DescribedChain;
use super::described_adversaries::{Pattern, RobsonAgainst};
use super::error::WorkloadError;
use super::generator::{Generator, Key, Trained};
use super::models::alternate::Alternate;
use super::models::cnn::Cnn;
use super::models::graphs::Graphs;
use super::models::mlp::Mlp;
use super::models::prefetch::Prefetch;
use super::models::transformer::Transformer;
use super::models::varlen::Varlen;
use super::prealloc::preallocate;
use super::serving::Serving;
use super::values;
use crate::workload::Workload;

/// Makes a generator with its default options.
type Default = fn() -> Box<dyn Generator>;

/// The generator of [`transformer`].
pub(in crate::workload) const TRANSFORMER: &str = "transformer";

/// All generators, in the order in which messages name them. One that is not here is not found by name.
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
    ("robson", || Box::new(RobsonAgainst::new("first-fit-remap"))),
    ("comb", || Box::new(Pattern::comb())),
    ("fence", || Box::new(Pattern::fence())),
    ("stream-per-buffer", || Box::new(Pattern::stream_per_buffer())),
];

/// The option that every generator has beside its own: bytes that are requested before the workload
/// ([`preallocate`]).
const PREALLOC: Key = "prealloc";

/// The names of the generators.
pub(in crate::workload) fn names() -> impl Iterator<Item = &'static str> {
    ALL.into_iter().map(|(name, _)| name)
}

/// The keys of a generator's options; `None` if there is no generator of this name.
pub(in crate::workload) fn keys(name: &str) -> Option<Vec<Key>> {
    let (_, default) = ALL.into_iter().find(|(known, _)| *known == name)?;
    Some(default().keys().into_iter().chain([PREALLOC]).collect())
}

/// Makes a workload from lists of options, `key=value` separated by commas. A later list overrides an earlier one;
/// within a list no key may come twice. `None` if there is no generator of this name.
pub(in crate::workload) fn make(name: &str, lists: &[&str]) -> Option<Result<Workload, WorkloadError>> {
    let (name, default) = ALL.into_iter().find(|(known, _)| *known == name)?;
    Some(configured(name, default(), lists))
}

/// The transformer that lists of options describe, as for [`make`], and the number of its steps.
pub(in crate::workload) fn transformer(lists: &[&str]) -> Result<(Transformer, u64), WorkloadError> {
    let mut trained = Trained { model: Transformer::default(), steps: 20 };
    match set_all(TRANSFORMER, &mut trained, lists)? {
        Some(bytes) => values::refused(PREALLOC, &bytes.to_string(), "nothing where the batch is searched for"),
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

/// Sets all options, and returns the bytes of [`PREALLOC`].
fn set_all(name: &'static str, generator: &mut dyn Generator, lists: &[&str]) -> Result<Option<u64>, WorkloadError> {
    let mut reserved = None;
    for options in lists {
        let mut keys = BTreeSet::new();
        for (at, option) in options.split(',').filter(|option| !option.is_empty()).enumerate() {
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
        *reserved = Some(values::bytes(PREALLOC, text)?);
        return Ok(());
    }
    let keys = generator.keys();
    let Some(&known) = keys.iter().find(|known| **known == key) else {
        let allowed = keys.into_iter().chain([PREALLOC]).collect::<Vec<_>>().join(", ");
        return Err(WorkloadError::UnknownOption { generator: name, option: key.into(), allowed });
    };
    // A preset sets all other options.
    if known == "preset" && at > 0 {
        return values::refused(known, text, "only as the first option");
    }
    generator.set(known, text)
}
