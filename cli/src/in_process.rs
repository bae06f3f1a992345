//! Commands inside of another program, such as a Python interpreter: the answer is returned instead of printed, the work is watched, and
//! it can be ended.

use std::any::Any;
use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, anyhow, bail};
use clap::Parser;
use parkade_ranks::each::OnEach;
use parkade_terminal::progress::{Cancelled, Watch, watched};
use rayon::ThreadPoolBuilder;

use crate::runner::{self, Outcome};
use crate::{Cli, Command, threads, usage};

/// The most that the stack of a thread grows to; as a main thread's usually.
const STACK_BYTES: usize = 8 << 20;

/// What a command would have printed.
pub struct Answered {
    /// On standard output.
    pub printed: Vec<u8>,
    /// On standard error, in lines.
    pub remarks: Vec<String>,
    /// How it ended.
    pub outcome: Outcome,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The arguments are wrong.
    #[error("{0}")]
    Usage(String),
    /// The command could not be run, and says why.
    #[error("{0}")]
    CouldNotRun(String),
    /// [`Watch::cancel`] ended it.
    #[error("cancelled")]
    Cancelled,
    /// A bug of parkade.
    #[error("parkade failed, which is a bug of it: {0}")]
    Bug(String),
}

/// Does a command's work on at most so many threads, all of which are gone when it returns. Without a number, as many as the command
/// `parkade` takes.
///
/// The command is about one recording (advise, diagnose, report, stats, replay, export, pack), about recordings (verify, diff), or about
/// a study (sweep, merge, frontier).
///
/// # Errors
/// See [`Failure`].
pub fn answer(arguments: &[OsString], threads: Option<usize>, watch: &Arc<Watch>) -> Result<Answered, Failure> {
    let cli = Cli::try_parse_from(arguments).map_err(|error| Failure::Usage(usage::one_line(&error)))?;
    on_threads(threads, watch, || answer_of(&cli.command))
}

/// Does any work in the same way.
///
/// # Errors
/// See [`Failure`].
pub fn on_threads<T: Send>(
    threads: Option<usize>,
    watch: &Arc<Watch>,
    work: impl FnOnce() -> Result<T> + Send,
) -> Result<T, Failure> {
    let threads = threads.unwrap_or_else(threads::number).max(1);
    // A pool of its own: a process that forks later takes no threads along, and would wait for those of a global one for ever.
    let pool = ThreadPoolBuilder::new().num_threads(threads).stack_size(STACK_BYTES).build();
    let pool = pool.map_err(|error| Failure::CouldNotRun(format!("cannot start {threads} threads: {error}")))?;
    // What unwinds has left nothing behind that is looked at again.
    match catch_unwind(AssertUnwindSafe(|| pool.install(|| watched(watch, work)))) {
        Ok(done) => done.map_err(|error| Failure::CouldNotRun(format!("{error:#}"))),
        Err(unwound) if unwound.is::<Cancelled>() => Err(Failure::Cancelled),
        Err(panicked) => Err(Failure::Bug(words(panicked.as_ref()))),
    }
}

/// What a panic says.
fn words(panicked: &(dyn Any + Send)) -> String {
    let text = panicked.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panicked.downcast_ref::<&str>().copied()).unwrap_or("it does not say why").to_owned()
}

pub(crate) fn answer_of(command: &Command) -> Result<Answered> {
    match command {
        Command::Replay(args) => about_one(args),
        Command::Advise(args) => about_one(args),
        Command::Diagnose(args) => about_one(args),
        Command::Report(args) => about_one(args),
        Command::Stats(args) => about_one(args),
        Command::Verify(args) => about(args),
        Command::Diff(args) => about(args),
        Command::Export(args) => about(args),
        Command::Pack(args) => about(args),
        Command::Sweep(args) => about(args),
        Command::Merge(args) => about(args),
        Command::Frontier(args) => about(args),
        _ => bail!("this command answers on a terminal only"),
    }
}

fn about_one<C: OnEach>(command: &C) -> Result<Answered> {
    match command.inputs() {
        [] => about(command),
        [file] if file.is_dir() => Err(is_folder(file)),
        [file] => about(&command.on(file, false)),
        files => bail!("one file is answered about, and {} are given", files.len()),
    }
}

fn is_folder(path: &Path) -> anyhow::Error {
    anyhow!("{} is a folder, and one file is answered about", path.display())
}

fn about<C: runner::Command>(command: &C) -> Result<Answered> {
    let answer = command.compute().map_err(|error| anyhow!(runner::message(command, &error)))?;
    let printed = runner::render(command, &answer)?;
    Ok(Answered { printed, remarks: command.remarks(&answer), outcome: command.outcome(&answer) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORDING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../conformance/recordings/resnet50_sweep.limit5_oom.pickle.xz");

    fn asked(arguments: &[&str], watch: &Arc<Watch>) -> Result<Answered, Failure> {
        let arguments: Vec<OsString> = ["parkade"].iter().chain(arguments).map(OsString::from).collect();
        answer(&arguments, Some(2), watch)
    }

    #[test]
    fn answers_are_returned_and_their_work_is_seen() {
        let watch = Arc::default();
        let answered = asked(&["verify", "--json", RECORDING], &watch).expect("an answer");
        assert!(answered.printed.starts_with(b"{") && answered.outcome == Outcome::Good && answered.remarks.is_empty());
        assert!(watch.progress().1 > 0, "{:?}", watch.progress());
    }

    #[test]
    fn failures_are_told_apart() {
        let failure = |arguments: &[&str]| asked(arguments, &Arc::default()).err().expect("no answer");
        assert!(matches!(failure(&["advise", RECORDING, "--limit", "12 apples"]), Failure::Usage(why) if why.contains("apples")));
        let missing = failure(&["diagnose", "nowhere.pickle"]);
        assert!(matches!(missing, Failure::CouldNotRun(why) if why.starts_with("nowhere.pickle: cannot be read")));
        assert!(matches!(failure(&["info"]), Failure::CouldNotRun(_)));
        assert!(
            matches!(failure(&["diagnose", env!("CARGO_MANIFEST_DIR")]), Failure::CouldNotRun(why) if why.contains("folder"))
        );
        let panics = on_threads(Some(1), &Arc::default(), || -> Result<()> { panic!("on purpose") });
        assert!(matches!(panics, Err(Failure::Bug(why)) if why == "on purpose"));
    }

    #[test]
    fn cancelled_work_ends() {
        for command in ["verify", "advise", "diagnose", "replay"] {
            let watch = Arc::new(Watch::default());
            watch.cancel();
            assert!(matches!(asked(&[command, "--json", RECORDING], &watch), Err(Failure::Cancelled)), "{command}");
        }
    }
}
