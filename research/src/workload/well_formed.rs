//! Whether a workload obeys the rules that [`Event`] states.

use std::collections::BTreeMap;

use super::{Event, Workload};

/// What breaks the rules.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// An event that cannot come here.
    #[error("event {at} cannot be {event:?} here: {rule}")]
    Event {
        /// Its number, from 0.
        at: usize,
        /// It.
        event: Event,
        /// The rule that it breaks.
        rule: &'static str,
    },
    /// At the end requests still go to a private pool.
    #[error("pool {pool} is not left at the end")]
    InsidePool {
        /// Which.
        pool: u16,
    },
    /// Not a name of a workload.
    #[error("the name {name:?} is empty or has other characters than letters, digits, -, _, . and =")]
    Name {
        /// The name.
        name: String,
    },
}

impl Workload {
    /// Whether the rules of [`Event`] are obeyed: buffers numbered in order and each freed at most once, used only while they live; pools
    /// begun before they are ended, ended before they are dropped, and not begun after that; no request of 0 bytes.
    ///
    /// # Errors
    /// The first thing that breaks a rule.
    pub fn check(&self) -> Result<(), Malformed> {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.=".contains(c);
        if self.name.is_empty() || !self.name.chars().all(is_allowed) {
            return Err(Malformed::Name { name: self.name.clone() });
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
    /// Whether each pool that there was is still there.
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
                rule(was_live, "only what lives is given back")
            }
            Event::Use { buffer, .. } => {
                rule(self.live.get(buffer as usize).copied().unwrap_or(false), "only what lives is used")
            }
            Event::BeginPool { pool } => {
                rule(pool > 0, "pools are numbered from 1")?;
                rule(*self.pools.entry(pool).or_insert(true), "a pool that was dropped is gone")?;
                rule(self.pool.replace(pool).is_none(), "one pool at a time")
            }
            Event::EndPool { pool } => rule(self.pool.take() == Some(pool), "requests do not go to this pool"),
            Event::DropPool { pool } => {
                rule(self.pool != Some(pool), "requests go to this pool")?;
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
        let workload = Workload { name: "w".into(), says: String::new(), events: events.to_vec() };
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
            (vec![allocate(0), free, free], "only what lives is given back"),
            (vec![allocate(0), free, Event::Use { buffer: 0, stream: 1 }], "only what lives is used"),
            (vec![begin, begin], "one pool at a time"),
            (vec![begin, end, drop, begin], "a pool that was dropped is gone"),
            (vec![Event::BeginPool { pool: 0 }], "pools are numbered from 1"),
            (vec![end], "requests do not go to this pool"),
            (vec![begin, drop], "requests go to this pool"),
            (vec![drop], "there is no such pool"),
            (vec![Event::Launch { stream: 0, us: 0 }], "work takes time"),
            (vec![begin], "pool 1 is not left at the end"),
        ] {
            assert!(broken(&events).contains(rule), "{events:?}: {}", broken(&events));
        }
        let unnamed = Workload { name: "a b".into(), ..Workload::default() };
        assert_eq!(unnamed.check(), Err(Malformed::Name { name: "a b".into() }));
    }
}
