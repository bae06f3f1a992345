//! The reference policies: a second implementation of every policy in the catalogue, written from the documented rules.
//!
//! They are plain and slow: they scan the heap's lists from end to end and share no code with the policies. [`Paired`] asks a
//! policy and its reference policy the same questions about the same heap, and keeps the first difference between their answers.
//! For PyTorch's own policy, there is a reference allocator instead ([`reference_model`](crate::reference_model)).

mod bfc;
mod compaction;
mod cuda_async;
mod gmlake;
mod growing_region;
mod handles;
mod lists;
pub(crate) mod names;
mod paired;
mod rescue;
mod rmm_pool;
mod stalloc;

use parkade::policy::{Policy, PyTorch};
use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade_policies::{BfcKind, Fit, Reach};

pub(crate) use cuda_async::CudaAsync;
pub(crate) use gmlake::GmLake;
pub(crate) use growing_region::GrowingRegion;
pub(crate) use paired::{Choices, Paired};
pub(crate) use rescue::Rescue;
pub(crate) use stalloc::{Plan, Stalloc};

/// Returns the reference policy with this name, which must be written in the form that the catalogue uses, from the tables in
/// `docs/policies.md`.
pub(crate) fn reference(name: &str) -> Option<Box<dyn Policy>> {
    let (base, text) = name.split_once(':').unwrap_or((name, ""));
    let value = |key: &str| parameter(text, key);
    Some(match base {
        "pytorch" => Box::new(pytorch(value("release"), value("settings").unwrap_or(""))),
        "pytorch-expandable" => Box::new(pytorch(None, "expandable_segments:True")),
        "pytorch-rescue" => {
            let settings = format!("expandable_segments:True,{}", value("settings").unwrap_or(""));
            let reach = if value("reach") == Some("free") { Reach::Free } else { Reach::Breaks };
            Box::new(Rescue::new(pytorch(value("release"), &settings), Some(reach), u64::MAX))
        }
        "best-fit-remap" => {
            let fit = match value("fit") {
                Some("first") => Fit::First,
                Some("next") => Fit::Next,
                Some("worst") => Fit::Worst,
                _ => Fit::Best,
            };
            Box::new(GrowingRegion::new(fit, value("handle").map_or(2 << 20, size)))
        }
        "bfc" => {
            let kind = match value("kind") {
                Some("one-region") => BfcKind::OneRegion,
                Some("xla") => BfcKind::Xla,
                Some("xla-growth") => BfcKind::XlaGrowth,
                _ => BfcKind::Growth,
            };
            Box::new(bfc::Bfc::new(kind, value("waste").map_or(128 << 20, size)))
        }
        "rmm-pool" => Box::new(rmm_pool::RmmPool::new(
            value("initial_percent").map_or(50, |percent| percent.parse().expect("the name has a valid number")),
        )),
        "cuda-async" => Box::new(CudaAsync::new(value("threshold").map_or(u64::MAX, size))),
        "gmlake-like" => Box::new(GmLake::new(value("fragment").map_or(512 << 20, size))),
        "stalloc" => Box::new(Stalloc::new(Plan::default())),
        "compaction" => {
            Box::new(compaction::Compaction::new(value("first").map_or(384 << 20, size), value("most").map_or(512 << 20, size)))
        }
        _ => return None,
    })
}

/// Returns PyTorch's rules with these settings, in 2.11 if no release is given.
pub(crate) fn pytorch(release: Option<&str>, settings: &str) -> PyTorch {
    let profile = Profile::of(release.unwrap_or("2.11")).expect("the name has a known release");
    let settings = Settings::from_environment_as(&profile.dialect, settings);
    PyTorch::of(profile, settings.expect("the name has valid settings"))
}

/// Returns the value of a parameter, without the brackets around it.
fn parameter<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let start = text.match_indices(key).map(|(place, _)| place).find(|&place| {
        let depth = text[..place].matches('[').count() - text[..place].matches(']').count();
        depth == 0 && (place == 0 || text[..place].ends_with(';')) && text[place + key.len()..].starts_with('=')
    })?;
    let value = &text[start + key.len() + 1..];
    match value.strip_prefix('[') {
        Some(inside) => {
            let mut depth = 1;
            let end = inside.find(|letter| {
                depth += i32::from(letter == '[') - i32::from(letter == ']');
                depth == 0
            });
            end.map(|end| &inside[..end])
        }
        None => value.split(';').next(),
    }
}

/// Returns the bytes of a size such as `20MiB`.
fn size(text: &str) -> u64 {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let number: u64 = digits.parse().expect("the name has a valid size");
    let unit = ["B", "KiB", "MiB", "GiB", "TiB"].iter().position(|unit| text[digits.len()..] == **unit);
    number << (10 * unit.expect("the name has a valid unit"))
}
