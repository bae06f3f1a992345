//! Runs a command's work on threads: no more than the machine has processors, whatever the environment says.
//!
//! Inside another program, such as a Python interpreter, the work reports its progress, can be cancelled, and leaves no threads behind.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

use anyhow::{Result, anyhow};
use parkade_replay::VerifyError;
use rayon::ThreadPoolBuilder;

use super::progress::{Cancelled, Watch, watched};

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
pub fn number_of_threads() -> usize {
    let most = thread::available_parallelism().map_or(1, usize::from);
    // Like rayon, this ignores 0 and anything that is not a number.
    let asked = VARIABLES.iter().find_map(|name| std::env::var(name).ok()?.parse::<usize>().ok());
    asked.filter(|&asked| asked > 0).map_or(most, |asked| asked.min(most))
}

/// The maximum stack size of a thread, usually that of the main thread.
const STACK_BYTES: usize = 8 << 20;

/// Why there is no answer.
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
    text.or_else(|| panicked.downcast_ref::<&str>().copied()).unwrap_or("it does not say why").to_owned()
}

#[cfg(test)]
mod tests {
    use anyhow::bail;
    use rayon::prelude::*;

    use super::*;
    use crate::terminal::progress;

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
            let bar = progress::of("numbers", true);
            (0..100).into_par_iter().for_each(|_| bar.inc(1));
            Ok(())
        });
        assert!(matches!(cancelled, Err(Failure::Cancelled)), "{cancelled:?}");
    }
}
