//! Checks the names of policies: each name, with any parameters in any order, leads to the rules that `docs/policies.md` states
//! and to a single form of the name, each grid of names lists every combination once, and wrong names are refused.

use parkade_policies::{BESIDE, CATALOGUE, ENTRIES, Policies, base, named, needs_serial_work, pools_are_allocators};
use proptest::prelude::*;

use super::grammar;
use super::programs::{SALT, TIMES, deciding, play};
use crate::backend::AnyBackend;
use crate::checks::campaign::{Share, Subject};
use crate::drawn::Draws;
use crate::law::{Broken, Law, ensure};
use crate::program::search::{Stopped, run_cases};
use crate::reference_policies::reference;
use crate::suite::{Effort, Entry, Group, Verdict};

pub(super) fn entry(share: Share) -> Entry {
    let says = "every name or grid of names leads to the documented rules, however it is written, and wrong names are refused";
    Entry::new(Group::Law, "policy/names", says, move |backend, effort| {
        check_listed()?;
        grammar::check(&Draws { cases: effort.cases, seed: effort.seed }, SALT + 6)?;
        check_largest_grid()?;
        check_drawn(backend, &share.of(effort))
    })
}

fn holds(holds: bool, says: impl FnOnce() -> String) -> Result<(), Broken> {
    ensure(Law::Choices, holds, says)
}

/// A parameter as it is written, and as it is in the policy's name; empty if the name omits it.
type Written = (&'static str, &'static str);

/// A key, and its values.
type Values = (&'static str, &'static [Written]);

/// The parameters of each policy.
const NAMES: [(&str, &[Values]); 9] = [
    (
        "pytorch",
        &[
            (
                "release",
                &[("2.11", ""), ("2.11.0+cu130", ""), ("2.15.0", "2.15"), ("2.15", "2.15"), ("2.1.2", "2.1"), ("2.6", "2.6")],
            ),
            (
                "settings",
                &[
                    ("[]", ""),
                    ("[expandable_segments:False]", ""),
                    ("[max_split_size_mb:21]", "[max_split_size_mb:21]"),
                    ("max_split_size_mb:32", "[max_split_size_mb:32]"),
                    ("[ roundup_power2_divisions:[256:1,512:2,>:4] ]", "[roundup_power2_divisions:[256:1,512:2,>:4]]"),
                    ("[garbage_collection_threshold:0.6]", "[garbage_collection_threshold:0.6]"),
                ],
            ),
        ],
    ),
    (
        "pytorch-rescue",
        &[
            ("release", &[("2.11.0", ""), ("2.15", "2.15"), ("2.5", "2.5")]),
            ("settings", &[("[expandable_segments:True]", ""), ("[]", ""), ("[max_split_size_mb:24]", "[max_split_size_mb:24]")]),
            ("reach", &[("breaks", ""), ("free", "free")]),
        ],
    ),
    (
        "best-fit-remap",
        &[
            ("fit", &[("best", ""), ("first", "first"), ("next", "next"), ("worst", "worst")]),
            (
                "handle",
                &[
                    ("2MiB", ""),
                    ("4MiB", "4MiB"),
                    ("8MiB", "8MiB"),
                    ("16MiB", "16MiB"),
                    ("20MiB", "20MiB"),
                    ("32MiB", "32MiB"),
                    ("64MiB", "64MiB"),
                    ("128MiB", "128MiB"),
                    ("256MiB", "256MiB"),
                    ("512MiB", "512MiB"),
                    ("1GiB", "1GiB"),
                ],
            ),
        ],
    ),
    (
        "bfc",
        &[
            ("kind", &[("growth", ""), ("one-region", "one-region"), ("xla", "xla"), ("xla-growth", "xla-growth")]),
            ("waste", &[("128MiB", ""), ("131072KiB", ""), ("256B", "256B"), ("2MiB", "2MiB"), ("1024MiB", "1GiB")]),
        ],
    ),
    ("rmm-pool", &[("initial_percent", &[("50", ""), ("0", "0"), ("1", "1"), ("33", "33"), ("100", "100")])]),
    (
        "cuda-async",
        &[("threshold", &[("unlimited", ""), ("0B", "0B"), ("32MiB", "32MiB"), ("98304KiB", "96MiB"), ("16TiB", "16TiB")])],
    ),
    ("gmlake-like", &[("fragment", &[("512MiB", ""), ("2MiB", "2MiB"), ("5000KiB", "5000KiB"), ("1024MiB", "1GiB")])]),
    ("stalloc", &[]),
    (
        "compaction",
        &[
            ("first", &[("384MiB", ""), ("8MiB", "8MiB"), ("9MiB", "9MiB"), ("1024MiB", "1GiB")]),
            ("most", &[("512MiB", ""), ("8MiB", "8MiB"), ("30MiB", "30MiB"), ("16GiB", "16GiB")]),
        ],
    ),
];

/// Checks the lists of policies and parameters, and the facts about each policy.
fn check_listed() -> Result<(), Broken> {
    let all: Vec<&str> = CATALOGUE.iter().map(|named| &*named.name).collect();
    let beside: Vec<&str> = BESIDE.iter().map(|named| &*named.name).collect();
    holds(all.len() == 16 && beside == ["pytorch-rescue", "pytorch-rescue:reach=free", "compaction"], || {
        format!("the catalogue has {all:?}, and beside it {beside:?}")
    })?;
    for listed in CATALOGUE.iter().chain(BESIDE) {
        let name = &*listed.name;
        let found = named(name).map(|found| found.name);
        holds(found.as_deref() == Ok(name), || format!("{name:?} leads to {found:?}"))?;
        check_facts(name, listed.keeps_memory())?;
        holds(reference(name).is_some(), || format!("{name:?} has no reference policy"))?;
    }
    for (policy, parameter) in ENTRIES.iter().flat_map(|entry| entry.parameters.iter().map(|parameter| (entry.name, parameter))) {
        let keys = NAMES.iter().find(|(name, _)| *name == policy).map(|(_, keys)| *keys).unwrap_or_default();
        let values = keys.iter().find(|(key, _)| *key == parameter.key).map(|(_, values)| *values).unwrap_or_default();
        let usual = values.iter().find(|(written, short)| short.is_empty() && *written == parameter.usual);
        let is_usual = usual.is_some() || parameter.key == "settings" || parameter.usual == "2.11";
        holds(!values.is_empty() && is_usual, || format!("{parameter:?} is not documented"))?;
        let listed: Vec<&str> = values.iter().map(|(written, _)| *written).collect();
        holds(parameter.choices().is_empty() || parameter.choices() == listed, || {
            format!("{parameter:?}, but documented: {listed:?}")
        })?;
    }
    Ok(())
}

/// Checks the facts that follow from a policy's name.
fn check_facts(name: &str, keeps_memory: bool) -> Result<(), Broken> {
    let stem = name.split(':').next().unwrap_or_default();
    let moves_only_free = name.ends_with("reach=free");
    let is_serial = stem == "compaction" || stem == "pytorch-rescue" && !moves_only_free;
    let facts = (base(name), needs_serial_work(name), pools_are_allocators(name), keeps_memory);
    let keeps = stem == "rmm-pool" || stem == "bfc" && name.contains("kind=");
    let expected = (stem, is_serial, ["bfc", "rmm-pool"].contains(&stem), keeps);
    holds(facts == expected, || {
        format!("{name:?}: base, serial work, pools as allocators and keeping memory are {facts:?} instead of {expected:?}")
    })
}

/// A name as a user may write it, and in the catalogue's form.
type Name = (String, String);

/// Returns names with any parameters, in any order.
fn any_name() -> impl Strategy<Value = Name> {
    let picks = prop::collection::vec((any::<prop::sample::Index>(), prop::bool::weighted(0.7)), 3);
    // The more values its parameters have, the more often a policy is drawn.
    let policies =
        NAMES.iter().flat_map(|&named| vec![named; named.1.iter().map(|(_, values)| values.len()).sum::<usize>().max(1)]);
    (prop::sample::select(policies.collect::<Vec<_>>()), picks, any::<bool>(), any::<bool>()).prop_map(
        |((base, keys), picks, turned, spaced)| {
            let chosen = keys.iter().zip(picks).filter(|(_, (_, is_given))| *is_given);
            let chosen: Vec<(&str, Written)> =
                chosen.map(|((key, values), (pick, _))| (*key, values[pick.index(values.len())])).collect();
            let mut written: Vec<String> = chosen.iter().map(|(key, (value, _))| format!("{key}={value}")).collect();
            if turned {
                written.reverse();
            }
            let short: Vec<String> = chosen
                .iter()
                .filter(|(_, (_, value))| !value.is_empty())
                .map(|(key, (_, value))| format!("{key}={value}"))
                .collect();
            let joint = if spaced { " ; " } else { ";" };
            let text = if written.is_empty() { base.to_owned() } else { format!("{base}:{}", written.join(joint)) };
            let name = if short.is_empty() { base.to_owned() } else { format!("{base}:{}", short.join(";")) };
            (text, name)
        },
    )
}

/// Checks drawn names, each in a program.
fn check_drawn(backend: &AnyBackend, effort: &Effort) -> Verdict {
    let case = (any_name(), deciding(60)).prop_map(|(name, (setup, steps))| (setup, steps, name));
    let effort = Effort { cases: effort.cases * TIMES, ..*effort };
    run_cases(&effort, SALT + 2, case, |(setup, steps, (text, name))| {
        let broken = |broken: Broken| Stopped::Broken(broken, String::new());
        let found = named(text).map_err(|error| broken(Broken::new(Law::Choices, format!("{text:?}: {error}"))))?;
        holds(found.name == *name, || format!("{text:?} leads to {:?} instead of {name:?}", found.name)).map_err(broken)?;
        check_facts(name, found.keeps_memory()).map_err(broken)?;
        play(&Subject::of(&found), backend, setup, steps)
    })
}

/// Checks the largest grid, and one with one more value.
fn check_largest_grid() -> Result<(), Broken> {
    let kinds = ["growth", "xla"].into_iter().cycle().take(100).collect::<Vec<_>>().join("/");
    for (count, expected) in [(100, Some(2)), (101, None)] {
        let found = Policies::default().grid(&format!("bfc:kind={kinds};waste={}", vec!["128MiB"; count].join("/")));
        let seen = found.as_ref().ok().map(Vec::len);
        holds(seen == expected, || {
            format!("a grid of 100 by {count} values leads to {seen:?} policies instead of {expected:?}")
        })?;
    }
    Ok(())
}
