//! The suite's entries, and the code that runs a list of them. Each entry has a name, runs on a backend and ends with a
//! verdict.
//!
//! The checks are in [`checks`](crate::checks); nothing here depends on them.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parkade::device::BackendError;
use parkade::units::{Bytes, MIB};
use rayon::prelude::*;

use crate::backend::{AnyBackend, DeviceFacts, Unable};
use crate::law::Broken;

/// The amount of work to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Effort {
    /// The number of random sequences per law.
    pub cases: u32,
    /// The seed from which the sequences are drawn.
    pub seed: u64,
    /// The only sequence to run, instead of drawn ones: the text that an earlier failure printed after [`PROGRAM`].
    pub program: Option<&'static str>,
}

impl Effort {
    /// Creates an effort of this many random sequences per law, drawn from this seed.
    #[must_use]
    pub const fn new(cases: u32, seed: u64) -> Effort {
        Effort { cases, seed, program: None }
    }
}

/// The beginning of the line in a failure's script that [`Effort::program`] accepts, so that the failing sequence is
/// run again.
pub const PROGRAM: &str = "# program ";
/// The beginning of the line in a failure's script that names its entry.
const ENTRY: &str = "# entry ";

/// An entry to run again, as a failure's script names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Again {
    /// The title of the entry.
    pub title: String,
    /// The failing sequence or, if the script has none, the sequences among which it failed.
    pub effort: Effort,
}

impl Again {
    /// Reads a failure's script, as the suite prints it. Lines may be indented.
    ///
    /// # Errors
    /// States which line is missing.
    pub fn read(script: &str) -> Result<Again, String> {
        let after = |start: &str| script.lines().find_map(|line| line.trim_start().strip_prefix(start));
        let title = after(ENTRY).ok_or_else(|| format!("the script has no line `{ENTRY}GROUP/NAME`"))?.trim().to_owned();
        if let Some(program) = after(PROGRAM) {
            let program = Some(&*program.trim_end().to_owned().leak());
            return Ok(Again { title, effort: Effort { program, ..Effort::new(1, 0) } });
        }
        let numbers = after("# seed ").and_then(|line| {
            let (seed, cases) = line.split_once(" cases ")?;
            Some(Effort::new(cases.trim().parse().ok()?, seed.parse().ok()?))
        });
        let effort =
            numbers.ok_or_else(|| format!("the script has neither a line `{PROGRAM}...` nor `# seed SEED cases CASES`"))?;
        Ok(Again { title, effort })
    }

    /// Returns a failure's script with the lines that [`Again::read`] needs.
    fn added(title: &str, effort: &Effort, script: &str) -> String {
        let has_program = script.lines().any(|line| line.starts_with(PROGRAM));
        let effort = if has_program { String::new() } else { format!("# seed {} cases {}\n", effort.seed, effort.cases) };
        format!("{ENTRY}{title}\n# parkade conform --script SCRIPT runs it again\n{effort}{script}")
    }
}

/// The evidence of an entry.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Evidence {
    /// Statistics, pictures of the heap and errors. They are the same in every run and on every device with the same
    /// facts.
    pub text: String,
    /// Measurements, which differ from run to run.
    pub measured: String,
    /// The number of operations that were performed.
    pub operations: u64,
}

impl Evidence {
    /// Creates evidence with only a text.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Evidence {
        Evidence { text: text.into(), ..Evidence::default() }
    }

    /// Creates evidence with a count of operations and no text.
    #[must_use]
    pub fn operations(operations: u64) -> Evidence {
        Evidence { operations, ..Evidence::default() }
    }
}

/// The reason why an entry did not pass.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// The entry cannot run here.
    Skip(String),
    /// A property that should hold does not.
    Fail {
        /// The observation.
        reason: String,
        /// The shortest failing sequence found, as a script for `parkade ops`.
        script: Option<String>,
    },
}

impl Trouble {
    /// Creates a failure with this reason.
    #[must_use]
    pub fn fail(reason: impl Into<String>) -> Trouble {
        Trouble::Fail { reason: reason.into(), script: None }
    }
}

impl From<Unable> for Trouble {
    fn from(unable: Unable) -> Trouble {
        match unable {
            Unable::Absent(reason) => Trouble::Skip(reason),
            Unable::Lost(reason) => Trouble::fail(reason),
        }
    }
}

impl From<Broken> for Trouble {
    fn from(broken: Broken) -> Trouble {
        Trouble::fail(broken.to_string())
    }
}

impl From<BackendError> for Trouble {
    fn from(error: BackendError) -> Trouble {
        Trouble::fail(error.to_string())
    }
}

/// The outcome of an entry.
pub type Verdict = Result<Evidence, Trouble>;

/// The smallest page of PyTorch's expandable segments (spec 4.2).
const EXPANDABLE_PAGE: Bytes = Bytes(2 * MIB);

/// A requirement of an entry for its device. The entry is skipped, with a reason, on a device that lacks it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Requirement {
    /// Addresses can be reserved, and memory can be mapped at them.
    VirtualMemory,
    /// Memory can be mapped in the pages that the allocator and its policies use: 2 MiB and its multiples.
    ExpandableSegments,
    /// Ranges of up to a page divided by this number share pages: 2 means half a page.
    SharedPages(u64),
    /// Any free pages can serve any range.
    RemappedPages,
    /// Work is still pending when the call that submitted it returns.
    PendingWork,
    /// The facts equal those of the simulated device with which the entry compares its results.
    ReferenceFacts,
}

impl Requirement {
    /// Returns the reason why a device with these facts does not meet the requirement; `None` if it does.
    #[must_use]
    pub fn unmet(self, facts: &DeviceFacts) -> Option<&'static str> {
        let unless = |holds: bool, reason| (!holds).then_some(reason);
        let without = unless(facts.has_virtual_memory, "this device has no virtual memory");
        match self {
            Requirement::VirtualMemory => without,
            Requirement::ExpandableSegments => without.or(unless(
                EXPANDABLE_PAGE.get().is_multiple_of(facts.page.get()),
                "expandable segments map 2 MiB pages, which are not whole pages on this device",
            )),
            Requirement::SharedPages(part) => match facts.sharing {
                None => Some("ranges do not share pages on this device"),
                Some(sharing) => unless(
                    sharing.largest.get() >= facts.page.get() / part,
                    "ranges of this size do not share pages on this \
                                                                              device",
                ),
            },
            Requirement::RemappedPages => unless(facts.remaps_pages, "this device needs contiguous memory for a range"),
            Requirement::PendingWork => {
                unless(facts.is_asynchronous, "this device is synchronous: work is done when the call that submits it returns")
            }
            Requirement::ReferenceFacts => unless(
                facts.behaves_as(&DeviceFacts::H200),
                "this device's facts differ from those of the simulated device with which it would be compared",
            ),
        }
    }
}

/// The kind of an entry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Group {
    /// A property of every program.
    Law,
    /// The behaviour of a device call.
    Contract,
    /// A scenario from the source documents.
    Scenario,
    /// A test from PyTorch's own suite.
    PyTorchTest,
    /// The same sequence on two devices.
    Lockstep,
}

parkade_recording::names! {
    Group {
        Group::Law => "law",
        Group::Contract => "contract",
        Group::Scenario => "scenario",
        Group::PyTorchTest => "peer",
        Group::Lockstep => "differential",
    }
}

/// One check.
pub struct Entry {
    /// Its kind.
    pub group: Group,
    /// Its name, unique in its group.
    pub name: String,
    /// The property, in one line.
    pub says: &'static str,
    requires: Vec<Requirement>,
    check: Check<AnyBackend>,
}

type Check<AnyBackend> = Box<dyn Fn(&AnyBackend, &Effort) -> Verdict + Send + Sync>;

impl Entry {
    /// Creates an entry that runs on every device.
    pub fn new(
        group: Group,
        name: impl Into<String>,
        says: &'static str,
        check: impl Fn(&AnyBackend, &Effort) -> Verdict + Send + Sync + 'static,
    ) -> Entry {
        Entry { group, name: name.into(), says, requires: Vec::new(), check: Box::new(check) }
    }

    /// Returns the same entry, skipped on devices that do not meet the requirement.
    #[must_use]
    pub fn requires(mut self, requirement: Requirement) -> Entry {
        self.requires.push(requirement);
        self
    }

    /// Returns the reason why the entry cannot run on a device with these facts; `None` if it can.
    #[must_use]
    pub fn unmet(&self, facts: &DeviceFacts) -> Option<&'static str> {
        self.requires.iter().find_map(|requirement| requirement.unmet(facts))
    }

    /// Runs the check.
    ///
    /// # Errors
    /// The reason why it did not pass; [`Trouble::Skip`] if the device does not meet its
    /// requirement.
    pub fn check(&self, backend: &AnyBackend, effort: &Effort) -> Verdict {
        match self.unmet(&backend.facts()) {
            Some(reason) => Err(Trouble::Skip(reason.to_owned())),
            None => (self.check)(backend, effort),
        }
    }

    /// Returns the group and the name, as filters match them.
    #[must_use]
    pub fn title(&self) -> String {
        format!("{}/{}", self.group.name(), self.name)
    }
}

/// The evidence of one backend's entries, computed on demand.
///
/// The evidence that an entry shows on the reference device must be the same on other devices with the same facts.
pub struct Reference {
    name: &'static str,
    facts: DeviceFacts,
    shows: BTreeMap<String, Show>,
}

type Show = Box<dyn Fn(&Effort) -> Verdict + Send + Sync>;

impl Reference {
    /// Creates a reference from these entries on this backend.
    pub fn new(backend: AnyBackend, entries: Vec<Entry>) -> Reference {
        let (name, facts, backend) = (backend.name(), backend.facts(), Arc::new(backend));
        let show = |entry: Entry| {
            let (title, backend) = (entry.title(), Arc::clone(&backend));
            let show: Show = Box::new(move |effort| entry.check(&backend, effort));
            (title, show)
        };
        Reference { name, facts, shows: entries.into_iter().map(show).collect() }
    }

    /// Returns whether devices with these facts can be compared with this one.
    #[must_use]
    pub fn compares_with(&self, facts: &DeviceFacts) -> bool {
        facts.behaves_as(&self.facts)
    }

    /// Returns another device's evidence if its text equals, line by line, the evidence of the entry with the same title here.
    ///
    /// # Errors
    /// The first line that differs, or the reason why the entry did not pass here.
    pub fn compare(&self, title: &str, evidence: Evidence, effort: &Effort) -> Verdict {
        let Some(show) = self.shows.get(title).filter(|_| !evidence.text.is_empty()) else { return Ok(evidence) };
        let expected = show(effort)?.text;
        let (mut ours, mut theirs) = (evidence.text.lines(), expected.lines());
        loop {
            match (ours.next(), theirs.next()) {
                (None, None) => return Ok(evidence),
                (ours, theirs) if ours == theirs => {}
                (ours, theirs) => {
                    let [ours, theirs] = [ours, theirs].map(|line| line.unwrap_or("(nothing more)"));
                    let name = self.name;
                    return Err(Trouble::fail(format!("this device shows\n{ours}\nwhere `{name}` shows\n{theirs}")));
                }
            }
        }
    }
}

/// The outcome of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// The property holds.
    Pass,
    /// The property does not hold.
    Fail,
    /// The entry could not be run.
    Skip,
}

parkade_recording::names! {
    Status {
        Status::Pass => "pass",
        Status::Fail => "fail",
        Status::Skip => "skip",
    }
}

/// One row of the report.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// The entry's kind.
    pub group: Group,
    /// Its name.
    pub name: String,
    /// The property.
    pub says: &'static str,
    /// The backend's name.
    pub backend: &'static str,
    /// The outcome.
    pub status: Status,
    /// The reason, if the entry did not pass.
    pub reason: String,
    /// A sequence that reproduces the failure, as a script for `parkade conform --script` and `parkade ops`.
    pub script: Option<String>,
    /// The evidence.
    pub evidence: Evidence,
    /// The duration.
    pub took: Duration,
}

impl Row {
    fn new(entry: &Entry, backend: &'static str, (verdict, effort): (Verdict, &Effort), took: Duration) -> Row {
        let (status, reason, script, evidence) = match verdict {
            Ok(evidence) => (Status::Pass, String::new(), None, evidence),
            Err(Trouble::Skip(reason)) => (Status::Skip, reason, None, Evidence::default()),
            Err(Trouble::Fail { reason, script }) => (Status::Fail, reason, script, Evidence::default()),
        };
        let script = script.map(|script| Again::added(&entry.title(), effort, &script));
        Row { group: entry.group, name: entry.name.clone(), says: entry.says, backend, status, reason, script, evidence, took }
    }
}

/// The numbers of rows by status, and the number of operations.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Summary {
    /// The number of rows that passed.
    pub passed: usize,
    /// The number of rows that failed.
    pub failed: usize,
    /// The number of rows that could not be run.
    pub skipped: usize,
    /// The number of operations performed.
    pub operations: u64,
}

impl Summary {
    /// Sums up the rows.
    #[must_use]
    pub fn of(rows: &[Row]) -> Summary {
        let count = |status| rows.iter().filter(|row| row.status == status).count();
        Summary {
            passed: count(Status::Pass),
            failed: count(Status::Fail),
            skipped: count(Status::Skip),
            operations: rows.iter().map(|row| row.evidence.operations).sum(),
        }
    }
}

/// Methods that are called as entries begin and end, from several threads.
pub trait Progress: Sync {
    /// An entry begins.
    fn begins(&self, title: &str);

    /// An entry has ended.
    fn ends(&self, row: &Row);
}

/// An observer that ignores progress.
#[derive(Clone, Copy, Debug)]
pub struct Silent;

impl Progress for Silent {
    fn begins(&self, _: &str) {}

    fn ends(&self, _: &Row) {}
}

/// Runs the entries and returns their rows in the same order. A panic counts as a failure of its entry.
///
/// The entries run in parallel on a simulated backend, and one after another on a real device.
///
/// With a reference, each entry must also show the same evidence as the entry with the same title there; see [`check`].
pub fn run(
    backend: &AnyBackend,
    entries: &[Entry],
    reference: Option<&Reference>,
    effort: &Effort,
    progress: &dyn Progress,
) -> Vec<Row> {
    let one = |entry: &Entry| {
        progress.begins(&entry.title());
        let start = Instant::now();
        let verdict = check(backend, entry, reference, effort);
        let row = Row::new(entry, backend.name(), (verdict, effort), start.elapsed());
        progress.ends(&row);
        row
    };
    if backend.is_simulated() { entries.par_iter().map(one).collect() } else { entries.iter().map(one).collect() }
}

/// Checks one entry. A panic counts as a failure.
///
/// With a reference whose facts equal the device's, the entry must also show the same evidence as it does there. A
/// device with different facts rightly shows different evidence, so only the entry's own assertions count for it.
///
/// # Errors
/// The reason why it did not pass.
pub fn check(backend: &AnyBackend, entry: &Entry, reference: Option<&Reference>, effort: &Effort) -> Verdict {
    let verdict = catch_unwind(AssertUnwindSafe(|| entry.check(backend, effort)));
    let evidence = verdict.unwrap_or_else(|panic| Err(Trouble::fail(format!("panicked: {}", message(&*panic)))))?;
    match reference {
        Some(reference) if reference.compares_with(&backend.facts()) => reference.compare(&entry.title(), evidence, effort),
        _ => Ok(evidence),
    }
}

/// Returns the message of a panic.
fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic without a message".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Sharing;

    #[test]
    fn each_requirement_is_met_by_an_h200_and_unmet_without_its_fact() {
        let h200 = DeviceFacts::H200;
        let eighths = Sharing { largest: Bytes(MIB / 4), spacing: Bytes(512) };
        let large = DeviceFacts { page: Bytes(64 * MIB), ..h200 };
        for (requirement, without) in [
            (Requirement::VirtualMemory, DeviceFacts { has_virtual_memory: false, ..h200 }),
            (Requirement::ExpandableSegments, DeviceFacts { has_virtual_memory: false, ..h200 }),
            (Requirement::ExpandableSegments, large),
            (Requirement::SharedPages(2), DeviceFacts { sharing: None, ..h200 }),
            (Requirement::SharedPages(2), DeviceFacts { sharing: Some(eighths), ..h200 }),
            (Requirement::RemappedPages, DeviceFacts { remaps_pages: false, ..h200 }),
            (Requirement::PendingWork, DeviceFacts { is_asynchronous: false, ..h200 }),
            (Requirement::ReferenceFacts, large),
        ] {
            assert_eq!(requirement.unmet(&h200), None, "{requirement:?}");
            assert!(requirement.unmet(&without).is_some(), "{requirement:?}");
        }
        assert_eq!(Requirement::VirtualMemory.unmet(&large), None);
    }
}
