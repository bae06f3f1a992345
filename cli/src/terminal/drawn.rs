//! Progress bars on a terminal. A build without the feature `native` has no terminal.

#[cfg(feature = "native")]
pub(super) use on_terminal::Drawn;
#[cfg(not(feature = "native"))]
pub(super) use without_terminal::Drawn;

#[cfg(feature = "native")]
mod on_terminal {
    use std::time::Duration;

    use indicatif::{ProgressBar, ProgressStyle};

    /// A progress bar on standard error.
    pub(in super::super) struct Drawn(ProgressBar);

    impl Drawn {
        /// Creates a bar that counts this; `None` if the build has no terminal.
        pub(in super::super) fn of(what: &str) -> Option<Drawn> {
            let style = ProgressStyle::with_template(&format!("{{bar:40}} {{human_pos}} of {{human_len}} {what}"))
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            Some(Drawn(ProgressBar::new(0).with_style(style)))
        }

        pub(in super::super) fn set_length(&self, length: u64) {
            self.0.set_length(length);
        }

        pub(in super::super) fn set_position(&self, position: u64) {
            self.0.set_position(position);
        }

        pub(in super::super) fn enable_steady_tick(&self, interval: Duration) {
            self.0.enable_steady_tick(interval);
        }

        pub(in super::super) fn suspend<T>(&self, print: impl FnOnce() -> T) -> T {
            self.0.suspend(print)
        }

        pub(in super::super) fn finish_and_clear(&self) {
            self.0.finish_and_clear();
        }
    }
}

#[cfg(not(feature = "native"))]
mod without_terminal {
    use std::time::Duration;

    /// A bar that never exists.
    pub(in super::super) enum Drawn {}

    impl Drawn {
        pub(in super::super) fn of(_: &str) -> Option<Drawn> {
            None
        }

        pub(in super::super) fn set_length(&self, _: u64) {
            match *self {}
        }

        pub(in super::super) fn set_position(&self, _: u64) {
            match *self {}
        }

        pub(in super::super) fn enable_steady_tick(&self, _: Duration) {
            match *self {}
        }

        pub(in super::super) fn suspend<T>(&self, _: impl FnOnce() -> T) -> T {
            match *self {}
        }

        pub(in super::super) fn finish_and_clear(&self) {
            match *self {}
        }
    }
}
