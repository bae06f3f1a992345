//! Whether a workload obeys the rules of [`Event`].

use std::collections::BTreeMap;

use super::event::{Event, Workload};

/// What breaks a rule.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// An event that is not allowed at its place.
    #[error("event {at}, {event:?}, is not allowed here: {rule}")]
    Event {
        /// The event's number, from 0.
        at: usize,
        /// The event.
        event: Event,
        /// The rule that it breaks.
        rule: &'static str,
    },
    /// Requests still go to a private pool at the end.
    #[error("requests still go to pool {pool} at the end")]
    InsidePool {
        /// The pool.
        pool: u16,
    },
    /// A step that begins at or after the next one, or after the last event.
    #[error("a step begins with event {at}: steps begin one after another, each with an event")]
    Step {
        /// The event's number, from 0.
        at: u32,
    },
    /// A name that no workload can have.
    #[error("the name {name:?} is not allowed: a name has one or more letters, digits, -, _, . and =")]
    Name {
        /// The name.
        name: String,
    },
}

impl Workload {
    /// Checks the rules of [`Event`], and that steps begin with events, in order. Buffers are numbered in order, freed at most once, and used only while they
    /// are live. Pools are begun before they are ended, ended before they are dropped, and never begun again. No
    /// request is for 0 bytes.
    ///
    /// # Errors
    /// The first event that breaks a rule, or the name.
    pub fn check(&self) -> Result<(), Malformed> {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.=".contains(c);
        if self.name.is_empty() || !self.name.chars().all(is_allowed) {
            return Err(Malformed::Name { name: self.name.clone() });
        }
        let ends = self.steps.iter().skip(1).map(|&step| step as usize).chain([self.events.len()]);
        if let Some((step, _)) = self.steps.iter().zip(ends).find(|&(&step, end)| step as usize >= end) {
            return Err(Malformed::Step { at: *step });
        }
        let mut state = State::default();
        for (at, &event) in self.events.iter().enumerate() {
            state.step(event).map_err(|rule| Malformed::Event { at, event, rule })?;
        }
        state.pool.map_or(Ok(()), |pool| Err(Malformed::InsidePool { pool }))
    }
}

#[derive(Default)]
struct State {
    live: Vec<bool>,
    pool: Option<u16>,
    /// All pools so far, and whether each still exists.
    pools: BTreeMap<u16, bool>,
}

impl State {
    fn step(&mut self, event: Event) -> Result<(), &'static str> {
        match event {
            Event::Allocate { buffer, bytes, .. } => {
                self.live.push(true);
                rule(buffer as usize + 1 == self.live.len(), "buffers are numbered in order")?;
                rule(bytes > 0, "a request is for at least one byte")
            }
            Event::Free { buffer } => {
                let was_live = self.live.get_mut(buffer as usize).is_some_and(std::mem::take);
                rule(was_live, "only a live buffer can be freed")
            }
            Event::Use { buffer, .. } => {
                rule(self.live.get(buffer as usize).copied().unwrap_or(false), "only a live buffer can be used")
            }
            Event::BeginPool { pool } => {
                rule(pool > 0, "pools are numbered from 1")?;
                rule(*self.pools.entry(pool).or_insert(true), "a dropped pool cannot be begun again")?;
                rule(self.pool.replace(pool).is_none(), "only one pool can be begun at a time")
            }
            Event::EndPool { pool } => rule(self.pool.take() == Some(pool), "only the pool that was begun can be ended"),
            Event::DropPool { pool } => {
                rule(self.pool != Some(pool), "a pool is ended before it is dropped")?;
                rule(self.pools.insert(pool, false) == Some(true), "there is no such pool")
            }
            Event::Launch { us, .. } => rule(us > 0, "work takes time"),
            Event::Synchronize { .. } | Event::EmptyCache => Ok(()),
        }
    }
}

fn rule(is_kept: bool, rule: &'static str) -> Result<(), &'static str> {
    if is_kept { Ok(()) } else { Err(rule) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken(events: &[Event]) -> String {
        let workload = Workload { name: "w".into(), says: String::new(), events: events.to_vec(), ..Workload::default() };
        workload.check().map_or_else(|error| error.to_string(), |()| String::new())
    }

    #[test]
    fn each_rule_is_checked() {
        let allocate = |buffer| Event::Allocate { buffer, bytes: 1, stream: 0 };
        let [begin, end, drop] = [Event::BeginPool { pool: 1 }, Event::EndPool { pool: 1 }, Event::DropPool { pool: 1 }];
        let free = Event::Free { buffer: 0 };
        assert_eq!(broken(&[allocate(0), Event::Use { buffer: 0, stream: 3 }, free, begin, end, begin, end, drop]), "");
        for (events, rule) in [
            (vec![allocate(1)], "buffers are numbered in order"),
            (vec![allocate(0), allocate(0)], "buffers are numbered in order"),
            (vec![Event::Allocate { buffer: 0, bytes: 0, stream: 0 }], "a request is for at least one byte"),
            (vec![allocate(0), free, free], "only a live buffer can be freed"),
            (vec![allocate(0), free, Event::Use { buffer: 0, stream: 1 }], "only a live buffer can be used"),
            (vec![begin, begin], "only one pool can be begun at a time"),
            (vec![begin, end, drop, begin], "a dropped pool cannot be begun again"),
            (vec![Event::BeginPool { pool: 0 }], "pools are numbered from 1"),
            (vec![end], "only the pool that was begun can be ended"),
            (vec![begin, drop], "a pool is ended before it is dropped"),
            (vec![drop], "there is no such pool"),
            (vec![Event::Launch { stream: 0, us: 0 }], "work takes time"),
            (vec![begin], "requests still go to pool 1 at the end"),
        ] {
            assert!(broken(&events).contains(rule), "{events:?}: {}", broken(&events));
        }
        for (steps, wrong) in [(vec![0, 2], None), (vec![1, 1], Some(1)), (vec![2, 1], Some(2)), (vec![0, 3], Some(3))] {
            let events = vec![allocate(0), allocate(1), allocate(2)];
            let workload = Workload { name: "w".into(), says: String::new(), events, steps };
            assert_eq!(workload.check().err(), wrong.map(|at| Malformed::Step { at }));
        }
        let unnamed = Workload { name: "a b".into(), ..Workload::default() };
        assert_eq!(unnamed.check(), Err(Malformed::Name { name: "a b".into() }));
    }
}
