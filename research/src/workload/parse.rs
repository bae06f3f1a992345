//! Descriptions of workloads: `transformer:layers=24,hidden=1024,checkpointing=sqrt,steps=20`.
//!
//! A description is the name of a generator or of a workload of the [catalogue](super::CATALOGUE), a colon, and
//! options as `key=value` separated by commas. No key may come twice; the order does not matter, except that
//! `preset` comes first, because it sets all other options. Options after a name of the catalogue change that
//! workload. Every workload has the option `prealloc`: so many bytes are requested and freed before it
//! ([`preallocate`](super::generators::preallocate)).

use super::event::Workload;
use super::generators::transformer::Transformer;
use super::generators::{self, WorkloadError};
use super::study_workloads::{CATALOGUE, named};

/// Makes the workload of a description. Its name is the description, with characters replaced that a name cannot
/// have.
///
/// # Errors
/// [`WorkloadError`] names what is wrong and what is allowed.
pub fn parse(text: &str) -> Result<Workload, WorkloadError> {
    let (name, options) = text.split_once(':').unwrap_or((text, ""));
    let made = match named(name) {
        Some(named) => {
            let (generator, own) = named.generator_and_options();
            generators::make(generator, &[own, options])
        }
        None => generators::make(name, &[options]),
    };
    let mut workload = made.unwrap_or_else(|| {
        let known = CATALOGUE.iter().map(|workload| workload.name).chain(generators::names());
        Err(WorkloadError::UnknownWorkload { name: name.into(), allowed: known.collect::<Vec<_>>().join(", ") })
    })?;
    let allowed = |c: char| if c.is_ascii_alphanumeric() || "-_.=".contains(c) { c } else { '.' };
    workload.name = text.chars().map(allowed).collect();
    Ok(workload)
}

/// The transformer that a description trains, and the number of its steps; `None` if it is no description of a
/// `transformer`.
///
/// # Errors
/// [`WorkloadError`] names the option that is wrong and what is allowed.
#[must_use]
pub fn transformer(text: &str) -> Option<Result<(Transformer, u64), WorkloadError>> {
    let (name, options) = text.split_once(':').unwrap_or((text, ""));
    let (generator, own) = named(name).map_or((name, ""), |named| named.generator_and_options());
    (generator == generators::TRANSFORMER).then(|| generators::transformer_of(&[own, options]))
}

/// The keys of the options of a generator or of a workload of the catalogue; `None` if there is none of this name.
#[must_use]
pub fn keys(name: &str) -> Option<Vec<&'static str>> {
    let generator = named(name).map_or(name, |named| named.generator_and_options().0);
    generators::keys(generator)
}

/// The names of the generators.
pub fn generator_names() -> impl Iterator<Item = &'static str> {
    generators::names()
}
