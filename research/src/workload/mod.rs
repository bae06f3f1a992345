//! Workloads: a program's requests to an allocator, as plain data.
//!
//! A [`Workload`] is a list of [`Event`]s. It is created by a generator ([`generators`], by description with [`parse`]) or
//! taken from the [`CATALOGUE`], from a [recording](recorded) or from a [trace]. It is the same for every policy: a workload does not model
//! what a program would do differently with less memory.
//!
//! To add a generated workload, see [`generators`].
//!
//! A workload has properties that follow from its events: whether it obeys the rules of [`Event`]; its load, with or without
//! pools that keep what they have held; the live bytes over its course, which show the shape of a training step; and its two
//! halves, which separate what an allocator does once at the beginning from what it does continually.

mod catalogue;
pub mod generators;
pub mod lifetimes;
mod profile;
pub mod recorded;
mod step;
pub mod trace;
mod trace_error;
mod xla;

pub use catalogue::{CATALOGUE, NamedWorkload, generator_names, keys, named, parse, transformer};
pub use step::{RepeatingStep, Requested};

use std::collections::BTreeMap;

/// A sequence of requests to an allocator, with the work that runs at the same time.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Workload {
    /// A short name, unique within a study: letters, digits, `-`, `_`, `.` and `=`.
    pub name: String,
    /// One sentence that describes the workload.
    pub says: String,
    /// The events, in order.
    pub events: Vec<Event>,
    /// The event with which each step begins, in order; empty if the steps are not known. A step is a unit that the program
    /// repeats: a training step, a server's turn, or a capture.
    pub steps: Vec<u32>,
}

/// One step of a workload.
///
/// Buffers are numbered from 0 in order of allocation, and no number is used twice. Streams are numbered from 0, which is the
/// default stream. [`Workload::check`] checks the rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// Requests memory.
    Allocate {
        /// The buffer's number.
        buffer: u32,
        /// The size of the request, in bytes; at least 1.
        bytes: u64,
        /// The stream that the buffer belongs to.
        stream: u16,
    },
    /// Frees a buffer.
    Free {
        /// The buffer's number.
        buffer: u32,
    },
    /// Work on another stream uses the buffer (PyTorch's `record_stream`): once freed, it stays allocated until
    /// that work is done.
    Use {
        /// The buffer's number.
        buffer: u32,
        /// The other stream.
        stream: u16,
    },
    /// Puts work on a stream. The work starts when all earlier work on the stream is done; the host does not wait.
    Launch {
        /// The stream.
        stream: u16,
        /// The duration of the work, in microseconds; at least 1.
        us: u32,
    },
    /// The host waits until a stream has completed all its work.
    Synchronize {
        /// The stream.
        stream: u16,
    },
    /// Calls `empty_cache`.
    EmptyCache,
    /// From now on, requests go to a private pool, which is created if it does not exist, as at the beginning of a graph
    /// capture.
    BeginPool {
        /// The pool's number, from 1.
        pool: u16,
    },
    /// Requests no longer go to the private pool.
    EndPool {
        /// The pool's number.
        pool: u16,
    },
    /// The private pool is no longer used, because its graphs have been destroyed.
    DropPool {
        /// The pool's number.
        pool: u16,
    },
}

impl Workload {
    /// Returns the number of buffers.
    #[must_use]
    pub fn buffers(&self) -> usize {
        self.events.iter().filter(|event| matches!(event, Event::Allocate { .. })).count()
    }

    /// Returns the load: the most bytes live at once, with each request rounded up to a multiple of `unit`. No allocator
    /// needs less.
    ///
    /// # Panics
    /// Panics if `unit` is 0.
    #[must_use]
    pub fn load_bytes(&self, unit: u64) -> u64 {
        let mut sizes = Vec::new();
        let (mut live, mut most) = (0_u64, 0);
        for event in &self.events {
            match *event {
                Event::Allocate { buffer, bytes, .. } => {
                    let place = buffer as usize;
                    if sizes.len() <= place {
                        sizes.resize(place + 1, 0);
                    }
                    sizes[place] = bytes.div_ceil(unit).saturating_mul(unit);
                    live = live.saturating_add(sizes[place]);
                    most = most.max(live);
                }
                Event::Free { buffer } => {
                    live -= sizes.get_mut(buffer as usize).map_or(0, std::mem::take);
                }
                _ => {}
            }
        }
        most
    }
}

/// A violation of a rule.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// An event is not allowed at its position.
    #[error("event {at}, {event:?}, is not allowed here: {rule}")]
    Event {
        /// The event's number, from 0.
        at: usize,
        /// The event.
        event: Event,
        /// The rule that the event breaks.
        rule: &'static str,
    },
    /// Requests still go to a private pool at the end.
    #[error("requests still go to pool {pool} at the end of the workload: end the pool first")]
    InsidePool {
        /// The pool.
        pool: u16,
    },
    /// A step begins at or after the next step, or after the last event.
    #[error("a step begins at event {at}, but each step must begin after the previous one, and at an event that exists")]
    Step {
        /// The event's number, from 0.
        at: u32,
    },
    /// A name that is not allowed for a workload.
    #[error("the name {name:?} is not allowed: a name consists of one or more letters, digits, -, _, . and =")]
    Name {
        /// The name.
        name: String,
    },
}

impl Workload {
    /// Checks the rules of [`Event`] and that steps begin with events, in order. Buffers must be numbered in order, freed at
    /// most once, and used only while they are live. Pools must be begun before they are ended, ended before they are
    /// dropped, and never begun again. No request may be for 0 bytes.
    ///
    /// # Errors
    /// Returns the first violation of a rule, or the name if it is not allowed.
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
                rule(buffer as usize + 1 == self.live.len(), "buffers must be numbered in order")?;
                rule(bytes > 0, "a request must be for at least one byte")
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
                rule(self.pool != Some(pool), "a pool must be ended before it is dropped")?;
                rule(self.pools.insert(pool, false) == Some(true), "the pool does not exist")
            }
            Event::Launch { us, .. } => rule(us > 0, "work must have a duration above 0"),
            Event::Synchronize { .. } | Event::EmptyCache => Ok(()),
        }
    }
}

fn rule(is_kept: bool, rule: &'static str) -> Result<(), &'static str> {
    if is_kept { Ok(()) } else { Err(rule) }
}

impl Workload {
    /// Returns the live bytes after each event that allocates or frees, with requests unrounded.
    #[must_use]
    pub fn curve(&self) -> Vec<u64> {
        let mut sizes = Vec::new();
        let mut live = 0_u64;
        let mut curve = Vec::new();
        for event in &self.events {
            match *event {
                Event::Allocate { bytes, .. } => {
                    sizes.push(bytes);
                    live = live.saturating_add(bytes);
                }
                Event::Free { buffer } => live = live.saturating_sub(sizes.get_mut(buffer as usize).map_or(0, std::mem::take)),
                _ => continue,
            }
            curve.push(live);
        }
        curve
    }

    /// Returns the curve of live bytes as text, `columns` wide and `rows` high. Each column shows the maximum of its part of
    /// the workload. The result is empty for a workload without allocations, and for 0 columns or rows.
    #[must_use]
    pub fn drawn(&self, columns: usize, rows: usize) -> String {
        let curve = self.curve();
        let most = curve.iter().copied().max().unwrap_or(0);
        if most == 0 || columns == 0 || rows == 0 {
            return String::new();
        }
        let columns = columns.min(curve.len());
        let part = |column: usize| &curve[column * curve.len() / columns..(column + 1) * curve.len() / columns];
        let heights: Vec<usize> = (0..columns)
            .map(|column| {
                let highest = part(column).iter().max().map_or(0, |&live| u128::from(live));
                (highest * rows as u128).div_ceil(u128::from(most)) as usize
            })
            .collect();
        let row = |row: usize| heights.iter().map(|&height| if height >= row { '#' } else { ' ' }).collect::<String>();
        (1..=rows).rev().map(|level| row(level).trim_end().to_owned() + "\n").collect()
    }
}

/// The state of a private pool.
#[derive(Default)]
struct Pool {
    live_bytes: u64,
    /// The most bytes that have lived in it, until it is dropped.
    kept_bytes: u64,
    is_dropped: bool,
}

impl Pool {
    /// Returns the bytes that count towards the load with pools.
    fn bytes(&self) -> u64 {
        if self.is_dropped { self.live_bytes } else { self.kept_bytes }
    }
}

impl Workload {
    /// Returns the load with pools: like [`Workload::load_bytes`], but a private pool counts for the most bytes that have
    /// lived in it at once, until it is dropped.
    ///
    /// A graph that was captured into a pool reads and writes the addresses of the capture whenever it is replayed, so the
    /// pool keeps its memory until the graph is reset, and serves no request from outside. No allocator that obeys this rule
    /// can need less, regardless of what it does inside the pools. Without pools, this is the load.
    ///
    /// # Panics
    /// Panics if `unit` is 0.
    #[must_use]
    pub fn load_with_pools_bytes(&self, unit: u64) -> u64 {
        let mut buffers: BTreeMap<u32, (u64, Option<u16>)> = BTreeMap::new();
        let mut pools: BTreeMap<u16, Pool> = BTreeMap::new();
        let mut inside = None;
        let (mut now, mut most) = (0_u64, 0);
        for event in &self.events {
            match *event {
                Event::Allocate { buffer, bytes, .. } => {
                    let size = bytes.div_ceil(unit).saturating_mul(unit);
                    buffers.insert(buffer, (size, inside));
                    match inside.map(|pool| pools.entry(pool).or_default()) {
                        None => now = now.saturating_add(size),
                        Some(pool) => {
                            let before = pool.bytes();
                            pool.live_bytes = pool.live_bytes.saturating_add(size);
                            pool.kept_bytes = pool.kept_bytes.max(pool.live_bytes);
                            now = now.saturating_add(pool.bytes() - before);
                        }
                    }
                    most = most.max(now);
                }
                Event::Free { buffer } => {
                    let Some((size, pool)) = buffers.remove(&buffer) else { continue };
                    match pool.map(|pool| pools.entry(pool).or_default()) {
                        None => now -= size,
                        Some(pool) => {
                            let before = pool.bytes();
                            pool.live_bytes -= size;
                            now -= before - pool.bytes();
                        }
                    }
                }
                Event::BeginPool { pool } => inside = Some(pool),
                Event::EndPool { .. } => inside = None,
                Event::DropPool { pool } => {
                    let pool = pools.entry(pool).or_default();
                    let before = pool.bytes();
                    pool.is_dropped = true;
                    now -= before - pool.bytes();
                }
                Event::Use { .. } | Event::Launch { .. } | Event::Synchronize { .. } | Event::EmptyCache => {}
            }
        }
        most
    }
}

impl Workload {
    /// Returns the event with which the later half begins: with two or more steps, the first step of the later half (of three
    /// steps, the last); with fewer, the middle event.
    #[must_use]
    pub fn later_half(&self) -> usize {
        match self.steps.get(self.steps.len().div_ceil(2)) {
            Some(&event) => event as usize,
            None => self.events.len() / 2,
        }
    }

    /// Returns the number of steps in the later half, or 0 if there are fewer than two.
    #[must_use]
    pub fn later_steps(&self) -> usize {
        self.steps.len() / 2
    }

    /// Returns the work that the workload puts on streams, in nanoseconds. 0 if the workload does not state how long its work
    /// takes, as is always the case for recordings; the time that a call waits for the device is then unknown.
    #[must_use]
    pub fn work_ns(&self) -> u64 {
        let of_event = |event: &Event| match *event {
            Event::Launch { us, .. } => u64::from(us) * 1000,
            _ => 0,
        };
        self.events.iter().map(of_event).fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packing::random::Random;
    use crate::study::{RunOptions, run};

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
            (vec![allocate(1)], "buffers must be numbered in order"),
            (vec![allocate(0), allocate(0)], "buffers must be numbered in order"),
            (vec![Event::Allocate { buffer: 0, bytes: 0, stream: 0 }], "a request must be for at least one byte"),
            (vec![allocate(0), free, free], "only a live buffer can be freed"),
            (vec![allocate(0), free, Event::Use { buffer: 0, stream: 1 }], "only a live buffer can be used"),
            (vec![begin, begin], "only one pool can be begun at a time"),
            (vec![begin, end, drop, begin], "a dropped pool cannot be begun again"),
            (vec![Event::BeginPool { pool: 0 }], "pools are numbered from 1"),
            (vec![end], "only the pool that was begun can be ended"),
            (vec![begin, drop], "a pool must be ended before it is dropped"),
            (vec![drop], "the pool does not exist"),
            (vec![Event::Launch { stream: 0, us: 0 }], "work must have a duration above 0"),
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

    const MIB: u64 = 1 << 20;

    fn workload(events: Vec<Event>) -> Workload {
        Workload { name: "pools".into(), events, ..Workload::default() }
    }

    fn allocate(buffer: u32, mib: u64) -> Event {
        Event::Allocate { buffer, bytes: mib * MIB, stream: 0 }
    }

    fn load_mib(events: &[Event]) -> (u64, u64) {
        let workload = workload(events.to_vec());
        (workload.load_bytes(1) / MIB, workload.load_with_pools_bytes(1) / MIB)
    }

    #[test]
    fn a_pool_keeps_the_most_it_has_held_until_it_is_dropped() {
        let pool = 1;
        let [begin, end, drop] = [Event::BeginPool { pool }, Event::EndPool { pool }, Event::DropPool { pool }];
        let free = |buffer| Event::Free { buffer };
        let captured = [begin, allocate(0, 30), allocate(1, 20), free(0), allocate(2, 10), free(2), end];
        let then = |more: &[Event]| load_mib(&[&captured[..], more].concat());
        assert_eq!(then(&[allocate(3, 40)]), (60, 90), "50 live at once in the pool, and 40 outside");
        assert_eq!(then(&[drop, allocate(3, 40)]), (60, 60), "20 of the pool still live");
        assert_eq!(then(&[free(1), drop, allocate(3, 40)]), (50, 50));
        assert_eq!(then(&[begin, allocate(3, 30), end, allocate(4, 5)]), (55, 55), "a second capture uses the same memory");
        assert_eq!(load_mib(&[allocate(0, 7), free(0), allocate(1, 6)]), (7, 7), "without pools it is the load");
    }

    /// Returns a workload with captures of random requests, with requests outside the captures in between; some pools are
    /// dropped.
    fn random_captures(seed: u64) -> Workload {
        let mut random = Random::new(seed);
        let (mut events, mut live, mut next) = (Vec::new(), Vec::new(), 0);
        let mut pools: Vec<u16> = Vec::new();
        for pool in 1..=6 {
            for inside in [false, true] {
                if inside {
                    events.push(Event::BeginPool { pool });
                    pools.push(pool);
                }
                for _ in 0..20 {
                    if random.below(3) == 0 && !live.is_empty() {
                        events.push(Event::Free { buffer: live.swap_remove(random.below(live.len())) });
                    } else {
                        events.push(allocate(next, 1 + random.below(40) as u64));
                        live.push(next);
                        next += 1;
                    }
                }
                if inside {
                    events.push(Event::EndPool { pool });
                }
            }
            if random.below(3) == 0 {
                let pool = pools.swap_remove(random.below(pools.len()));
                events.extend([Event::DropPool { pool }, Event::EmptyCache]);
            }
        }
        workload(events)
    }

    #[test]
    fn no_policy_reserves_less() {
        let mut matters = 0;
        for seed in 0..12 {
            let workload = random_captures(seed);
            assert_eq!(workload.check(), Ok(()));
            let bound = workload.load_with_pools_bytes(512);
            matters += usize::from(bound > workload.load_bytes(512));
            for policy in parkade_policies::CATALOGUE {
                let outcome = run(&workload, policy.make(), &RunOptions::new(1 << 36));
                if !outcome.fits() {
                    // A policy that begins by taking the entire device has nothing left for a pool.
                    assert!(policy.keeps_memory(), "{}: {:?}", policy.name, outcome.ending);
                    continue;
                }
                let reserved = outcome.peak_reserved_bytes;
                assert!(reserved >= bound, "{} reserves {reserved}, and the bound is {bound} (seed {seed})", policy.name);
            }
        }
        assert!(matters > 6, "{matters}");
    }

    #[test]
    fn graphs_with_a_pool_each_need_more_than_their_load() {
        let over_load = |name: &str| {
            let workload = named(name).expect("a workload").make(1);
            workload.load_with_pools_bytes(512) as f64 / workload.load_bytes(512) as f64
        };
        let own = over_load("graphs-own");
        assert!((own - 1.301).abs() < 0.0005, "{own}");
        assert!(over_load("graphs-descending") < own);
        for without in CATALOGUE.iter().filter(|workload| !workload.name.starts_with("graphs")).take(3) {
            assert!((over_load(without.name) - 1.0).abs() < f64::EPSILON, "{}", without.name);
        }
    }

    fn halves(events: usize, steps: &[u32]) -> (usize, usize) {
        let workload = Workload { events: vec![Event::EmptyCache; events], steps: steps.to_vec(), ..Workload::default() };
        (workload.later_half(), workload.later_steps())
    }

    #[test]
    fn the_later_half_is_the_later_half_of_the_steps() {
        assert_eq!(halves(10, &[]), (5, 0));
        assert_eq!(halves(10, &[2]), (5, 0), "one step has no halves");
        assert_eq!(halves(10, &[2, 7]), (7, 1));
        assert_eq!(halves(10, &[2, 4, 9]), (9, 1));
        assert_eq!(halves(10, &[0, 1, 2, 3]), (2, 2));
    }

    #[test]
    fn generators_say_where_steps_begin() {
        let model = "layers=2,hidden=64,heads=2,vocabulary=100,sequence=64,batch=2";
        for (text, steps) in [
            (format!("transformer:{model},mixed=on,steps=5"), 5),
            (format!("varlen:{model},lengths=uniform/8/64,steps=4"), 4),
            (format!("alternate:{model},rounds=3,prompt=16,answers=uniform/8/40,empties_cache=on"), 3),
            ("cnn:batches=2/4,repeats=3".to_owned(), 6),
            ("mlp:depth=3,width=64,steps=7,prealloc=1MiB".to_owned(), 7),
            ("prefetch:steps=6,depth=2,batches=uniform/2/4".to_owned(), 6),
            (format!("graphs:{model},batches=1/2/4,eager_runs=2"), 5),
            ("chain:layers=3".to_owned(), 1),
            ("comb:teeth=4".to_owned(), 0),
        ] {
            let workload = parse(&text).unwrap();
            assert_eq!((workload.check(), workload.steps.len()), (Ok(()), steps), "{text}");
        }
        let server = parse("serving:requests=5,slots=2,answers=uniform/3/3,rate=1000").unwrap();
        assert!(server.check() == Ok(()) && server.steps.len() >= 9, "{} turns", server.steps.len());
    }

    #[test]
    fn work_is_counted() {
        let work = [Event::Launch { stream: 0, us: 7 }, Event::EmptyCache, Event::Launch { stream: 3, us: 5 }];
        assert_eq!(Workload { events: work.into(), ..Workload::default() }.work_ns(), 12_000);
        assert_eq!(Workload::default().work_ns(), 0);
    }

    #[test]
    fn the_load_is_the_most_bytes_live_at_once() {
        let allocate = |buffer, bytes| Event::Allocate { buffer, bytes, stream: 0 };
        let events =
            vec![allocate(0, 1000), allocate(1, 100), Event::Free { buffer: 0 }, allocate(2, 513), Event::Free { buffer: 1 }];
        let workload = Workload { name: "small".into(), says: "three buffers".into(), events, ..Workload::default() };
        assert_eq!(workload.load_bytes(1), 1100);
        assert_eq!(workload.load_bytes(512), 1536);
        assert_eq!(workload.buffers(), 3);
    }
}
