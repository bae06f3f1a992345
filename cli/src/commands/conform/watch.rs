//! Progress of a run, and a time limit for entries that hang.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use parkade_conformance::suite::{Effort, Progress, Row};

/// The time limit of an entry on a real device, plus one second for each sequence. A driver may stop answering.
const LONGEST: Duration = Duration::from_secs(1200);

/// Shows progress on a terminal, and ends the process if an entry hangs; the driver then reclaims everything.
pub(super) struct Watch {
    bar: ProgressBar,
    running: Arc<Mutex<BTreeMap<String, Instant>>>,
    over: Arc<AtomicBool>,
}

/// The time after which an entry counts as hanging.
pub(super) fn hangs_after(effort: &Effort) -> Duration {
    LONGEST + Duration::from_secs(u64::from(effort.cases))
}

impl Watch {
    pub(super) fn new(entries: usize, is_quiet: bool, hangs_after: Option<Duration>) -> Watch {
        let bar = ProgressBar::new(entries as u64);
        if is_quiet || !std::io::stderr().is_terminal() {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {msg}") {
            bar.set_style(style);
        }
        let (running, over) = (Arc::new(Mutex::new(BTreeMap::new())), Arc::new(AtomicBool::new(false)));
        let watch = Watch { bar, running: Arc::clone(&running), over: Arc::clone(&over) };
        let Some(longest) = hangs_after else { return watch };
        thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_secs(1));
                end_if_hanging(&running, longest);
            }
        });
        watch
    }

    pub(super) fn finish(&self) {
        self.over.store(true, Ordering::Relaxed);
        self.bar.finish_and_clear();
    }
}

fn end_if_hanging(running: &Mutex<BTreeMap<String, Instant>>, longest: Duration) {
    let hanging = lock(running).iter().find(|(_, since)| since.elapsed() > longest).map(|(title, _)| title.clone());
    if let Some(title) = hanging {
        // Standard error may be closed.
        let _ = writeln!(std::io::stderr(), "parkade: {title} has not ended in {} s: giving up", longest.as_secs());
        std::process::exit(1);
    }
}

fn lock(running: &Mutex<BTreeMap<String, Instant>>) -> MutexGuard<'_, BTreeMap<String, Instant>> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Progress for Watch {
    fn begins(&self, title: &str) {
        lock(&self.running).insert(title.to_owned(), Instant::now());
        self.bar.set_message(title.to_owned());
    }

    fn ends(&self, row: &Row) {
        lock(&self.running).remove(&format!("{}/{}", row.group.name(), row.name));
        self.bar.inc(1);
    }
}
