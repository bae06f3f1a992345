//! Decides which option to recommend.
//!
//! The recorded run's own settings are recommended if they fit with more than 1 % to spare and without releasing the cache.
//! If they do not, the widest margin takes priority, because the next run will not repeat the sequence exactly: the
//! candidates are the options that fit and need about as much memory as the one that needs the least ([`tolerance_bytes`]
//! returns how much more is allowed). Among these, options whose driver calls cost much more than those of others are
//! discarded; then the option with the fewest keys wins, then the one that needs the least memory. An option that breaks
//! something the program uses, or spends far too long in the driver, is recommended only if nothing else fits. If the program
//! died and no option serves its estimated rest, the options that serve the request it died on are compared in the same way.
//!
//! The same measures compare options for one program and settings for all ranks of a job: whether two are equally good in
//! memory ([`tolerance_bytes`]) and in driver time ([`is_costly`]).

use super::advised_option::AdvisedOption;

/// An option thrashes if its driver time is more than this many times that of the cheapest option that fits, and more than
/// [`THRASHING_US`].
const THRASHING_TIMES: u64 = 20;
/// An option thrashes only if its driver time is more than this: one second.
const THRASHING_US: u64 = 1_000_000;

/// The reason why an option is recommended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// The program fits under its own settings.
    FitsAsItIs,
    /// The option fits. The recorded run's own settings do not fit, or fit only barely, or only because the cache is
    /// released.
    Fits,
    /// The option serves the request that the recorded run died on, but not all of the estimated rest.
    GetsPast,
    /// The available memory is unknown, and this option needs the least.
    NeedsLeast,
}

/// The option to use.
#[derive(Clone, PartialEq, Debug)]
pub struct Recommendation {
    /// Its index in [`Advice::options`](super::Advice::options).
    pub option: usize,
    /// The reason for it.
    pub reason: Reason,
    /// The shell command that sets it, ready to paste.
    pub line: String,
}

/// Returns the options to choose from, best first: those that fit and need about as much memory as the one that needs the
/// least.
pub(super) fn shortlist(options: &[AdvisedOption]) -> Vec<usize> {
    let fitting: Vec<usize> = (0..options.len()).filter(|&place| options[place].fits()).collect();
    let past = || (0..options.len()).filter(|&place| options[place].gets_past()).collect();
    let fitting = if fitting.is_empty() { past() } else { fitting };
    let within: Vec<usize> = fitting.iter().copied().filter(|&place| !options[place].reaches_beyond()).collect();
    let fitting = if within.is_empty() { fitting } else { within };
    let cheapest = fitting.iter().map(|&place| options[place].driver_us()).min().unwrap_or(0);
    let thrashes = |option: &AdvisedOption| option.driver_us() > (cheapest * THRASHING_TIMES).max(THRASHING_US);
    let is_safe = |&place: &usize| !options[place].has_warnings();
    let good = fitting.iter().copied().filter(|place| is_safe(place) && !thrashes(&options[*place])).collect();
    let safe = fitting.iter().copied().filter(is_safe).collect();
    let eligible: Vec<usize> =
        [good, safe, fitting].into_iter().find(|places: &Vec<usize>| !places.is_empty()).unwrap_or_default();
    let least = eligible.iter().map(|&place| options[place].smallest_capacity_bytes()).min().unwrap_or(0);
    let near = |place: &usize| {
        let option = &options[*place];
        if option.completes.is_some() && option.settings.expandable_segments {
            return option.smallest_capacity_bytes() <= least.saturating_add(least / NEAR_PART_DIED);
        }
        let is_expandable = option.settings.expandable_segments;
        // Three times as much if the memory is unknown.
        let times = if is_expandable && option.available_bytes.is_none() { 3 } else { 1 };
        option.smallest_capacity_bytes() <= least.saturating_add(tolerance_bytes(least, is_expandable).saturating_mul(times))
    };
    let quickest = eligible.iter().map(|&place| options[place].driver_us()).min().unwrap_or(0);
    let mut best: Vec<usize> = eligible.into_iter().filter(near).collect();
    best.sort_by_key(|&place| {
        let option = &options[place];
        let smallest = option.smallest_capacity_bytes();
        let stays = option.is_own && option.available_bytes.is_none();
        (
            is_costly(option.driver_us(), quickest),
            !stays,
            option.keys(),
            !option.is_own,
            !option.settings.expandable_segments,
            smallest,
            option.driver_us(),
            place,
        )
    });
    best
}

/// Chooses an option. The first of `options` is the recorded run's own; `shortlist` is from [`shortlist`]. `certain` returns
/// whether the option at an index fits regardless of when the other streams finish. `is_doubtful` means that the recorded run
/// had reserved more than the available memory before its first entry, or that it had less memory than the caller specified;
/// in either case, fitting is not enough of a reason to keep the run's own settings.
pub(super) fn choose(
    options: &[AdvisedOption],
    shortlist: &[usize],
    is_doubtful: bool,
    certain: &dyn Fn(usize) -> bool,
) -> Option<Recommendation> {
    let own = options.first()?;
    let is_at_ease = own.fits() && own.retries() == 0 && !own.is_close() && !is_doubtful && certain(0);
    if own.available_bytes.is_some() && !own.has_warnings() && is_at_ease {
        return Some(recommend(options, 0, Reason::FitsAsItIs));
    }
    let place = shortlist.iter().copied().find(|&place| certain(place)).or(shortlist.first().copied())?;
    // What the run actually did counts for more than a prediction that is close or depends on timing.
    let keeps = own.is_as_recorded() && own.fits() && (options[place].is_close() || !certain(place));
    let place = if keeps || (!is_doubtful && is_hardly_better(&options[place], own)) { 0 } else { place };
    let reason = match own.available_bytes {
        None => Reason::NeedsLeast,
        Some(_) if !options[place].fits() => Reason::GetsPast,
        Some(_) if place == 0 => Reason::FitsAsItIs,
        Some(_) => Reason::Fits,
    };
    Some(recommend(options, place, reason))
}

/// Returns whether an option needs only slightly less than the run's own settings, which serve every request, and calls the
/// driver more often.
fn is_hardly_better(option: &AdvisedOption, own: &AdvisedOption) -> bool {
    let (needs, own_needs) = (option.smallest_capacity_bytes(), own.smallest_capacity_bytes());
    let is_little = own_needs.saturating_sub(needs) < own_needs / LEAST_GAIN_PART;
    own.fits() && !own.has_warnings() && own.retries() == 0 && is_little && option.driver_calls() > own.driver_calls()
}

fn recommend(options: &[AdvisedOption], option: usize, reason: Reason) -> Recommendation {
    Recommendation { option, reason, line: paste_line(&options[option].settings.text) }
}

/// Returns the shell command that sets these settings, ready to paste.
#[must_use]
pub fn paste_line(settings: &str) -> String {
    let is_plain = settings.chars().all(|c| c.is_ascii_alphanumeric() || "_:.,-".contains(c));
    match settings {
        "" => "unset PYTORCH_CUDA_ALLOC_CONF".to_owned(),
        text if is_plain => format!("export PYTORCH_CUDA_ALLOC_CONF={text}"),
        text => format!("export PYTORCH_CUDA_ALLOC_CONF='{}'", text.replace('\'', "'\\''")),
    }
}

/// Savings of less than one part in this many are not worth additional driver calls.
const LEAST_GAIN_PART: u64 = 100;
/// An option needs about as much memory as another if it needs at most one part in this many more.
const NEAR_PART: u64 = 200;
/// Expandable segments leave few holes whatever the program requests, whereas other settings may need little memory for one
/// sequence and more for the next. Expandable segments are therefore allowed to need one part in this many more.
const NEAR_PART_EXPANDABLE: u64 = 30;
/// The rest of a program that died needs more than its beginning, and the available memory is barely larger than the
/// beginning needs. Here, expandable segments may need only one part in this many more: of 604 cut runs that some settings
/// complete, this choice completed 574, whereas a thirtieth completed 564.
const NEAR_PART_DIED: u64 = 66;
/// Driver calls count as costly if they take this many times as long as those of the option with the least driver time, and
/// longer by [`COSTLY_US`].
const COSTLY_TIMES: u64 = 4;
/// Driver calls count as costly only if they take this much longer than those of the option with the least driver time.
const COSTLY_US: u64 = 500_000;

/// Returns how much more than `bytes` an option may need and still count as needing about as much.
pub(crate) const fn tolerance_bytes(bytes: u64, is_expandable: bool) -> u64 {
    bytes / if is_expandable { NEAR_PART_EXPANDABLE } else { NEAR_PART }
}

/// Returns whether driver calls of `driver_us` cost much more than those of the option with the least driver time.
pub(crate) fn is_costly(driver_us: u64, quickest_us: u64) -> bool {
    driver_us > quickest_us.saturating_mul(COSTLY_TIMES).max(quickest_us.saturating_add(COSTLY_US))
}

#[cfg(test)]
mod tests {
    use parkade::profile::Profile;
    use parkade::settings::Settings;

    use super::*;
    use crate::advise::advised_option::evaluate;
    use crate::advise::program::Replay;
    use crate::advise::program::sample_programs::cut;
    use crate::caution::{Evidence, Feature, InUse, cautions};

    fn option(text: &str, available_mib: Option<u64>) -> AdvisedOption {
        let (settings, available_bytes) = (Settings::from_environment(text).unwrap(), available_mib.map(|mib| mib << 20));
        let program = cut();
        let replay = Replay { program: &program, profile: &Profile::PYTORCH_2_11, settings: &settings };
        let outcome = evaluate(&replay, available_bytes);
        AdvisedOption {
            settings,
            is_own: false,
            is_given: false,
            cautions: Vec::new(),
            available_bytes,
            devices: vec![outcome],
            likely: None,
            completes: None,
        }
    }

    fn chosen(options: &[AdvisedOption], uncertain: Option<usize>) -> Option<(usize, Reason)> {
        let recommendation = choose(options, &shortlist(options), false, &|place| Some(place) != uncertain);
        recommendation.map(|recommendation| (recommendation.option, recommendation.reason))
    }

    #[test]
    fn settings_that_fit_are_kept_and_others_replaced() {
        let all = |mib| ["", "max_split_size_mb:32", "expandable_segments:True"].map(|text| option(text, mib));
        assert_eq!(chosen(&all(Some(300)), None), Some((0, Reason::FitsAsItIs)));
        // Both others need 180 MiB; expandable segments need this much regardless of what the next run requests.
        assert_eq!(chosen(&all(Some(200)), None), Some((2, Reason::Fits)));
        assert_eq!(chosen(&all(Some(150)), None), None);
        assert_eq!(chosen(&all(None), None), Some((2, Reason::NeedsLeast)));
    }

    #[test]
    fn warnings_and_uncertain_timing_count_against_an_option() {
        let expandable = || option("expandable_segments:True", Some(200));
        let graphs = InUse::unknown().with(Feature::PrivatePools, Evidence::Shown).with(Feature::PoolsGivenBack, Evidence::Shown);
        let cautions = |in_use: &InUse| cautions(in_use, &expandable().settings, &Profile::PYTORCH_2_11);
        let unknown = AdvisedOption { cautions: cautions(&InUse::unknown()), ..expandable() };
        assert_eq!(chosen(&[option("", Some(200)), unknown], None), Some((1, Reason::Fits)), "nothing is known to break");
        let caution = AdvisedOption { cautions: cautions(&graphs), ..expandable() };
        assert_eq!(chosen(&[option("", Some(200)), caution.clone(), expandable()], None), Some((2, Reason::Fits)));
        assert_eq!(chosen(&[option("", Some(200)), caution], None), Some((1, Reason::Fits)), "nothing else fits");
        let two = [option("", Some(200)), expandable(), expandable()];
        assert_eq!(chosen(&two, Some(1)), Some((2, Reason::Fits)));
    }

    #[test]
    fn settings_under_which_the_recorded_run_fitted_give_way_only_to_a_wide_margin() {
        let own = |mib| {
            let mut own = option("", Some(mib));
            own.devices[0].prediction.first_failure = None;
            own.devices[0].fits_as_recorded(mib << 20);
            own
        };
        let with = |mib| [own(mib), option("max_split_size_mb:32", Some(mib))];
        // The other option needs 180 MiB.
        assert_eq!(chosen(&with(181), None), Some((0, Reason::FitsAsItIs)), "that is as close");
        assert_eq!(chosen(&with(200), None), Some((1, Reason::Fits)));
    }

    #[test]
    fn a_gain_of_less_than_a_hundredth_is_not_worth_more_driver_calls() {
        let all = ["", "max_split_size_mb:32"].map(|text| option(text, None));
        assert_eq!(chosen(&all, None), Some((1, Reason::NeedsLeast)), "it needs 180 MiB of 220");
        let with = |needs_mib: u64, calls| {
            let mut option = option("max_split_size_mb:32", None);
            option.devices[0].smallest_bytes = needs_mib << 20;
            option.devices[0].prediction.driver_calls = calls;
            option
        };
        let own = AdvisedOption { settings: Settings::from_environment("").unwrap(), is_own: true, ..with(1000, 5) };
        assert_eq!(chosen(&[own.clone(), with(991, 6)], None), Some((0, Reason::NeedsLeast)));
        assert_eq!(chosen(&[own.clone(), with(991, 5)], None), Some((1, Reason::NeedsLeast)), "it costs nothing");
        assert_eq!(chosen(&[own, with(990, 6)], None), Some((1, Reason::NeedsLeast)));
    }

    #[test]
    fn memory_that_the_file_contradicts_is_no_reason_to_keep_the_settings() {
        let all = ["", "expandable_segments:True"].map(|text| option(text, Some(300)));
        let chosen = |is_doubtful| choose(&all, &shortlist(&all), is_doubtful, &|_| true).map(|found| found.option);
        assert_eq!((chosen(false), chosen(true)), (Some(0), Some(1)));
    }

    #[test]
    fn a_shell_accepts_the_line() {
        let line = |text| recommend(&[option(text, None)], 0, Reason::NeedsLeast).line;
        assert_eq!(line(""), "unset PYTORCH_CUDA_ALLOC_CONF");
        assert_eq!(line("max_split_size_mb:32"), "export PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:32");
        let intervals = "roundup_power2_divisions:[256:1,>:4]";
        assert_eq!(line(intervals), format!("export PYTORCH_CUDA_ALLOC_CONF='{intervals}'"));
    }
}
