//! Workloads as text: `transformer:layers=24,hidden=1024,checkpointing=sqrt,steps=20`.
//!
//! A generator's name, or one of the [catalogue](super::CATALOGUE), a colon, and options as `key=value` with commas between them, each key
//! once, in any order except that `preset` comes first, for it sets all others. Behind a name of the catalogue options change that workload. Every
//! workload has the option `prealloc`: that many bytes are reserved before it ([`preallocate`]).

use std::collections::BTreeSet;

use super::generator::{Generator, NAMES, generator};
use super::{CATALOGUE, Workload, WorkloadError, preallocate, value};

/// The workload that a text describes.
///
/// # Errors
/// [`WorkloadError`], naming what is wrong and what is allowed.
pub fn parse(text: &str) -> Result<Workload, WorkloadError> {
    let (name, options) = text.split_once(':').unwrap_or((text, ""));
    let named = CATALOGUE.iter().find(|workload| workload.name == name);
    let mut workload = match named {
        // The catalogue's own text comes first.
        Some(named) => {
            let (name, own) = named.text.split_once(':').unwrap_or((named.text, ""));
            made(name, &[own, options])?
        }
        None => made(name, &[options])?,
    };
    let allowed = |c: char| if c.is_ascii_alphanumeric() || "-_.=".contains(c) { c } else { '.' };
    workload.name = text.chars().map(allowed).collect();
    Ok(workload)
}

/// The keys that a generator or a workload of the catalogue has, or `None` if there is none of this name.
#[must_use]
pub fn keys(name: &str) -> Option<Vec<&'static str>> {
    let named = CATALOGUE.iter().find(|workload| workload.name == name);
    let name = named.map_or(name, |named| named.text.split(':').next().unwrap_or(named.text));
    let (_, generator) = generator(name)?;
    Some(generator.keys().into_iter().chain(["prealloc"]).collect())
}

/// The names of the generators.
pub fn generators() -> impl Iterator<Item = &'static str> {
    NAMES.into_iter()
}

fn made(name: &str, lists: &[&str]) -> Result<Workload, WorkloadError> {
    let (name, mut generator) = generator(name).ok_or_else(|| WorkloadError::UnknownWorkload {
        name: name.into(),
        allowed: CATALOGUE.iter().map(|workload| workload.name).chain(NAMES).collect::<Vec<_>>().join(", "),
    })?;
    let mut reserved = None;
    for options in lists {
        // What the catalogue says can be said otherwise behind it, but a list that says two things is a mistake.
        let mut keys = BTreeSet::new();
        for (at, option) in options.split(',').filter(|option| !option.is_empty()).enumerate() {
            let key = option.split('=').next().unwrap_or(option);
            if !keys.insert(key) {
                return Err(WorkloadError::Twice { option: key.into() });
            }
            set(&mut *generator, name, (at, option), &mut reserved)?;
        }
    }
    let workload = generator.make()?;
    match reserved {
        Some(bytes) => preallocate(&workload, bytes),
        None => Ok(workload),
    }
}

fn set(
    generator: &mut dyn Generator,
    name: &'static str,
    (at, option): (usize, &str),
    reserved: &mut Option<u64>,
) -> Result<(), WorkloadError> {
    let Some((key, text)) = option.split_once('=') else { return Err(WorkloadError::NoValue { text: option.into() }) };
    if key == "prealloc" {
        *reserved = Some(value::bytes("prealloc", text)?);
        return Ok(());
    }
    let keys = generator.keys();
    let Some(&known) = keys.iter().find(|known| **known == key) else {
        let allowed = keys.into_iter().chain(["prealloc"]).collect::<Vec<_>>().join(", ");
        return Err(WorkloadError::UnknownOption { generator: name, option: key.into(), allowed });
    };
    if known == "preset" && at > 0 {
        return Err(WorkloadError::Option { option: known, value: text.into(), allowed: "the first option only".into() });
    }
    generator.set(known, text)
}
