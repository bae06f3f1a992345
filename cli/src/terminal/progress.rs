//! Runs a command's work on threads and shows its progress, on standard error or to a program that runs the command in its own process.
//!
//! There are no more threads than the machine has processors, whatever the environment requests. Inside another
//! program, such as a Python interpreter, the work leaves no threads behind, and reports to a [`Watch`], which can also
//! cancel it. On standard error, indicatif draws progress bars on a terminal only.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow};
use parkade_replay::VerifyError;
use rayon::ThreadPoolBuilder;

use self::drawn::Drawn;

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
    let is_drawn = !is_hidden && watch.is_none() && !IS_HUSHED.get();
    let drawn = if is_drawn { Drawn::of(what) } else { None };
    Bar { drawn, length: AtomicU64::new(0), position: AtomicU64::new(0), what, watch, number }
}

/// A progress bar. If watched work has been cancelled, calls that move the bar unwind instead of returning: see [`Cancelled`].
pub struct Bar {
    /// On the terminal.
    drawn: Option<Drawn>,
    length: AtomicU64,
    position: AtomicU64,
    what: &'static str,
    watch: Option<Arc<Watch>>,
    /// Its index among the watched bars.
    number: u64,
}

impl Bar {
    /// Sets the amount of work.
    pub fn set_length(&self, length: u64) {
        self.length.store(length, Ordering::Relaxed);
        self.tell_length();
    }

    /// Adds to the amount of work.
    pub fn inc_length(&self, more: u64) {
        self.length.fetch_add(more, Ordering::Relaxed);
        self.tell_length();
    }

    /// Sets the amount of work that is done.
    pub fn set_position(&self, position: u64) {
        self.position.store(position, Ordering::Relaxed);
        self.tell();
    }

    /// Adds to the amount of work that is done.
    pub fn inc(&self, more: u64) {
        self.position.fetch_add(more, Ordering::Relaxed);
        self.tell();
    }

    /// Redraws the bar periodically, even while nothing moves.
    pub fn enable_steady_tick(&self, interval: Duration) {
        if let Some(drawn) = &self.drawn {
            drawn.enable_steady_tick(interval);
        }
    }

    /// Hides the bar while something else is printed.
    pub fn suspend<T>(&self, print: impl FnOnce() -> T) -> T {
        match &self.drawn {
            Some(drawn) => drawn.suspend(print),
            None => print(),
        }
    }

    /// Removes the bar, because the work is done.
    pub fn finish_and_clear(&self) {
        if let Some(drawn) = &self.drawn {
            drawn.finish_and_clear();
        }
    }

    fn tell(&self) {
        let position = self.position.load(Ordering::Relaxed);
        if let Some(drawn) = &self.drawn {
            drawn.set_position(position);
        }
        let Some(watch) = &self.watch else { return };
        if watch.is_cancelled.load(Ordering::Relaxed) {
            resume_unwind(Box::new(Cancelled));
        }
        if watch.latest.load(Ordering::Relaxed) == self.number {
            watch.done.store(position, Ordering::Relaxed);
            watch.tell();
        }
    }

    fn tell_length(&self) {
        let length = self.length.load(Ordering::Relaxed);
        if let Some(drawn) = &self.drawn {
            drawn.set_length(length);
        }
        if let Some(watch) = &self.watch {
            watch.latest.store(self.number, Ordering::Relaxed);
            watch.length.store(length, Ordering::Relaxed);
            *watch.what.lock().unwrap_or_else(PoisonError::into_inner) = self.what;
        }
        self.tell();
    }
}

/// The progress of one command, which another thread can read. If there are several bars, it shows the one that last received a length.
#[derive(Default)]
pub struct Watch {
    bars: AtomicU64,
    latest: AtomicU64,
    done: AtomicU64,
    length: AtomicU64,
    what: Mutex<&'static str>,
    is_cancelled: AtomicBool,
    listener: Option<Listener>,
}

/// Receives the amount of work done, the total and the unit.
type Listener = Box<dyn Fn(u64, u64, &str) + Send + Sync>;

impl Watch {
    /// Returns a watch that also calls this function at every report, on the thread that does the work. With a single thread, no other
    /// thread can read the progress.
    pub fn with_listener(listener: impl Fn(u64, u64, &str) + Send + Sync + 'static) -> Watch {
        Watch { listener: Some(Box::new(listener)), ..Watch::default() }
    }

    fn tell(&self) {
        if let Some(listener) = &self.listener {
            let (done, length, what) = self.progress();
            listener(done, length, what);
        }
    }

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

/// The panic payload that unwinds cancelled work. It is not a panic: no hook is called, and nothing is printed.
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

/// The variables that rayon reads; the second is the older name.
const VARIABLES: [&str; 2] = ["RAYON_NUM_THREADS", "RAYON_RS_NUM_CPUS"];

/// Starts the threads. With more threads than processors, every wait between them takes longer, up to a standstill.
///
/// # Errors
/// The system allows no more threads or memory.
pub fn start_threads() -> Result<()> {
    let threads = number_of_threads();
    let started = ThreadPoolBuilder::new().num_threads(threads).build_global();
    started.map_err(|error| anyhow!("cannot start {threads} threads ({error}): allow more, or set {}=1", VARIABLES[0]))
}

/// Returns the number of threads: the requested number, up to the number of processors.
fn number_of_threads() -> usize {
    let most = thread::available_parallelism().map_or(1, usize::from);
    // Like rayon, this ignores 0 and anything that is not a number.
    let asked = VARIABLES.iter().find_map(|name| std::env::var(name).ok()?.parse::<usize>().ok());
    asked.filter(|&asked| asked > 0).map_or(most, |asked| asked.min(most))
}

/// The maximum stack size of a thread, usually that of the main thread.
const STACK_BYTES: usize = 8 << 20;

/// The reason why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The arguments are wrong.
    #[error("{0}")]
    Usage(String),
    /// The command could not be run, with the reason.
    #[error("{0}")]
    CouldNotRun(String),
    /// [`Watch::cancel`] ended it.
    #[error("cancelled")]
    Cancelled,
    /// A bug in parkade.
    #[error("this is a bug in parkade: {0}")]
    Bug(String),
}

/// An argument that turns out to be wrong only while the command works: it names something that does not exist, or PyTorch refuses it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct WrongArgument(pub String);

/// Does the work on at most this many threads, all of which have ended when the function returns. Without a number, it uses as many as the
/// command `parkade`.
///
/// # Errors
/// See [`Failure`].
pub fn on_threads<T: Send>(
    threads: Option<usize>,
    watch: &Arc<Watch>,
    work: impl FnOnce() -> Result<T> + Send,
) -> Result<T, Failure> {
    let threads = threads.unwrap_or_else(number_of_threads).max(1);
    // A separate pool: a child process that is forked later has no threads, and would wait for those of a global pool forever.
    let pool = ThreadPoolBuilder::new().num_threads(threads).stack_size(STACK_BYTES).build();
    let pool = pool.map_err(|error| Failure::CouldNotRun(format!("cannot start {threads} threads: {error}")))?;
    // Nothing that the unwinding leaves behind is used again.
    match catch_unwind(AssertUnwindSafe(|| pool.install(|| watched(watch, work)))) {
        Ok(done) => done.map_err(|error| failure(&error)),
        Err(unwound) if unwound.is::<Cancelled>() => Err(Failure::Cancelled),
        Err(panicked) => Err(Failure::Bug(words(panicked.as_ref()))),
    }
}

/// Classifies a failure of the work. Refused settings and unknown names are wrong arguments, although only the work finds them.
fn failure(error: &anyhow::Error) -> Failure {
    let text = format!("{error:#}");
    let is_of_arguments = matches!(error.downcast_ref(), Some(VerifyError::GivenSettings { .. })) || error.is::<WrongArgument>();
    if is_of_arguments { Failure::Usage(text) } else { Failure::CouldNotRun(text) }
}

/// Returns the message of a panic.
fn words(panicked: &(dyn Any + Send)) -> String {
    let text = panicked.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panicked.downcast_ref::<&str>().copied()).unwrap_or("no reason was given").to_owned()
}

/// Progress bars on a terminal.
#[cfg(feature = "native")]
mod drawn {
    use std::time::Duration;

    use indicatif::{ProgressBar, ProgressStyle};

    /// A progress bar on standard error.
    pub(super) struct Drawn(ProgressBar);

    impl Drawn {
        /// Creates a bar that counts this; `None` if the build has no terminal.
        pub(super) fn of(what: &str) -> Option<Drawn> {
            let style = ProgressStyle::with_template(&format!("{{bar:40}} {{human_pos}} of {{human_len}} {what}"))
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            Some(Drawn(ProgressBar::new(0).with_style(style)))
        }

        pub(super) fn set_length(&self, length: u64) {
            self.0.set_length(length);
        }

        pub(super) fn set_position(&self, position: u64) {
            self.0.set_position(position);
        }

        pub(super) fn enable_steady_tick(&self, interval: Duration) {
            self.0.enable_steady_tick(interval);
        }

        pub(super) fn suspend<T>(&self, print: impl FnOnce() -> T) -> T {
            self.0.suspend(print)
        }

        pub(super) fn finish_and_clear(&self) {
            self.0.finish_and_clear();
        }
    }
}

/// A build without the feature `native` has no terminal.
#[cfg(not(feature = "native"))]
mod drawn {
    use std::time::Duration;

    /// A bar that never exists.
    pub(super) enum Drawn {}

    impl Drawn {
        pub(super) fn of(_: &str) -> Option<Drawn> {
            None
        }

        pub(super) fn set_length(&self, _: u64) {
            match *self {}
        }

        pub(super) fn set_position(&self, _: u64) {
            match *self {}
        }

        pub(super) fn enable_steady_tick(&self, _: Duration) {
            match *self {}
        }

        pub(super) fn suspend<T>(&self, _: impl FnOnce() -> T) -> T {
            match *self {}
        }

        pub(super) fn finish_and_clear(&self) {
            match *self {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use anyhow::bail;
    use rayon::prelude::*;

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

    #[test]
    fn work_has_the_threads_that_it_is_given() {
        let done = on_threads(Some(3), &Arc::default(), || Ok(rayon::current_num_threads()));
        assert!(matches!(done, Ok(3)), "{done:?}");
    }

    #[test]
    fn ends_are_told_apart() {
        let refused = on_threads(Some(1), &Arc::default(), || -> Result<()> { bail!("not today") });
        assert!(matches!(refused, Err(Failure::CouldNotRun(why)) if why == "not today"));
        let panicked = on_threads(Some(1), &Arc::default(), || -> Result<()> { panic!("on purpose") });
        assert!(matches!(panicked, Err(Failure::Bug(why)) if why == "on purpose"));
        let watch = Arc::new(Watch::default());
        watch.cancel();
        let cancelled = on_threads(Some(2), &watch, || {
            let bar = of("numbers", true);
            (0..100).into_par_iter().for_each(|_| bar.inc(1));
            Ok(())
        });
        assert!(matches!(cancelled, Err(Failure::Cancelled)), "{cancelled:?}");
    }
}
