//! The load of a workload whose private pools keep what they have held.

use std::collections::BTreeMap;

use super::event::{Event, Workload};

/// What a private pool holds.
#[derive(Default)]
struct Pool {
    live_bytes: u64,
    /// The most that has lived in it, until it is dropped.
    kept_bytes: u64,
    is_dropped: bool,
}

impl Pool {
    /// What it counts for.
    fn bytes(&self) -> u64 {
        if self.is_dropped { self.live_bytes } else { self.kept_bytes }
    }
}

impl Workload {
    /// The load with pools: as [`Workload::load_bytes`], but until a private pool is dropped it counts for the most bytes
    /// that have lived in it at once.
    ///
    /// A graph that was captured into a pool reads and writes at the addresses of the capture whenever it is replayed, so
    /// the pool keeps its memory until the graph is reset, and no request from outside is served from it. No allocator
    /// that keeps this rule needs less, whatever it does inside the pools. Without pools this is the load.
    ///
    /// # Panics
    /// If `unit` is 0.
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

#[cfg(test)]
mod tests {
    use crate::packing::random::Random;
    use crate::study::{RunOptions, run};
    use crate::workload::{CATALOGUE, Event, Workload, named};

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

    /// Captures of random requests, with requests outside in between, pools dropped sometimes.
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
                let outcome = run(&workload, (policy.make)(), &RunOptions::new(1 << 36));
                if !outcome.fits() {
                    // One that begins by taking the whole device has nothing left for a pool.
                    assert!(policy.keeps_memory, "{}: {:?}", policy.name, outcome.ending);
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
}
