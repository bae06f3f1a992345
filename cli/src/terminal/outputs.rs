//! Rules by which commands write files: never over an input, over an existing file only with `--force`, and either
//! completely or not at all.
//!
//! A file is first written as a draft in the same folder, synced to disk, and then renamed. The draft's name identifies the process that
//! writes it by host, process id and start time. A process removes its drafts whenever it can catch its end. Drafts of killed processes
//! are removed by the next process that writes to the folder and can tell that they are gone.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use anyhow::{Context, Result, anyhow, bail};

use super::output::{self, Stream};
use super::runner::Form;
use super::surroundings::are_provided;

/// The drafts that a signal handler removes. It has no value inside other programs: they may fork, and must not wait for a lock.
static DRAFTS: OnceLock<Mutex<BTreeSet<PathBuf>>> = OnceLock::new();

fn drafts() -> Option<MutexGuard<'static, BTreeSet<PathBuf>>> {
    DRAFTS.get().map(|drafts| drafts.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A hidden file that is removed when it is dropped.
struct Draft {
    path: PathBuf,
    file: File,
}

impl Draft {
    /// Creates a draft in the folder of this file. Its name is short, whatever the length of the file's name.
    pub(super) fn beside(file: &Path) -> io::Result<Draft> {
        let maker = Maker::this();
        // The lock is held until the draft is registered, so that a signal finds every existing draft.
        let mut drafts = drafts();
        let mut number = 0_u32;
        loop {
            let path = file.with_file_name(name(&maker, number));
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => {
                    if let Some(drafts) = &mut drafts {
                        drafts.insert(path.clone());
                    }
                    return Ok(Draft { path, file });
                }
                // Another thread's draft.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < 1000 => number += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the open file.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Moves the draft to its destination. An existing file is replaced only if `replaces` is true.
    fn put(self, file: &Path, replaces: bool) -> io::Result<()> {
        if replaces {
            return fs::rename(&self.path, file);
        }
        // A hard link never replaces a file. On file systems without hard links, only the check in `Outputs::check` protects it.
        match fs::hard_link(&self.path, file) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(error),
            Err(_) if fs::symlink_metadata(file).is_ok() => Err(io::ErrorKind::AlreadyExists.into()),
            Err(_) => fs::rename(&self.path, file),
        }
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // It may already have been moved.
        let _ = fs::remove_file(&self.path);
        if let Some(mut drafts) = drafts() {
            drafts.remove(&self.path);
        }
    }
}

fn name(maker: &Maker, number: u32) -> String {
    format!(".parkade-{maker}-{number}.part")
}

/// Returns the process that made the draft with this name; `None` if the name is not a draft's.
fn maker_of(name: &str) -> Option<Maker> {
    let (maker, number) = name.strip_prefix(".parkade-")?.strip_suffix(".part")?.rsplit_once('-')?;
    number.parse::<u32>().ok()?;
    maker.parse().ok()
}

/// Removes the drafts in a folder whose processes are gone.
fn remove_left_over(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let here = Maker::this();
    for entry in entries.flatten() {
        let Some(maker) = entry.file_name().to_str().and_then(maker_of) else { continue };
        if entry.file_type().is_ok_and(|kind| kind.is_file()) && maker.is_gone(&here) {
            // Another process may have removed it.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Installs a handler that removes drafts when a signal ends this process; the signal still ends it. Only the main program may call this,
/// not a library. Ignored signals stay ignored, and exceeding the maximum file size becomes an ordinary write error.
#[cfg(all(unix, feature = "native"))]
pub fn remove_on_signals() {
    use std::sync::atomic::AtomicBool;
    use std::sync::{Arc, mpsc};
    use std::thread;

    use signal_hook::consts::SIGXFSZ;
    use signal_hook::flag;
    use signal_hook::iterator::Signals;
    use signal_hook::low_level::emulate_default_handler;

    let _ = flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)));
    let (ready, is_ready) = mpsc::channel();
    let wait = move || {
        let Ok(mut signals) = Signals::new(ending_signals()) else { return };
        DRAFTS.get_or_init(Mutex::default);
        let _ = ready.send(());
        let Some(signal) = signals.forever().next() else { return };
        // The lock is held until the process ends, so that no further draft is created.
        let drafts = drafts();
        for draft in drafts.iter().flat_map(|drafts| drafts.iter()) {
            let _ = fs::remove_file(draft);
        }
        let _ = emulate_default_handler(signal);
    };
    // Handlers are installed only if the thread runs; without it, a signal would be lost.
    if thread::Builder::new().name("signals".to_owned()).stack_size(64 << 10).spawn(wait).is_ok() {
        let _ = is_ready.recv();
    }
}

/// Returns the signals that end a process unless it handles them, except those for its own faults and those that it
/// inherited as ignored, for example from nohup or as a background job of a script. If that is unknown, returns the
/// signals that are rarely ignored.
#[cfg(all(unix, feature = "native"))]
fn ending_signals() -> Vec<i32> {
    use signal_hook::consts::*;
    let ignored = fs::read_to_string("/proc/self/status").ok().and_then(|status| {
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
        u64::from_str_radix(mask.trim(), 16).ok()
    });
    let all = [SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGALRM, SIGVTALRM, SIGPROF, SIGUSR1, SIGUSR2, SIGXCPU];
    match ignored {
        Some(ignored) => all.into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0).collect(),
        None => all[..2].to_vec(),
    }
}

/// This platform has no known signals.
#[cfg(all(not(unix), feature = "native"))]
pub fn remove_on_signals() {}

/// A process.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Maker {
    /// The scope of its id: the host name, the boot and the namespace of process ids.
    host: String,
    pid: u32,
    /// Its start time, in kernel ticks since boot.
    start: u64,
}

/// The host if it is unknown. A process on it never counts as gone.
const UNKNOWN: &str = "unknown";

impl Maker {
    /// Returns the current process.
    fn this() -> Maker {
        let pid = std::process::id();
        let known = system::host().zip(system::start_of_this(pid));
        let (host, start) = known.unwrap_or_else(|| (UNKNOWN.to_owned(), 0));
        Maker { host, pid, start }
    }

    /// Returns whether the process was on the same host as `here` and is certainly gone.
    fn is_gone(&self, here: &Maker) -> bool {
        self.host == here.host && self.host != UNKNOWN && system::is_gone(self.pid, self.start)
    }
}

impl fmt::Display for Maker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.host, self.pid, self.start)
    }
}

impl FromStr for Maker {
    type Err = ();

    fn from_str(text: &str) -> Result<Maker, ()> {
        let mut parts = text.rsplitn(3, '-');
        let (start, pid, host) = (parts.next(), parts.next(), parts.next());
        let start = start.and_then(|start| start.parse().ok()).ok_or(())?;
        let pid = pid.and_then(|pid| pid.parse().ok()).ok_or(())?;
        let host = host.filter(|host| !host.is_empty()).ok_or(())?.to_owned();
        Ok(Maker { host, pid, start })
    }
}

#[cfg(all(target_os = "linux", feature = "native"))]
mod system {
    use std::fs;

    use rustix::io::Errno;
    use rustix::process::{Pid, test_kill_process};

    /// The name does not distinguish hosts cloned from one image, or containers on one host.
    pub(super) fn host() -> Option<String> {
        let name = fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
        let namespace: String = namespace.to_str()?.chars().filter(char::is_ascii_digit).collect();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let name: String = name.trim().chars().take(64).map(|c| if is_plain(c) { c } else { '_' }).collect();
        let boot = boot.get(..8)?;
        (!namespace.is_empty()).then(|| format!("{name}.{boot}.{namespace}"))
    }

    /// Returns the start time of this process; `None` if it is unknown or `/proc` belongs to a different namespace.
    pub(super) fn start_of_this(pid: u32) -> Option<u64> {
        let stat = fs::read("/proc/self/stat").ok()?;
        stat.starts_with(format!("{pid} ").as_bytes()).then(|| Stat::of(&stat))?.map(|stat| stat.start)
    }

    /// A process that is missing from `/proc` may be hidden, so this asks the kernel.
    pub(super) fn is_gone(pid: u32, start: u64) -> bool {
        let Some(id) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return false };
        if test_kill_process(id) == Err(Errno::SRCH) {
            return true;
        }
        let stat = fs::read(format!("/proc/{pid}/stat")).ok().and_then(|stat| Stat::of(&stat));
        stat.is_some_and(|stat| stat.start != start || stat.has_ended)
    }

    /// The contents of `/proc/PID/stat`.
    struct Stat {
        start: u64,
        /// It is a zombie: its parent has not waited for it.
        has_ended: bool,
    }

    impl Stat {
        fn of(text: &[u8]) -> Option<Stat> {
            // The preceding name may contain any character.
            let text = String::from_utf8_lossy(text);
            let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
            let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
            let (state, threads) = (fields.first()?, number(20)?);
            // If other threads are still running, only the main thread has ended.
            let has_ended = matches!(*state, "Z" | "X") && threads <= 1;
            Some(Stat { start: number(22)?, has_ended })
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_state_is_read_behind_any_name() {
            let stat = |name: &str, state: &str, threads: u32| {
                format!("7 ({name}) {state} 1 7 7 0 -1 4194304 98 0 0 0 0 0 0 0 20 0 {threads} 0 413017 3133440 359")
            };
            for name in ["cat", "a b", ") Z 1 (", ""] {
                let read = |state: &str, threads| Stat::of(stat(name, state, threads).as_bytes()).expect("a state");
                assert!(read("S", 1).start == 413_017 && !read("S", 1).has_ended, "{name}");
                assert!(read("Z", 1).has_ended && !read("Z", 2).has_ended, "{name}");
            }
            assert!(Stat::of(b"7 (cat) S 1").is_none() && Stat::of(b"").is_none());
        }

        #[test]
        fn a_process_is_gone_once_it_has_ended() {
            let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().expect("it starts");
            let pid = child.id();
            let start = Stat::of(&fs::read(format!("/proc/{pid}/stat")).expect("a state")).expect("a state").start;
            assert!(!is_gone(pid, start) && is_gone(pid, start + 1) && !is_gone(0, 0) && !is_gone(u32::MAX, 0));
            child.kill().expect("it is ended");
            // Before and after the parent waits for it.
            for _ in 0..500 {
                if is_gone(pid, start) {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            assert!(is_gone(pid, start));
            child.wait().expect("it ends");
            assert!(is_gone(pid, start));
        }
    }
}

/// Nothing is known on this platform.
#[cfg(not(all(target_os = "linux", feature = "native")))]
mod system {
    pub(super) fn host() -> Option<String> {
        None
    }

    pub(super) fn start_of_this(_: u32) -> Option<u64> {
        None
    }

    pub(super) fn is_gone(_: u32, _: u64) -> bool {
        false
    }
}

/// The files that a command was asked to write, before they are checked.
pub struct Wanted<'a> {
    force: bool,
    form: Form,
    inputs: Vec<&'a Path>,
    targets: Vec<(&'static str, &'a Target, Kind)>,
}

/// The operation of a command on a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Writes a new one.
    Made,
    /// Appends to it. The command reads the existing contents, and refuses a file that is not its own.
    Continued,
}

impl<'a> Wanted<'a> {
    /// Returns an empty list of files. `form` is the format of standard output.
    pub fn new(force: bool, form: Form) -> Wanted<'a> {
        Wanted { force, form, inputs: Vec::new(), targets: Vec::new() }
    }

    /// Adds files that the command reads.
    #[must_use]
    pub fn reads<P: AsRef<Path> + ?Sized + 'a>(mut self, files: impl IntoIterator<Item = &'a P>) -> Wanted<'a> {
        self.inputs.extend(files.into_iter().map(AsRef::as_ref));
        self
    }

    /// Adds the file that an option such as `--csv` names, if it is given.
    #[must_use]
    pub fn writes(mut self, option: &'static str, target: Option<&'a Target>) -> Wanted<'a> {
        self.targets.extend(target.map(|target| (option, target, Kind::Made)));
        self
    }

    /// Adds a file that the command continues.
    #[must_use]
    pub fn continues(mut self, option: &'static str, target: Option<&'a Target>) -> Wanted<'a> {
        self.targets.extend(target.map(|target| (option, target, Kind::Continued)));
        self
    }

    /// Refuses files that must not or cannot be written, before work that may take long. If an output goes to standard output, text for
    /// people goes to standard error from now on.
    ///
    /// # Errors
    /// A file is an input, exists without `--force`, or cannot be written; or two outputs have the same destination.
    pub fn check(&self) -> Result<Outputs> {
        for (place, &(option, target, kind)) in self.targets.iter().enumerate() {
            if let Some((other, ..)) = self.targets[..place].iter().find(|(_, other, _)| is_same_target(other, target)) {
                bail!("{other} and {option} would both be written to {target}: choose two files");
            }
            match target.file() {
                None => self.check_stdout(option)?,
                Some(file) => self.check_file(&format!("{option} {target}"), file, kind)?,
            }
        }
        if self.targets.iter().any(|(_, target, _)| target.is_stdout()) {
            output::leave_stdout_to_data();
        }
        Ok(Outputs { force: self.force })
    }

    fn check_stdout(&self, option: &str) -> Result<()> {
        let other = match self.form {
            Form::Text => return Ok(()),
            Form::Markdown => "--markdown",
            Form::Data => "the tables",
            Form::Json => "--json",
        };
        bail!("{option} - and {other} would both be printed on standard output: give {option} a file");
    }

    fn check_file(&self, what: &str, file: &Path, kind: Kind) -> Result<()> {
        if are_provided() {
            bail!("{what}: there is no file system here: write to standard output (`-`)");
        }
        if self.inputs.iter().any(|input| is_same_file(input, file)) {
            bail!("{what}: the output is the input file, which is never overwritten: choose a different file");
        }
        let cannot = |error: io::Error| anyhow!("cannot write {what}: {error}");
        let place = Place::of(file).map_err(cannot)?;
        if kind == Kind::Continued {
            place.tidy();
            return Ok(());
        }
        if !self.force && place.is_taken() {
            bail!("{what} already exists: --force overwrites it");
        }
        place.tidy();
        place.try_beside().map_err(cannot)
    }
}

fn is_same_target(one: &Target, other: &Target) -> bool {
    match (one.file(), other.file()) {
        (Some(one), Some(other)) => is_same_file(one, other),
        (one, other) => one == other,
    }
}

/// The right to write the files that [`Wanted::check`] accepted.
#[derive(Clone, Copy)]
pub struct Outputs {
    force: bool,
}

impl Outputs {
    /// Writes one of them through a draft, so that it is written completely or not at all.
    ///
    /// # Errors
    /// The system's error, with the name of the file.
    pub fn write(self, target: &Target, bytes: &[u8]) -> Result<()> {
        self.write_with(target, |out| out.write_all(bytes))
    }

    /// Replaces a file that the command continues in the same way.
    ///
    /// # Errors
    /// The system's error, with the name of the file.
    pub fn replace(self, target: &Target, bytes: &[u8]) -> Result<()> {
        Outputs { force: true }.write(target, bytes)
    }

    /// Writes one of them in the same way, piece by piece.
    ///
    /// # Errors
    /// The error of the system or of `pieces`, with the name of the file.
    pub fn write_with<T>(self, target: &Target, pieces: impl FnOnce(&mut dyn Write) -> io::Result<T>) -> Result<T> {
        let Some(file) = target.file() else {
            let mut out = output::stdout();
            let made = pieces(&mut out)?;
            out.flush()?;
            return Ok(made);
        };
        let written = Place::of(file).and_then(|place| place.write(self.force, pieces));
        written.with_context(|| format!("cannot write {target}"))
    }
}

/// The destination of an output, as given on the command line: a file, or `-` for standard output.
///
/// Options that write a file have this type, and those that read one have the type [`PathBuf`], so that tests find all options that write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target(PathBuf);

impl Target {
    /// Returns whether it is standard output.
    fn is_stdout(&self) -> bool {
        self.0.as_os_str() == "-"
    }

    /// Returns the path, which is `-` for standard output.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the file, unless it is standard output.
    pub fn file(&self) -> Option<&Path> {
        if self.is_stdout() { None } else { Some(&self.0) }
    }
}

impl From<OsString> for Target {
    fn from(given: OsString) -> Target {
        Target(given.into())
    }
}

impl From<PathBuf> for Target {
    fn from(path: PathBuf) -> Target {
        Target(path)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_stdout() { f.write_str("standard output") } else { self.0.display().fmt(f) }
    }
}

/// Returns whether two paths lead to the same file, including through links. The file need not exist.
fn is_same_file(one: &Path, other: &Path) -> bool {
    is_same_inode(one, other) || resolved(one).is_some_and(|one| Some(one) == resolved(other))
}

/// Returns whether both exist and are the same file. Hard links have different canonical paths.
#[cfg(unix)]
fn is_same_inode(one: &Path, other: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |path: &Path| fs::metadata(path).ok().map(|data| (data.dev(), data.ino()));
    identity(one).is_some_and(|one| Some(one) == identity(other))
}

#[cfg(not(unix))]
fn is_same_inode(_: &Path, _: &Path) -> bool {
    false
}

/// Returns the canonical path; for a missing file, the canonical path of its folder with its name.
fn resolved(path: &Path) -> Option<PathBuf> {
    if let Ok(path) = path.canonicalize() {
        return Some(path);
    }
    let end = end_of_links(path).ok()?;
    Some(folder_of(&end).canonicalize().ok()?.join(end.file_name()?))
}

/// Resolves all links; the result need not exist. An output through a link replaces the file, not the link.
fn end_of_links(path: &Path) -> io::Result<PathBuf> {
    /// The maximum number that Linux follows.
    const MOST_LINKS: usize = 40;
    let mut end = path.to_owned();
    for _ in 0..MOST_LINKS {
        match fs::read_link(&end) {
            Ok(next) => end = folder_of(&end).join(next),
            Err(_) => return Ok(end),
        }
    }
    Err(io::Error::other("too many levels of symbolic links"))
}

/// Returns the folder of a file.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The target of a path.
enum Place {
    /// A file that may not exist yet. All links in the path are resolved.
    File(PathBuf),
    /// A device or a pipe, which is written to directly because it has nothing to lose. It may have no reader.
    Device(PathBuf),
}

impl Place {
    /// Resolves a path.
    ///
    /// # Errors
    /// It is a folder, it leads nowhere, or its folder does not exist.
    fn of(path: &Path) -> io::Result<Place> {
        match fs::metadata(path) {
            Ok(data) if data.is_dir() => return Err(io::Error::other("it is a folder")),
            Ok(data) if !data.is_file() => return Ok(Place::Device(path.to_owned())),
            _ => {}
        }
        let file = end_of_links(path)?;
        if file.file_name().is_none() {
            return Err(io::Error::other("it does not name a file"));
        }
        match fs::metadata(folder_of(&file)) {
            Ok(folder) if folder.is_dir() => Ok(Place::File(file)),
            Ok(_) => Err(io::Error::other(format!("{} is not a folder", folder_of(&file).display()))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(io::Error::other(format!("there is no folder {}", folder_of(&file).display())))
            }
            Err(error) => Err(error),
        }
    }

    /// Returns whether writing would replace an existing file.
    fn is_taken(&self) -> bool {
        matches!(self, Place::File(file) if fs::symlink_metadata(file).is_ok())
    }

    /// Removes the drafts that killed processes left in the folder.
    fn tidy(&self) {
        if let Place::File(file) = self {
            remove_left_over(folder_of(file));
        }
    }

    /// Tries the first step of [`Place::write`].
    fn try_beside(&self) -> io::Result<()> {
        let Place::File(file) = self else { return Ok(()) };
        Draft::beside(file).map(drop)
    }

    /// Writes it piece by piece. An existing file is replaced only if `replaces` is true, even if it was created after all checks.
    fn write<T>(&self, replaces: bool, pieces: impl FnOnce(&mut dyn Write) -> io::Result<T>) -> io::Result<T> {
        let file = match self {
            Place::Device(device) => {
                return written(Stream::unnamed(OpenOptions::new().write(true).open(device)?), pieces);
            }
            Place::File(file) => file,
        };
        let draft = Draft::beside(file)?;
        let made = written(draft.file(), pieces)?;
        draft.file().sync_all()?;
        if let Ok(old) = fs::metadata(file) {
            draft.file().set_permissions(old.permissions())?;
        }
        draft.put(file, replaces)?;
        if let Ok(folder) = File::open(folder_of(file)) {
            // The file is already complete; some file systems cannot sync a folder.
            let _ = folder.sync_all();
        }
        Ok(made)
    }
}

fn written<T>(file: impl Write, pieces: impl FnOnce(&mut dyn Write) -> io::Result<T>) -> io::Result<T> {
    let mut out = BufWriter::new(file);
    let made = pieces(&mut out)?;
    out.flush()?;
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_whose_it_is() {
        let maker = Maker::this();
        assert_eq!(maker_of(&name(&maker, 7)), Some(maker.clone()));
        let parsed = maker_of(".parkade-a-host.1.2-33-44-0.part").expect("a draft");
        assert_eq!(parsed.to_string(), "a-host.1.2-33-44");
        for other in
            [".parkade-1-0.part", ".parkade-h-1-2-x.part", ".parkade-h-1-x-0.part", ".parkade-h-x-2-0.part", "h-1-2-0.part"]
        {
            assert_eq!(maker_of(other), None, "{other}");
        }
        assert!(name(&maker, u32::MAX).len() < 200);
    }

    #[test]
    fn a_draft_that_is_dropped_is_gone() {
        let folder = std::env::temp_dir().join(format!("parkade-draft-{}", std::process::id()));
        fs::create_dir(&folder).expect("a folder");
        let count = || fs::read_dir(&folder).expect("the folder").count();
        let (one, other) = (Draft::beside(&folder.join("file")), Draft::beside(&folder.join("file")));
        assert_eq!(count(), 2);
        remove_left_over(&folder);
        assert_eq!(count(), 2, "of a process that lives");
        drop((one, other));
        assert_eq!(count(), 0);
        // Cancelled work ends in the same way.
        let unwound = std::panic::catch_unwind(|| {
            let _draft = Draft::beside(&folder.join("file"));
            std::panic::resume_unwind(Box::new(()));
        });
        assert!(unwound.is_err() && count() == 0);
        fs::remove_dir(&folder).expect("an empty folder");
    }
}
