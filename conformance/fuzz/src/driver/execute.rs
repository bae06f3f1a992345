//! One execution: whether the input was survived, how much memory it took at once and how long.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe};
use std::time::Duration;

use rayon::ThreadPoolBuilder;
use rustix::time::{ClockId, clock_gettime};

use crate::targets::{Reached, Target};

/// The most memory that an input of less than 1 MB may take at once: 1 GiB.
pub const LARGEST_PEAK_BYTES: u64 = 1 << 30;
/// The most processor time that an input of less than 100 KB may take.
pub const LONGEST: Duration = Duration::from_secs(10);

const LARGE_INPUT: usize = 1_000_000;
const LONG_INPUT: usize = 100_000;

/// How an input was not survived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FailureKind {
    /// A panic: a broken law, an overflow, an index.
    Panic,
    /// More memory than [`LARGEST_PEAK_BYTES`].
    Memory,
    /// More time than [`LONGEST`].
    Time,
    /// The process ended: an allocation failed, or a stack overflowed.
    Abort,
    /// It did not end.
    Hang,
}

impl FailureKind {
    /// Its name, as in names of files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            FailureKind::Panic => "panic",
            FailureKind::Memory => "memory",
            FailureKind::Time => "time",
            FailureKind::Abort => "abort",
            FailureKind::Hang => "hang",
        }
    }
}

/// An input that was not survived.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// How.
    pub kind: FailureKind,
    /// Where in the code, for a panic.
    pub place: String,
    /// What the panic says, or the figure that is too large.
    pub message: String,
}

/// The outcome of an execution.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Execution {
    /// How far the input got.
    pub reached: Result<Reached, Failure>,
    /// The most memory at once, in bytes.
    pub peak_bytes: u64,
    /// The processor time.
    pub time: Duration,
}

thread_local! {
    static PANIC: RefCell<Option<(String, String)>> = const { RefCell::new(None) };
}

/// Prepares this thread: work that is shared between threads is done by this one, so that its memory and time are counted.
///
/// # Panics
/// If this thread was prepared before.
pub fn prepare_thread() {
    let pool = ThreadPoolBuilder::new().num_threads(1).use_current_thread().build().expect("a thread is prepared once");
    // The thread belongs to it from now on.
    std::mem::forget(pool);
}

/// Notes panics instead of printing them. It holds for the whole process.
pub(super) fn note_panics() {
    panic::set_hook(Box::new(|info| {
        let place = info.location().map(|place| format!("{}:{}", place.file(), place.line())).unwrap_or_default();
        PANIC.with(|noted| *noted.borrow_mut() = Some((place, text(info.payload()))));
    }));
}

fn text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str).or_else(|| payload.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a message").to_owned()
}

/// Runs a target on an input.
#[must_use]
pub fn execute(target: &Target, bytes: &[u8], case: u8) -> Execution {
    let start = processor_time();
    let mut ended = None;
    let memory = allocation_counter::measure(|| {
        ended = Some(panic::catch_unwind(AssertUnwindSafe(|| (target.run)(bytes, case))));
    });
    let time = processor_time().saturating_sub(start);
    let peak_bytes = memory.bytes_max;
    let failed = |kind, message| Err(Failure { kind, place: String::new(), message });
    let reached = match ended.expect("it was run") {
        Err(payload) => {
            let noted = PANIC.with(|noted| noted.borrow_mut().take());
            let (place, message) = noted.unwrap_or_else(|| (String::new(), text(payload.as_ref())));
            Err(Failure { kind: FailureKind::Panic, place, message })
        }
        Ok(_) if peak_bytes > LARGEST_PEAK_BYTES && bytes.len() < LARGE_INPUT => {
            failed(FailureKind::Memory, format!("{peak_bytes} bytes at once for an input of {} bytes", bytes.len()))
        }
        Ok(_) if time > LONGEST && bytes.len() < LONG_INPUT => {
            failed(FailureKind::Time, format!("{:.1} s for an input of {} bytes", time.as_secs_f64(), bytes.len()))
        }
        Ok(reached) => Ok(reached),
    };
    Execution { reached, peak_bytes, time }
}

/// The time that this thread has had a processor. Other programs on the machine do not count.
fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}
