//! What is kept of the advice on one rank: each setting that was tried, in a few numbers, whatever the recording's size.

use parkade::profile::Profile;
use rayon::prelude::*;

use crate::advise::{Advice, AdvisedOption, DeviceOutcome, Outcome, Verdict};
use crate::caution::Caution;

/// One setting, tried on one rank.
#[derive(Clone, Debug)]
pub struct Tried {
    /// The settings, as in `PYTORCH_CUDA_ALLOC_CONF`.
    pub settings: String,
    /// Whether every recorded request is served.
    pub serves: bool,
    /// Whether the last page of an expandable segment reaches beyond the memory, which a limit allows and a device does not.
    pub reaches_beyond: bool,
    /// Whether the rank's program fits.
    pub outcome: Outcome,
    /// The least memory in which everything is served; if the rank's devices have different ones, so much that of the least of these as
    /// much is left as on the tightest device.
    pub needs_bytes: u64,
    /// The least memory for each of its devices in which everything is served.
    pub enough_bytes: u64,
    /// What the driver calls cost, in microseconds.
    pub driver_us: u64,
    /// How many keys the settings set.
    pub keys: usize,
    /// Whether segments are expandable.
    pub is_expandable: bool,
    /// Whether a part of the settings works only under a memory limit.
    pub needs_limit: bool,
    /// What it breaks in this rank's program.
    pub warnings: Vec<Caution>,
}

impl Tried {
    fn of(advice: &Advice, place: usize, option: &AdvisedOption) -> Tried {
        // What is live at once exceeds the memory, whatever the last page of an expandable segment hides.
        let is_hopeless = advice.verdict == Verdict::Capacity;
        Tried {
            settings: option.settings.text.clone(),
            serves: option.gets_past() && !is_hopeless,
            reaches_beyond: option.reaches_beyond(),
            outcome: if is_hopeless { advice.outcome } else { advice.outcome_with(place) },
            needs_bytes: needs_bytes(option),
            enough_bytes: option.smallest_capacity_bytes(),
            driver_us: option.driver_us(),
            keys: option.keys(),
            is_expandable: option.settings.expandable_segments,
            needs_limit: option.needs_limit(),
            warnings: option.warnings().copied().collect(),
        }
    }
}

fn needs_bytes(option: &AdvisedOption) -> u64 {
    let available = || option.devices.iter().filter_map(|device| device.available_bytes);
    let left = |device: &DeviceOutcome| Some(i128::from(device.available_bytes?) - i128::from(device.smallest_bytes));
    match (option.available_bytes, option.devices.iter().filter_map(left).min()) {
        (Some(least), Some(left)) if available().any(|bytes| bytes != least) => {
            u64::try_from(i128::from(least) - left).unwrap_or(0)
        }
        _ => option.smallest_capacity_bytes(),
    }
}

/// What is known of one rank: its memory, and what was tried.
#[derive(Clone, Debug)]
pub struct RankAdvice {
    /// The PyTorch release whose decisions were made.
    pub profile: &'static Profile,
    /// The rank's memory, given or shown by an out-of-memory error. `None` if it is not known.
    pub available_bytes: Option<u64>,
    /// The most bytes that its recorded run reserved.
    pub reserved_bytes: u64,
    /// All that was tried. The first is the recorded run's own settings; the others come by usefulness.
    pub tried: Vec<Tried>,
    /// Whether its run died and what is needed includes an estimate of the rest.
    pub is_estimated: bool,
    /// The place of the settings that are best for this rank alone.
    pub best: Option<usize>,
}

impl RankAdvice {
    /// What is kept of a rank's advice.
    #[must_use]
    pub fn of(advice: &Advice) -> RankAdvice {
        RankAdvice {
            profile: advice.profile,
            available_bytes: advice.own().available_bytes,
            reserved_bytes: advice.programs.iter().map(|program| program.reserved_bytes).max().unwrap_or(0),
            tried: advice.options.par_iter().enumerate().map(|(place, option)| Tried::of(advice, place, option)).collect(),
            is_estimated: advice.programs.iter().any(|program| program.died() && program.continuation.is_some()),
            best: advice.recommendation.as_ref().map(|recommendation| recommendation.option),
        }
    }

    /// Adds what a later search on the same rank tried and this one had not.
    pub fn add(&mut self, later: &Advice) {
        for tried in RankAdvice::of(later).tried {
            if self.with(&tried.settings).is_none() {
                self.tried.push(tried);
            }
        }
    }

    /// These settings on this rank, if they were tried.
    #[must_use]
    pub fn with(&self, settings: &str) -> Option<&Tried> {
        self.tried.iter().find(|tried| tried.settings == settings)
    }

    /// The recorded run's own settings.
    #[must_use]
    pub fn own(&self) -> Option<&Tried> {
        self.tried.first()
    }

    /// The rank's memory: its own, or what is assumed for ranks that do not show theirs, but at least what it reserved.
    #[must_use]
    pub fn judged_by(&self, assumed_bytes: Option<u64>) -> Option<u64> {
        self.available_bytes.or(assumed_bytes.map(|assumed| assumed.max(self.reserved_bytes)))
    }

    /// What is best for this rank alone.
    #[must_use]
    pub fn best(&self) -> Option<&Tried> {
        self.tried.get(self.best?)
    }
}
