//! The names of settings in answers.

use crate::terminal::output;

/// Returns the name of a settings string. A long one is cut after a setting.
pub(super) fn shown(settings: &str) -> String {
    const LONGEST: usize = 100;
    let text = in_full(settings);
    if text.chars().count() <= LONGEST {
        return text;
    }
    let start: String = text.chars().take(LONGEST).collect();
    let start = start.rsplit_once(',').map_or(start.as_str(), |(start, _)| start);
    format!("{start},...")
}

/// Returns the full name of a settings string.
pub(super) fn in_full(settings: &str) -> String {
    if settings.is_empty() { "default settings".to_owned() } else { output::one_line(settings) }
}

/// Returns the name of a settings string for use in a sentence.
pub(super) fn the(settings: &str) -> String {
    if settings.is_empty() { "the default settings".to_owned() } else { shown(settings) }
}
