//! Which of the options to recommend.
//!
//! The recorded run's own settings, if they fit with more than 1 % to spare. Otherwise, of those that fit and need at most 1 % more
//! memory than the one that needs least, the one with the fewest settings; then the one that needs least. Options that break
//! something the program uses, or whose driver calls cost out of all proportion, only if nothing else fits.

use super::search::AdvisedOption;

/// An option that costs this many times the driver time of the cheapest one that fits ...
const THRASHING_TIMES: u64 = 20;
/// ... and at least a second is recommended only if nothing else fits.
const THRASHING_US: u64 = 1_000_000;

/// Why an option is recommended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// The program fits as it is.
    FitsAsItIs,
    /// It fits, and the recorded run's own settings do not, or hardly.
    Fits,
    /// No memory was given, and it needs the least.
    NeedsLeast,
}

/// What to do.
#[derive(Clone, PartialEq, Debug)]
pub struct Recommendation {
    /// The option's place in the report.
    pub option: usize,
    /// Why.
    pub reason: Reason,
    /// The line to paste.
    pub line: String,
}

/// Chooses from the options, of which the first is the recorded run's own. `certain` says of an option whether it fits however soon other
/// streams are done.
pub(super) fn choose(options: &[AdvisedOption], certain: &dyn Fn(&AdvisedOption) -> bool) -> Option<Recommendation> {
    let fitting: Vec<usize> = (0..options.len()).filter(|&place| options[place].fits()).collect();
    let cheapest = fitting.iter().map(|&place| options[place].driver_us()).min()?;
    let thrashes = |option: &AdvisedOption| option.driver_us() > (cheapest * THRASHING_TIMES).max(THRASHING_US);
    let is_good = |option: &AdvisedOption| option.cautions.is_empty() && !thrashes(option);
    let own = options.first()?;
    let without_caution: Vec<usize> = fitting.iter().copied().filter(|&place| options[place].cautions.is_empty()).collect();
    let good: Vec<usize> = fitting.iter().copied().filter(|&place| is_good(&options[place])).collect();
    let eligible = [good, without_caution, fitting].into_iter().find(|places| !places.is_empty())?;
    if own.available_bytes.is_some() && own.fits() && eligible.contains(&0) && !own.is_close() && certain(own) {
        return Some(recommend(options, 0, Reason::FitsAsItIs));
    }
    let least = eligible.iter().map(|&place| options[place].smallest_capacity_bytes()).min()?;
    let near = |option: &AdvisedOption| option.smallest_capacity_bytes() <= least + least / 100;
    let mut best: Vec<usize> = eligible.into_iter().filter(|&place| near(&options[place])).collect();
    best.sort_by_key(|&place| {
        let option = &options[place];
        (option.keys(), !option.is_own, option.smallest_capacity_bytes(), option.driver_us(), place)
    });
    let place = best.iter().copied().find(|&place| certain(&options[place])).or(best.first().copied())?;
    let reason = match own.available_bytes {
        None => Reason::NeedsLeast,
        Some(_) if place == 0 => Reason::FitsAsItIs,
        Some(_) => Reason::Fits,
    };
    Some(recommend(options, place, reason))
}

fn recommend(options: &[AdvisedOption], option: usize, reason: Reason) -> Recommendation {
    let text = &options[option].settings.text;
    let is_plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "_:.,-".contains(c));
    let line = match text.as_str() {
        "" => "unset PYTORCH_CUDA_ALLOC_CONF".to_owned(),
        text if is_plain => format!("export PYTORCH_CUDA_ALLOC_CONF={text}"),
        text => format!("export PYTORCH_CUDA_ALLOC_CONF='{}'", text.replace('\'', "'\\''")),
    };
    Recommendation { option, reason, line }
}
