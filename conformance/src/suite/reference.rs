//! The reference device: what an entry shows there, it must show on other devices with the same facts.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::entry::Entry;
use super::verdict::{Effort, Evidence, Trouble, Verdict};
use crate::backend::{AnyBackend, DeviceFacts};

/// What the entries of one backend show, computed when it is needed.
pub struct Reference {
    name: &'static str,
    facts: DeviceFacts,
    shows: BTreeMap<String, Show>,
}

type Show = Box<dyn Fn(&Effort) -> Verdict + Send + Sync>;

impl Reference {
    /// A reference of these entries on this backend.
    pub fn new(backend: AnyBackend, entries: Vec<Entry>) -> Reference {
        let (name, facts, backend) = (backend.name(), backend.facts(), Arc::new(backend));
        let show = |entry: Entry| {
            let (title, backend) = (entry.title(), Arc::clone(&backend));
            let show: Show = Box::new(move |effort| entry.check(&backend, effort));
            (title, show)
        };
        Reference { name, facts, shows: entries.into_iter().map(show).collect() }
    }

    /// Whether devices with these facts can be compared with this one.
    #[must_use]
    pub fn compares_with(&self, facts: &DeviceFacts) -> bool {
        facts.behaves_as(&self.facts)
    }

    /// Returns another device's evidence if its text equals, line by line, what the entry with the same title shows here.
    ///
    /// # Errors
    /// The first line that differs, or why the entry did not pass here.
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
