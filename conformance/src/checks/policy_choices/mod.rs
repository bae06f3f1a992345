//! Checks that each policy of the catalogue follows its documented rules: in every program, the policy and its
//! [reference policy](crate::reference_policies) are asked the same questions.
//!
//! The programs here reach cases that other programs rarely reach: sizes that are exactly equal to thresholds, free blocks or
//! sums of them; full devices; parameters of policies; and plans.

mod names;
mod plans;
mod programs;

use parkade::PoolSlot;
use parkade::policy::{Policy, PyTorch};
use parkade::units::{Bytes, MIB, PoolClass};
use parkade_policies::{CudaAsync, Fit, GrowingRegion, Reach, Rescue, named, needs_serial_work, settings_to_rescue};

use super::campaign::{Share, Subject};
use crate::backend::AnyBackend;
use crate::law::{Broken, Law, ensure};
use crate::program::search::{Draws, run_cases};
use crate::program::step::{profiles, texts};
use crate::reference_policies::{self as reference, names::pytorch};
use crate::suite::{Effort, Entry, Group, Verdict};

/// The maximum number of steps of a program.
const LONGEST: usize = 150;
/// Returns the entry of a policy in the catalogue.
pub(super) fn entry(subject: &Subject, share: Share) -> Entry {
    let says = "every choice of the policy follows its documented rules";
    let subject = subject.clone();
    Entry::new(Group::Law, format!("policy/{}/choices", subject.name), says, move |backend, effort| {
        let effort = share.of(effort);
        // Our own policies have more rules than others.
        let times = if needs_serial_work(&subject.name) { 3 } else { 1 };
        check(&subject, backend, &Effort { cases: effort.cases * times, ..effort })
    })
}

/// Returns the entries about parameters, plans and names.
pub(super) fn entries(share: Share) -> Vec<Entry> {
    let says = "whatever the policy's parameters are, its choices follow its documented rules";
    let with_parameters = [thresholds(), handles(), rescues()].into_iter().map(|subject| {
        Entry::new(Group::Law, format!("policy/{}", subject.name), says, move |backend, effort| {
            check_extreme_handles()?;
            check(&subject, backend, &share.of(effort))
        })
    });
    with_parameters.chain([plans::entry(share), names::entry(share), lending(share)]).collect()
}

/// Returns the entry about the memory that the default pool lends.
fn lending(share: Share) -> Entry {
    let says = "private pools take the memory of the default pool that the rules name, also among equal blocks";
    let compaction = named("compaction").expect("a policy of the catalogue");
    let subject = Subject::of(&compaction);
    Entry::new(Group::Law, format!("policy/{}/lending", subject.name), says, move |backend, effort| {
        run_cases(&share.of(effort), programs::SALT + 1, programs::lending(), |(setup, steps)| {
            subject.whole_run(backend, setup, steps).map(|_| steps.len() as u64)
        })
    })
}

fn check(subject: &Subject, backend: &AnyBackend, effort: &Effort) -> Verdict {
    let effort = Effort { cases: effort.cases * programs::TIMES, ..*effort };
    run_cases(&effort, programs::SALT, programs::deciding(LONGEST), |(setup, steps)| {
        programs::play(subject, backend, setup, steps)
    })
}

/// Returns cudaMallocAsync's pool with any release threshold.
fn thresholds() -> Subject {
    let threshold = |seed: u64| {
        let mut draws = Draws::new(seed);
        let whole = draws.below(12) * 16 * MIB;
        [whole, whole.saturating_sub(1), whole + 1, draws.below(256 * MIB)][draws.below(4) as usize]
    };
    Subject::new("cuda-async/thresholds", move |seed| CudaAsync::new(Bytes(threshold(seed))))
        .beside(move |setup| Some(Box::new(reference::CudaAsync::new(threshold(setup.policy_seed)))))
}

/// Returns every fit with handles of any size.
fn handles() -> Subject {
    let drawn = |seed: u64| {
        let mut draws = Draws::new(seed);
        let fit = [Fit::Best, Fit::First, Fit::Next, Fit::Worst][draws.below(4) as usize];
        let sizes = [0, 1, 2 * MIB, 2 * MIB + 1, 4 * MIB, 6 * MIB - 1, 20 * MIB, 64 * MIB, 1 << 40];
        (fit, sizes[draws.below(sizes.len() as u64) as usize])
    };
    let tested = move |seed| {
        let (fit, page) = drawn(seed);
        GrowingRegion::new(fit).with_page(Bytes(page))
    };
    Subject::new("best-fit-remap/handles", tested).beside(move |setup| {
        let (fit, page) = drawn(setup.policy_seed);
        Some(Box::new(reference::GrowingRegion::new(fit, page)))
    })
}

/// Checks sizes of handles that no device supports.
fn check_extreme_handles() -> Result<(), Broken> {
    let pool = PoolSlot::default_pool(PoolClass::Large);
    for bytes in [u64::MAX, u64::MAX - 2 * MIB + 1, u64::MAX - 2 * MIB, u64::MAX / 2 + 2] {
        let tested = GrowingRegion::new(Fit::Best).with_page(Bytes(bytes)).page(pool);
        let reference = reference::GrowingRegion::new(Fit::Best, bytes).page(pool);
        ensure(Law::Choices, tested == reference, || {
            format!("handles of {bytes} bytes become {tested} instead of {reference} bytes")
        })?;
    }
    Ok(())
}

/// Returns the rescue under the rules of any release, with any settings, reach and maximum.
fn rescues() -> Subject {
    Subject::new("pytorch-rescue/rules", |seed| {
        let drawn = DrawnRescue::new(seed);
        let rules = pytorch(Some(drawn.release), drawn.text);
        let settings = match settings_to_rescue(Policy::profile(&rules), drawn.text) {
            Ok(Some(settings)) => settings,
            // The settings disable expandable segments, so nothing is ever rescued.
            _ => rules.settings.clone(),
        };
        Rescue::new(PyTorch::of(Policy::profile(&rules), settings), drawn.reach).at_most(drawn.most)
    })
    .beside(|setup| {
        let drawn = DrawnRescue::new(setup.policy_seed);
        let disables = drawn.text.contains("expandable_segments:False");
        let prefix = if disables { "" } else { "expandable_segments:True," };
        let rules = pytorch(Some(drawn.release), &format!("{prefix}{}", drawn.text));
        Some(Box::new(reference::Rescue::new(rules, drawn.reach, drawn.most)))
    })
}

/// The parameters of a rescue.
struct DrawnRescue {
    release: &'static str,
    text: &'static str,
    reach: Option<Reach>,
    most: u64,
}

impl DrawnRescue {
    fn new(seed: u64) -> DrawnRescue {
        let mut draws = Draws::new(seed);
        let mut any = |bound: usize| draws.below(bound as u64) as usize;
        let profile = profiles().nth(any(profiles().count())).expect("the number is below the count");
        let known = texts(profile);
        DrawnRescue {
            release: profile.name,
            text: if any(2) == 0 { "" } else { known[any(known.len())] },
            reach: [None, Some(Reach::Free), Some(Reach::Breaks), Some(Reach::Breaks)][any(4)],
            most: [0, 1, 2, 2, 3, u64::MAX][any(6)],
        }
    }
}
