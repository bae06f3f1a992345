//! The surroundings of a command: the files, the clock, the threads and the terminal of the machine, or what another program provides in
//! their place, such as a page in a browser.
//!
//! Within provided surroundings, a command reads only the provided files, measures time with the provided clock, works on the calling
//! thread, and writes to memory. Commands about recordings use files, time and output only through the functions here, [`Start`] and
//! [`output`](super::output).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rayon::ThreadPoolBuilder;

use super::progress::{Watch, watched};

thread_local! {
    static PROVIDED: RefCell<Option<Arc<Surroundings>>> = const { RefCell::new(None) };
}

/// The contents of a provided file.
pub trait Contents: Send + Sync {
    /// Returns its length, in bytes.
    fn length(&self) -> u64;

    /// Reads bytes from this offset on, and returns how many; 0 only at the end.
    ///
    /// # Errors
    /// The bytes cannot be read.
    fn read_at(&self, offset: u64, to: &mut [u8]) -> io::Result<usize>;
}

impl Contents for Vec<u8> {
    fn length(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&self, offset: u64, to: &mut [u8]) -> io::Result<usize> {
        let start = usize::try_from(offset).map_or(self.len(), |offset| offset.min(self.len()));
        (&self[start..]).read(to)
    }
}

/// A provided file that is being read.
pub struct Opened {
    contents: Arc<dyn Contents>,
    offset: u64,
}

impl Read for Opened {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let read = self.contents.read_at(self.offset, to)?;
        self.offset += read as u64;
        Ok(read)
    }
}

/// The form of human-readable answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Medium {
    /// Plain text, as in a pipe: 80 columns wide and without colours.
    #[default]
    Text,
    /// Fragments of HTML.
    Html,
}

/// Surroundings that a program provides.
pub struct Surroundings {
    files: BTreeMap<PathBuf, Arc<dyn Contents>>,
    /// Returns the time since some fixed point.
    clock: Box<dyn Fn() -> Duration + Send + Sync>,
    /// Receives the progress.
    watch: Arc<Watch>,
    medium: Medium,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    written: Written,
    /// Whether a file is written to standard output, so that human-readable text goes to standard error.
    is_output_data: bool,
}

/// The output of a command.
#[derive(Default)]
pub struct Written {
    /// Standard output.
    pub output: Vec<u8>,
    /// Standard error.
    pub error: Vec<u8>,
}

/// One of the streams of [`Written`].
pub(super) struct Captured {
    here: Arc<Surroundings>,
    is_for_people: bool,
}

impl Captured {
    /// Returns standard output.
    pub(super) fn output(here: Arc<Surroundings>) -> Captured {
        Captured { here, is_for_people: false }
    }

    /// Returns the stream for human-readable text.
    pub(super) fn text(here: Arc<Surroundings>) -> Captured {
        Captured { here, is_for_people: true }
    }
}

impl Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.here.state();
        let is_error = self.is_for_people && state.is_output_data;
        if is_error { &mut state.written.error } else { &mut state.written.output }.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Surroundings {
    /// The width of text.
    pub(super) const COLUMNS: usize = 80;

    /// Returns surroundings without files.
    pub fn new(clock: impl Fn() -> Duration + Send + Sync + 'static, watch: Arc<Watch>, medium: Medium) -> Surroundings {
        Surroundings { files: BTreeMap::new(), clock: Box::new(clock), watch, medium, state: Mutex::default() }
    }

    /// Adds a file. The folders in its path exist too.
    #[must_use]
    pub fn with_file(mut self, path: impl Into<PathBuf>, contents: impl Contents + 'static) -> Surroundings {
        self.files.insert(path.into(), Arc::new(contents));
        self
    }

    /// Does work within these surroundings, and returns what it wrote. From then on, rayon runs the calling thread's work on that thread.
    pub fn within<T>(self, work: impl FnOnce() -> T) -> (T, Written) {
        /// Restores the machine's surroundings, even if the work unwinds.
        struct Left;
        impl Drop for Left {
            fn drop(&mut self) {
                PROVIDED.set(None);
            }
        }
        // Creates a pool that contains only this thread. It remains the thread's pool: later attempts fail, and are not needed.
        let _ = ThreadPoolBuilder::new().num_threads(1).use_current_thread().build();
        let watch = Arc::clone(&self.watch);
        let here = Arc::new(self);
        PROVIDED.set(Some(Arc::clone(&here)));
        let _left = Left;
        let done = watched(&watch, work);
        let written = std::mem::take(&mut here.state().written);
        (done, written)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a line to standard error.
    pub(super) fn complain(&self, line: &str) {
        self.state().written.error.extend(line.bytes().chain([b'\n']));
    }

    pub(super) fn leave_output_to_data(&self) {
        self.state().is_output_data = true;
    }

    fn now(&self) -> Duration {
        (self.clock)()
    }

    fn open(&self, path: &Path) -> io::Result<(Opened, u64)> {
        let contents = self.files.get(path).ok_or(io::ErrorKind::NotFound)?;
        Ok((Opened { contents: Arc::clone(contents), offset: 0 }, contents.length()))
    }

    fn is_file(&self, path: &Path) -> bool {
        self.files.contains_key(path)
    }

    fn is_folder(&self, path: &Path) -> bool {
        self.files.keys().any(|file| file != path && file.starts_with(path))
    }

    /// Returns the files and folders in this folder.
    fn entries(&self, folder: &Path) -> Vec<PathBuf> {
        let inside = self.files.keys().filter_map(|file| file.strip_prefix(folder).ok());
        let mut entries: Vec<PathBuf> = inside.filter_map(|rest| Some(folder.join(rest.components().next()?))).collect();
        entries.dedup();
        entries
    }
}

/// Returns the surroundings that are provided to this thread; `None` on a machine.
pub(super) fn provided() -> Option<Arc<Surroundings>> {
    PROVIDED.with_borrow(Clone::clone)
}

/// Returns the form of human-readable answers.
pub(super) fn medium() -> Medium {
    provided().map_or(Medium::Text, |here| here.medium)
}

/// Returns whether this thread's surroundings are provided.
pub(crate) fn are_provided() -> bool {
    PROVIDED.with_borrow(Option::is_some)
}

/// Opens a file, and returns its length; pipes and devices have none.
///
/// # Errors
/// It cannot be opened.
pub fn open(path: &Path) -> io::Result<(Box<dyn Read>, Option<u64>)> {
    if let Some(here) = provided() {
        let (file, length) = here.open(path)?;
        return Ok((Box::new(file), Some(length)));
    }
    let file = File::open(path)?;
    let length = file.metadata().ok().filter(fs::Metadata::is_file).map(|data| data.len());
    Ok((Box::new(file), length))
}

/// Reads an entire file.
///
/// # Errors
/// It cannot be read.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.0.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns whether the path leads to a file, as opposed to a folder, a pipe or nothing.
pub fn is_file(path: &Path) -> bool {
    provided().map_or_else(|| path.is_file(), |here| here.is_file(path))
}

/// Returns whether the path leads to a folder.
pub fn is_folder(path: &Path) -> bool {
    provided().map_or_else(|| path.is_dir(), |here| here.is_folder(path))
}

/// Returns whether the path leads to anything.
pub fn exists(path: &Path) -> bool {
    provided().map_or_else(|| path.exists(), |here| here.is_file(path) || here.is_folder(path))
}

/// Returns the length of a file; 0 if it is not a file.
pub fn length(path: &Path) -> u64 {
    match provided() {
        Some(here) => here.open(path).map_or(0, |(_, length)| length),
        None => fs::metadata(path).map_or(0, |data| if data.is_file() { data.len() } else { 0 }),
    }
}

/// Returns everything in a folder, in no particular order.
///
/// # Errors
/// The folder cannot be read.
pub fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    match provided() {
        Some(here) => Ok(here.entries(folder)),
        None => fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect(),
    }
}

/// The start of a measurement of time.
#[derive(Clone, Copy, Debug)]
pub enum Start {
    /// By the machine's clock.
    Machine(Instant),
    /// By the provided clock.
    Provided(Duration),
}

impl Start {
    /// Returns the current time.
    pub fn now() -> Start {
        provided().map_or_else(|| Start::Machine(Instant::now()), |here| Start::Provided(here.now()))
    }

    /// Returns the time since then.
    pub fn elapsed(self) -> Duration {
        match self {
            Start::Machine(start) => start.elapsed(),
            Start::Provided(start) => provided().map_or(Duration::ZERO, |here| here.now().saturating_sub(start)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;

    use super::*;
    use crate::terminal::runner::Outcome;

    const RECORDINGS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../conformance/recordings");

    fn bytes(name: &str) -> Vec<u8> {
        fs::read(format!("{RECORDINGS}/{name}.pickle.xz")).expect("a recording")
    }

    /// A clock that advances by a second at every call.
    fn seconds() -> impl Fn() -> Duration + Send + Sync + 'static {
        let calls = AtomicU64::new(0);
        move || Duration::from_secs(calls.fetch_add(1, Ordering::Relaxed))
    }

    fn empty(medium: Medium) -> Surroundings {
        Surroundings::new(seconds(), Arc::default(), medium)
    }

    fn run(surroundings: Surroundings, arguments: &[&str]) -> (Outcome, Written) {
        let arguments: Vec<OsString> = ["parkade"].iter().chain(arguments).map(OsString::from).collect();
        crate::run_within(surroundings, &arguments)
    }

    fn text(bytes: &[u8]) -> &str {
        std::str::from_utf8(bytes).expect("text")
    }

    #[test]
    fn a_command_reads_provided_files_and_no_others() {
        let provided = || empty(Medium::Text).with_file("a.pickle.xz", bytes("deep_mlp.default"));
        let (outcome, written) = run(provided(), &["verify", "--json", "a.pickle.xz"]);
        assert_eq!((outcome, text(&written.error)), (Outcome::Good, ""));
        let line = text(&written.output);
        assert!(line.contains("\"file\":\"a.pickle.xz\"") && line.contains("\"seconds\":1.0"), "{line}");
        let existing = format!("{RECORDINGS}/deep_mlp.default.pickle.xz");
        let (outcome, written) = run(provided(), &["verify", &existing]);
        assert!(outcome == Outcome::CouldNotRun && text(&written.error).contains("cannot be read"), "{}", text(&written.error));
        // Afterwards, the machine's files are used again.
        assert!(is_file(Path::new(&existing)) && !are_provided());
    }

    #[test]
    fn provided_folders_have_ranks() {
        let ranks = empty(Medium::Text)
            .with_file("run/rank0.pickle.xz", bytes("deep_mlp.default"))
            .with_file("run/rank1.pickle.xz", bytes("deep_mlp.expandable"))
            .with_file("run/notes.txt", b"some notes".to_vec())
            .with_file("run/older/rank0.pickle", Vec::new());
        let (outcome, written) = run(ranks, &["verify", "run", "--json"]);
        assert_eq!(outcome, Outcome::Good);
        assert_eq!(text(&written.error), "parkade: run: skipped 1 other file (notes.txt) and 1 folder (older)\n");
        assert_eq!(text(&written.output).matches("\"seconds\":").count(), 2, "{}", text(&written.output));
    }

    #[test]
    fn a_page_is_output_and_the_next_answer_too() {
        let provided = || empty(Medium::Text).with_file("a.pickle.xz", bytes("deep_mlp.default"));
        let (outcome, written) = run(provided(), &["report", "a.pickle.xz", "-o", "-"]);
        assert_eq!(outcome, Outcome::Good);
        assert!(written.output.starts_with(b"<!doctype html>") && written.error.is_empty());
        let (_, written) = run(provided(), &["report", "a.pickle.xz"]);
        assert!(!written.output.is_empty() && written.error.is_empty(), "text is on standard output again");
        assert!(!text(&written.output).contains('\u{1b}'), "no colours");
    }

    #[test]
    fn nothing_is_written_to_the_machine() {
        let file = std::env::temp_dir().join(format!("parkade-surroundings-{}.html", std::process::id()));
        let provided = empty(Medium::Text).with_file("a.pickle.xz", bytes("deep_mlp.default"));
        let (outcome, written) = run(provided, &["report", "a.pickle.xz", "-o", file.to_str().expect("a name")]);
        assert!(outcome == Outcome::CouldNotRun && text(&written.error).contains("no file system"), "{}", text(&written.error));
        assert!(!file.exists());
    }

    #[test]
    fn answers_for_people_have_the_form_of_the_medium() {
        let provided = |medium| empty(medium).with_file("a.pickle.xz", bytes("deep_mlp.default"));
        let (_, written) = run(provided(Medium::Html), &["advise", "a.pickle.xz"]);
        assert!(written.output.starts_with(b"<div class=\"parkade\""), "{}", text(&written.output));
        assert!(text(&written.output).contains("<details>"), "everything that was found is folded");
        let (_, written) = run(provided(Medium::Text), &["advise", "a.pickle.xz"]);
        assert!(!text(&written.output).contains('<'), "{}", text(&written.output));
    }

    #[test]
    fn wrong_arguments_are_one_remark() {
        let (outcome, written) = run(empty(Medium::Html), &["advise"]);
        assert_eq!((outcome, written.error.iter().filter(|&&byte| byte == b'\n').count()), (Outcome::CouldNotRun, 1));
        assert!(written.output.is_empty());
    }

    #[test]
    fn progress_is_reported_on_the_thread_that_works() {
        for arguments in [&["verify", "a.pickle.xz"][..], &["advise", "a.pickle.xz"], &["verify", "a.pickle.xz", "b.pickle.xz"]] {
            let (heard, here) = (Arc::new(Mutex::new(Vec::new())), thread::current().id());
            let hears = Arc::clone(&heard);
            let watch = Watch::with_listener(move |done, total, unit| {
                assert_eq!(thread::current().id(), here);
                hears.lock().expect("a lock").push((done, total, unit.to_owned()));
            });
            let provided = Surroundings::new(seconds(), Arc::new(watch), Medium::Text)
                .with_file("a.pickle.xz", bytes("deep_mlp.default"))
                .with_file("b.pickle.xz", bytes("deep_mlp.expandable"));
            assert_eq!(run(provided, arguments).0, Outcome::Good);
            let heard = heard.lock().expect("a lock");
            assert!(
                heard.iter().any(|(done, total, unit)| *done > 0 && done == total && !unit.is_empty()),
                "{arguments:?}: {heard:?}"
            );
        }
    }
}
