//! The pools that a trace names: since PyTorch 2.12, every entry has the id of its pool.

use std::collections::BTreeMap;

use parkade::policy::{Policy, PyTorch};
use parkade::units::{Bytes, PoolClass, PoolId};
use parkade_recording::{Action, DeviceRecording, Entry};

use super::evidence::{Evidence, Layout, LifeId};
use super::guesses::{Pool, assumed, ids, in_order};
use crate::entries::{is_inner, is_request};
use crate::initial_state::Start;
use crate::pools::AssumedPools;

/// The pools of a trace's segments and failed requests, as named by its entries.
///
/// The order in which several pools release their memory at once follows a hash table of their ids, so it also depends on
/// pools that no entry names. The result therefore contains the pools twice: with their own ids, and with ids whose order is
/// that of the trace. Empty if the entries name no private pool, or if a name does not fit the blocks before it.
pub(crate) fn named(recording: &DeviceRecording, start: &Start, policy: &PyTorch) -> Option<[AssumedPools; 2]> {
    let name = |entry: &Entry| recording.pools.get(entry.pool).map(|(first, second)| PoolId(first, second));
    if recording.pools.is_empty() || !recording.trace.iter().filter_map(name).any(|pool| pool != PoolId::DEFAULT) {
        return None;
    }
    let mut walk = Walk { layout: Layout::new(policy, &start.extents.segments), names: Vec::new(), releases: Vec::new() };
    let mut failed = Vec::new();
    let trace = &recording.trace;
    let mut at = 0;
    while at < trace.len() {
        let is_plain_free = trace[at].action == Action::FreeRequested && !start.deferred.contains_key(&(at as u32));
        if is_plain_free && let Some(completed) = trace.get(at + 1) {
            walk.layout.free(at + 1, completed);
            at += 2;
            continue;
        }
        let end = at + trace[at..].iter().take_while(|entry| is_inner(entry)).count();
        let asked = trace.get(end).filter(|entry| is_request(entry));
        // An out-of-memory entry contains the rounded size; rounding it again changes nothing.
        let size = asked.and_then(|entry| policy.round(Bytes(entry.size.max(1))));
        let class = size.map_or(PoolClass::Large, |size| policy.classify(size));
        walk.releases.push(Vec::new());
        for (place, entry) in trace[at..end].iter().enumerate().map(|(n, entry)| (at + n, entry)) {
            walk.inner(place, entry, class, name(entry))?;
        }
        match asked {
            Some(entry) if entry.action == Action::Alloc => {
                let life = walk.layout.serve(end, entry, size?.get())?;
                walk.name(life, name(entry));
            }
            Some(entry) => failed.extend(name(entry).map(|pool| (end as u32, pool))),
            None => {}
        }
        at = end + 1;
    }
    Some(walk.end(&failed))
}

struct Walk<'a> {
    layout: Layout<'a>,
    /// The pool of each life, if an entry has named it.
    names: Vec<Option<PoolId>>,
    /// The lives that released memory between two requests, in order, each with the entry of its release.
    releases: Vec<Vec<(usize, LifeId)>>,
}

impl Walk<'_> {
    fn name(&mut self, life: LifeId, pool: Option<PoolId>) {
        if self.names.len() <= life {
            self.names.resize(life + 1, None);
        }
        self.names[life] = self.names[life].or(pool);
    }

    /// Processes an entry for memory that was taken or released, or for a block that became free.
    fn inner(&mut self, at: usize, entry: &Entry, class: PoolClass, pool: Option<PoolId>) -> Option<()> {
        let life = match entry.action {
            Action::SegmentAlloc => {
                self.layout.make(at, entry);
                self.layout.life_at(entry.address)
            }
            Action::SegmentMap => {
                self.layout.map(at, entry, class);
                self.layout.life_at(entry.address)
            }
            Action::SegmentFree | Action::SegmentUnmap => {
                let life = self.layout.give(at, entry)?;
                self.releases.last_mut()?.push((at, life));
                Some(life)
            }
            _ => {
                self.layout.free(at, entry);
                None
            }
        };
        if let Some(life) = life {
            self.name(life, pool);
        }
        Some(())
    }

    fn end(self, failed: &[(u32, PoolId)]) -> [AssumedPools; 2] {
        let evidence = Evidence { lives: self.layout.lives, releases: self.releases, ..Evidence::default() };
        let mut pools: BTreeMap<PoolId, Pool> = BTreeMap::new();
        for (life, name) in self.names.iter().enumerate() {
            let Some(id) = name.filter(|&id| id != PoolId::DEFAULT) else { continue };
            let pool = pools.entry(id).or_insert_with(|| Pool { known: Some(id), members: Vec::new(), abandoned_at: None });
            pool.members.push(life);
            pool.abandoned_at = pool.abandoned_at.into_iter().chain(evidence.lives[life].first_given_at).min();
        }
        let ordered = in_order(pools.into_values().collect(), &evidence);
        let own: Vec<PoolId> = ordered.iter().filter_map(|(pool, _)| pool.known).collect();
        [own, ids(&ordered)].map(|ids| {
            let mut pool_of = vec![PoolId::DEFAULT; evidence.lives.len()];
            let mut id_of = BTreeMap::from([(PoolId::DEFAULT, PoolId::DEFAULT)]);
            for (id, (pool, _)) in ids.into_iter().zip(&ordered) {
                pool.members.iter().for_each(|&life| pool_of[life] = id);
                id_of.extend(pool.known.map(|name| (name, id)));
            }
            // A pool that never had memory counts as one that no entry names.
            let failed = failed.iter().filter_map(|(at, name)| Some((*at, *id_of.get(name)?)));
            AssumedPools { failed: failed.collect(), ..assumed(evidence.lives.iter().zip(&pool_of)) }
        })
    }
}
