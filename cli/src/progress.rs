//! Progress bars on standard error; indicatif draws them on a terminal only.

use indicatif::{ProgressBar, ProgressStyle};

/// A bar of a recording's entries.
pub(crate) fn entries(is_hidden: bool) -> ProgressBar {
    of("entries", is_hidden)
}

/// A bar of something else.
pub(crate) fn of(what: &str, is_hidden: bool) -> ProgressBar {
    if is_hidden {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(&format!("{{bar:40}} {{human_pos}} of {{human_len}} {what}"))
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style)
}
