//! Progress bars on standard error; indicatif draws them on a terminal only.
//!
//! A program that runs a command in its own process sees the same progress through a [`Watch`], which can also cancel the work.

use std::cell::{Cell, RefCell};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

thread_local! {
    static IS_HUSHED: Cell<bool> = const { Cell::new(false) };
    static WATCH: RefCell<Option<Arc<Watch>>> = const { RefCell::new(None) };
}

/// Returns a bar that counts the entries of a recording.
pub fn entries(is_hidden: bool) -> Bar {
    of("entries", is_hidden)
}

/// Hides the bars that this thread creates from now on: several threads share one bar of the main thread.
pub fn hush_thread() {
    IS_HUSHED.set(true);
}

/// Returns a bar that counts something else.
pub fn of(what: &'static str, is_hidden: bool) -> Bar {
    let watch = WATCH.with_borrow(Clone::clone);
    let number = watch.as_ref().map_or(0, |watch| watch.bars.fetch_add(1, Ordering::Relaxed) + 1);
    if is_hidden || watch.is_some() || IS_HUSHED.get() {
        let shown = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden());
        return Bar { shown, what, watch, number };
    }
    let style = ProgressStyle::with_template(&format!("{{bar:40}} {{human_pos}} of {{human_len}} {what}"))
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    Bar { shown: ProgressBar::new(0).with_style(style), what, watch, number }
}

/// A progress bar. If watched work has been cancelled, calls that move the bar unwind instead of returning: see [`Cancelled`].
pub struct Bar {
    shown: ProgressBar,
    what: &'static str,
    watch: Option<Arc<Watch>>,
    /// Its index among the watched bars.
    number: u64,
}

impl Bar {
    /// Sets the amount of work.
    pub fn set_length(&self, length: u64) {
        self.shown.set_length(length);
        self.tell_length();
    }

    /// Adds to the amount of work.
    pub fn inc_length(&self, more: u64) {
        self.shown.inc_length(more);
        self.tell_length();
    }

    /// Sets the amount of work that is done.
    pub fn set_position(&self, position: u64) {
        self.shown.set_position(position);
        self.tell();
    }

    /// Adds to the amount of work that is done.
    pub fn inc(&self, more: u64) {
        self.shown.inc(more);
        self.tell();
    }

    /// Redraws the bar periodically, even while nothing moves.
    pub fn enable_steady_tick(&self, interval: Duration) {
        self.shown.enable_steady_tick(interval);
    }

    /// Hides the bar while something else is printed.
    pub fn suspend<T>(&self, print: impl FnOnce() -> T) -> T {
        self.shown.suspend(print)
    }

    /// Removes the bar, because the work is done.
    pub fn finish_and_clear(&self) {
        self.shown.finish_and_clear();
    }

    fn tell(&self) {
        let Some(watch) = &self.watch else { return };
        if watch.is_cancelled.load(Ordering::Relaxed) {
            resume_unwind(Box::new(Cancelled));
        }
        if watch.latest.load(Ordering::Relaxed) == self.number {
            watch.done.store(self.shown.position(), Ordering::Relaxed);
        }
    }

    fn tell_length(&self) {
        if let Some(watch) = &self.watch {
            watch.latest.store(self.number, Ordering::Relaxed);
            watch.length.store(self.shown.length().unwrap_or(0), Ordering::Relaxed);
            *watch.what.lock().unwrap_or_else(PoisonError::into_inner) = self.what;
        }
        self.tell();
    }
}

/// The progress of one command, which another thread can read. If there are several bars, it shows the one that last received a length.
#[derive(Debug, Default)]
pub struct Watch {
    bars: AtomicU64,
    latest: AtomicU64,
    done: AtomicU64,
    length: AtomicU64,
    what: Mutex<&'static str>,
    is_cancelled: AtomicBool,
}

impl Watch {
    /// Cancels the work at its next progress report.
    pub fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
    }

    /// Returns the amount of work done, the total and the unit; zeros and an empty text before the first report.
    pub fn progress(&self) -> (u64, u64, &'static str) {
        let what = *self.what.lock().unwrap_or_else(PoisonError::into_inner);
        (self.done.load(Ordering::Relaxed), self.length.load(Ordering::Relaxed), what)
    }
}

/// The payload with which cancelled work unwinds. It is not a panic: no hook is called, and nothing is printed.
#[derive(Debug)]
pub struct Cancelled;

/// Does the work. Bars that it creates on this thread report to `watch` instead of the terminal.
pub fn watched<T>(watch: &Arc<Watch>, work: impl FnOnce() -> T) -> T {
    /// Removes the watch, even if the work unwinds.
    struct TakenOff;
    impl Drop for TakenOff {
        fn drop(&mut self) {
            WATCH.set(None);
        }
    }
    WATCH.set(Some(Arc::clone(watch)));
    let _taken_off = TakenOff;
    work()
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_watch_sees_the_bars_of_its_work_alone() {
        let watch = Arc::new(Watch::default());
        of("others", true).set_length(3);
        assert_eq!(watch.progress(), (0, 0, ""));
        watched(&watch, || {
            let bar = entries(true);
            bar.set_length(10);
            bar.inc(4);
        });
        assert_eq!(watch.progress(), (4, 10, "entries"));
        of("others", true).inc(1);
        assert_eq!(watch.progress(), (4, 10, "entries"));
        watched(&watch, || {
            let (first, second) = (of("files", true), entries(true));
            first.set_length(1);
            second.inc_length(7);
            second.inc_length(5);
            second.set_position(3);
            first.inc(1);
        });
        assert_eq!(watch.progress(), (3, 12, "entries"));
    }

    #[test]
    fn cancelled_work_unwinds_at_its_next_report() {
        let watch = Arc::new(Watch::default());
        let mut reports = 0;
        let work = AssertUnwindSafe(|| {
            watched(&watch, || {
                let bar = entries(true);
                bar.set_length(10);
                for _ in 0..10 {
                    reports += 1;
                    bar.inc(1);
                    if reports == 3 {
                        watch.cancel();
                    }
                }
            });
        });
        assert!(catch_unwind(work).expect_err("cancelled").is::<Cancelled>());
        assert_eq!((reports, watch.progress().0), (4, 3));
        entries(true).inc(1);
    }
}
