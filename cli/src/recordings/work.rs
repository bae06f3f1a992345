//! Working through recordings on all cores, with bounded memory, and with the results in order.
//!
//! Each thread takes the next file when it is done with its last one. Files are held back while those being read are likely to take more
//! than a fixed amount of memory together, but one is always read.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;

use anyhow::{Result, anyhow};
use parkade_recording::compression::{Compression, detect};

use super::inputs::Inputs;
use crate::terminal::progress;

/// The files being read have at most this size together, decompressed; one may have more.
const MOST_BYTES: u64 = 4 << 30;
/// How much larger a compressed file becomes, at the upper end of what recordings do.
const RATIO: u64 = 60;

/// Runs `work` on each file, and gives the results to `done` in the order of the files, each as soon as all before it are there. Errors do
/// not name the file.
///
/// # Errors
/// That of `done`, which ends it.
///
/// # Panics
/// As `work`: what unwinds there, also because it was cancelled, unwinds here.
pub fn each<T: Send>(
    inputs: &Inputs,
    is_hidden: bool,
    work: impl Fn(&Path) -> Result<T> + Sync,
    mut done: impl FnMut(usize, Result<T>) -> Result<()>,
) -> Result<()> {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(inputs.all.len());
    let (next, memory) = (AtomicUsize::new(0), Memory::default());
    let bar = progress::of("files", is_hidden);
    bar.set_length(inputs.all.len() as u64);
    let (sender, results) = mpsc::channel();
    let worker = |sender: mpsc::Sender<(usize, thread::Result<Result<T>>)>| {
        progress::hush_thread();
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(input) = inputs.all.get(place) else { break };
            let result = match &input.refusal {
                Some(refusal) => Ok(Err(anyhow!("{refusal}"))),
                None => {
                    let _share = memory.take(likely_size(&input.path));
                    // Nothing that it has touched is looked at again: it goes on unwinding below.
                    catch_unwind(AssertUnwindSafe(|| work(&input.path)))
                }
            };
            // Nobody listens any more after an error of `done`.
            if sender.send((place, result)).is_err() {
                break;
            }
        }
    };
    let outcome = thread::scope(|scope| {
        for _ in 0..threads {
            let sender = sender.clone();
            scope.spawn(|| worker(sender));
        }
        drop(sender);
        let mut waiting = BTreeMap::new();
        let mut place = 0;
        for (at, result) in results {
            waiting.insert(at, result.unwrap_or_else(|unwound| resume_unwind(unwound)));
            while let Some(result) = waiting.remove(&place) {
                bar.suspend(|| done(place, result))?;
                place += 1;
                bar.set_position(place as u64);
            }
        }
        Ok(())
    });
    bar.finish_and_clear();
    outcome
}

/// How large a file is likely to be when decompressed; 0 if it cannot be read, which reading it will say.
fn likely_size(path: &Path) -> u64 {
    let length = fs::metadata(path).map_or(0, |data| if data.is_file() { data.len() } else { 0 });
    let mut head = [0; 8];
    // Whatever is no regular file may have nothing to read, or only once.
    let is_compressed = length > 0
        && File::open(path)
            .and_then(|mut file| file.read(&mut head))
            .is_ok_and(|read| detect(&head[..read]) != Compression::None);
    length.saturating_mul(if is_compressed { RATIO } else { 1 })
}

/// The memory that the files being read take, by their likely sizes.
#[derive(Default)]
struct Memory {
    in_use: Mutex<u64>,
    freed: Condvar,
}

/// A part of the memory, until it is dropped.
struct Share<'m> {
    memory: &'m Memory,
    bytes: u64,
}

impl Memory {
    /// Waits until there is room for a file of this size, or nothing is in use.
    fn take(&self, bytes: u64) -> Share<'_> {
        let has_no_room = |in_use: &mut u64| *in_use > 0 && in_use.saturating_add(bytes) > MOST_BYTES;
        let in_use = self.freed.wait_while(self.lock(), has_no_room);
        *in_use.unwrap_or_else(PoisonError::into_inner) += bytes;
        Share { memory: self, bytes }
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        let mut in_use = self.memory.lock();
        *in_use = in_use.saturating_sub(self.bytes);
        self.memory.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use super::*;

    fn inputs(names: impl IntoIterator<Item = String>) -> Inputs {
        Inputs::of(&names.into_iter().map(PathBuf::from).collect::<Vec<_>>())
    }

    #[test]
    fn results_come_in_order_however_long_each_takes() {
        let inputs = inputs((0..40).map(|number| format!("/nowhere/{number}")));
        let work = |path: &Path| {
            let number: u64 =
                path.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok()).expect("a number");
            thread::sleep(Duration::from_millis(if number.is_multiple_of(7) { 15 } else { 0 }));
            if number == 5 { Err(anyhow!("five")) } else { Ok(number) }
        };
        let mut seen = Vec::new();
        let run = each(&inputs, true, work, |place, result| {
            seen.push((place as u64, result.ok()));
            Ok(())
        });
        assert!(run.is_ok());
        assert_eq!(seen, (0..40).map(|number| (number, Some(number).filter(|&number| number != 5))).collect::<Vec<_>>());
    }

    #[test]
    fn an_error_of_the_receiver_ends_it() {
        let inputs = inputs((0..1000).map(|number| format!("/nowhere/{number}")));
        let worked = AtomicUsize::new(0);
        let work = |_: &Path| {
            thread::sleep(Duration::from_millis(1));
            Ok(worked.fetch_add(1, Ordering::Relaxed))
        };
        assert!(each(&inputs, true, work, |_, _| Err(anyhow!("closed"))).is_err());
        assert!(worked.load(Ordering::Relaxed) < 500);
    }

    #[test]
    fn only_one_file_of_any_size_is_read_beside_others_that_leave_room() {
        let memory = Memory::default();
        let large = memory.take(MOST_BYTES * 3);
        thread::scope(|scope| {
            let second = scope.spawn(|| drop(memory.take(1)));
            thread::sleep(Duration::from_millis(20));
            assert!(!second.is_finished());
            drop(large);
        });
        let _both = (memory.take(MOST_BYTES / 2), memory.take(MOST_BYTES / 2));
    }
}
