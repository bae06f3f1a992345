//! Progress bars on standard error; indicatif draws them on a terminal only.

use std::cell::Cell;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar of a recording's entries.
pub fn entries(is_hidden: bool) -> ProgressBar {
    of("entries", is_hidden)
}

thread_local! {
    static IS_HUSHED: Cell<bool> = const { Cell::new(false) };
}

/// Bars that this thread makes from now on are hidden: several threads share one that the main thread shows.
pub fn hush_thread() {
    IS_HUSHED.set(true);
}

/// A bar of something else.
pub fn of(what: &str, is_hidden: bool) -> ProgressBar {
    if is_hidden || IS_HUSHED.get() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(&format!("{{bar:40}} {{human_pos}} of {{human_len}} {what}"))
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style)
}
