//! What a page says about a way out: lines of text and a table of settings that were tried.

use crate::size;

/// What settings are called that set nothing.
pub(super) const DEFAULT: &str = "default";

/// One setting that was tried.
#[derive(Clone, Debug)]
pub(super) struct Tried {
    /// What it is called: settings as in `PYTORCH_CUDA_ALLOC_CONF`, or a word for none.
    pub(super) label: String,
    /// Whether these are the recorded run's own.
    pub(super) is_own: bool,
    /// The most bytes taken from the device.
    pub(super) peak_reserved_bytes: i64,
    /// The entry whose request failed first.
    pub(super) fails_at_entry: Option<usize>,
    /// Retries after giving back everything cached.
    pub(super) retries: i64,
    /// Calls of the driver about memory.
    pub(super) driver_calls: u64,
    /// What they take on the measured device, in nanoseconds.
    pub(super) driver_ns: u64,
}

/// What to do, if anything is known to help.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Advice {
    /// The line to paste, if there is one.
    pub(super) command: Option<String>,
    /// Why, and what it costs; one line each.
    pub(super) lines: Vec<String>,
}

/// A lower peak than the run's own by less than this is not worth a change, in percent.
const WORTH_PERCENT: i64 = 2;

/// What the settings that were tried show: the one with the lowest peak that fits, if it is better than the run's own.
pub(super) fn of_tried<'a>(tried: impl Iterator<Item = &'a Tried> + Clone) -> Option<Advice> {
    let own = tried.clone().find(|tried| tried.is_own)?;
    let fitting = tried.clone().filter(|tried| tried.fails_at_entry.is_none());
    let Some(best) = fitting.min_by_key(|tried| (tried.peak_reserved_bytes, !tried.is_own)) else {
        let lines = vec!["None of the settings tried makes it fit.".to_owned()];
        return Some(Advice { command: None, lines });
    };
    let saved = own.peak_reserved_bytes.saturating_sub(best.peak_reserved_bytes);
    let is_needed = own.fails_at_entry.is_some();
    if best.is_own || (!is_needed && saved.saturating_mul(100) < own.peak_reserved_bytes.saturating_mul(WORTH_PERCENT)) {
        return None;
    }
    let peak = size::show(best.peak_reserved_bytes);
    let why = if is_needed {
        format!("Of the settings tried that fit, it needs the least: {peak} at most. Under the run's own it does not fit.")
    } else {
        format!("Of the settings tried it needs the least: {peak} at most, {} less than the run's own.", size::show(saved))
    };
    let text = if best.label == DEFAULT { "" } else { &best.label };
    Some(Advice { command: Some(format!("export PYTORCH_CUDA_ALLOC_CONF={text}")), lines: vec![why] })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(label: &str, is_own: bool, peak_mib: i64, fails_at_entry: Option<usize>) -> Tried {
        let peak_reserved_bytes = peak_mib << 20;
        Tried { label: label.to_owned(), is_own, peak_reserved_bytes, fails_at_entry, retries: 0, driver_calls: 0, driver_ns: 0 }
    }

    #[test]
    fn the_least_that_fits_is_advised() {
        let own = tried(DEFAULT, true, 100, None);
        let command = |list: &[Tried]| of_tried(list.iter()).map(|advice| advice.command);
        assert_eq!(command(&[own.clone(), tried("a:1", false, 99, None)]), None, "not worth it");
        let better = tried("a:1", false, 80, None);
        let pasted = Some(Some("export PYTORCH_CUDA_ALLOC_CONF=a:1".to_owned()));
        assert_eq!(command(&[own, better.clone(), tried("b:1", false, 70, Some(5))]), pasted);
        let failed = tried(DEFAULT, true, 80, Some(3));
        assert_eq!(command(&[failed.clone(), better]), pasted, "what fits is better than what does not");
        assert_eq!(command(&[failed]), Some(None), "nothing helps");
    }
}
