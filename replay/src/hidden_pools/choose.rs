//! From evidence to a division into pools: as few segments as possible in private
//! pools, and as few pools as possible.

use std::collections::{BTreeMap, BTreeSet};

use parkade::units::{PoolClass, PoolId};

use super::evidence::Evidence;
use super::layout::{Life, LifeId};

/// A division of lives into private pools. A life in none of them is the default pool's.
#[derive(Clone, Debug, Default)]
pub(super) struct Partition {
    pub(super) pools: Vec<Pool>,
    /// Where either of two sets of lives could be private: the one that is, and the other.
    pub(super) instead: Vec<(Vec<LifeId>, Vec<LifeId>)>,
}

/// A private pool.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    /// Its id, if the recording names it.
    pub(super) known: Option<PoolId>,
    /// The lives of its segments.
    pub(super) members: Vec<LifeId>,
    /// The first entry that frees memory of it: nothing uses the pool from then on.
    pub(super) abandoned_at: Option<usize>,
}

/// For each life, the lives that it must not share a pool with.
#[derive(Default)]
struct Graph(BTreeMap<LifeId, BTreeSet<LifeId>>);

impl Graph {
    fn of(pairs: impl Iterator<Item = (LifeId, LifeId)>) -> Graph {
        let mut graph = Graph::default();
        for (a, b) in pairs {
            graph.0.entry(a).or_default().insert(b);
            graph.0.entry(b).or_default().insert(a);
        }
        graph
    }

    fn neighbours(&self, life: LifeId) -> impl Iterator<Item = LifeId> {
        self.0.get(&life).into_iter().flatten().copied()
    }
}

/// What a guess assumes beyond the evidence.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Trial {
    /// Lives that are assumed to be private.
    pub(super) private: BTreeSet<LifeId>,
    /// Whether a pool's memory is all freed together. If not, memory that is in use then may be freed later.
    pub(super) goes_at_once: bool,
}

impl Trial {
    /// The same, with these lives private too.
    pub(super) fn also_private(&self, lives: impl IntoIterator<Item = LifeId>) -> Trial {
        Trial { private: self.private.iter().copied().chain(lives).collect(), ..self.clone() }
    }
}

/// Chooses a division into pools. `None` if none agrees with the evidence.
pub(super) fn choose(evidence: &Evidence, trial: &Trial) -> Option<Partition> {
    let private = &trial.private;
    let lives = &evidence.lives;
    let both = Graph::of(evidence.apart.iter().chain(&evidence.not_default).copied());
    let mut is_private: Vec<bool> = lives.iter().map(|life| life.known.is_some_and(|pool| pool != PoolId::DEFAULT)).collect();
    let is_default = |life: LifeId| lives[life].known == Some(PoolId::DEFAULT);
    for &life in private.iter().filter(|&&life| lives[life].known.is_none()) {
        is_private[life] = true;
    }
    for (life, private) in is_private.iter_mut().enumerate() {
        *private |= both.neighbours(life).any(is_default);
    }
    // A segment that the file lists in the default pool cannot be private.
    if (0..lives.len()).any(|life| is_private[life] && is_default(life)) {
        return None;
    }
    let weights = weights(evidence);
    let mut instead = Vec::new();
    while let Some(component) = open_component(&both, &is_private) {
        let (lighter, heavier) = parts(&both, &component, &weights);
        lighter.iter().for_each(|&life| is_private[life] = true);
        instead.extend(heavier.map(|heavier| (lighter, heavier)));
    }
    let is_open = |life: &LifeId| lives[*life].known.is_none() && !private.contains(life);
    take_back(&both, &mut is_private, (0..lives.len()).filter(is_open).collect(), &weights);
    Some(Partition { pools: partition(evidence, &is_private, trial.goes_at_once), instead })
}

/// Returns lives to the default pool that need not be private because all lives that
/// exclude them are. The heaviest come first.
fn take_back(both: &Graph, is_private: &mut [bool], mut order: Vec<LifeId>, weights: &[u64]) {
    order.retain(|&life| is_private[life]);
    order.sort_by_key(|&life| std::cmp::Reverse(weights[life]));
    for life in order {
        is_private[life] = both.neighbours(life).any(|other| !is_private[other]);
    }
}

/// A connected set of lives that are not private so far and cannot all be the default pool's.
fn open_component(both: &Graph, is_private: &[bool]) -> Option<BTreeSet<LifeId>> {
    let is_open = |life: LifeId| !is_private[life] && both.neighbours(life).any(|other| !is_private[other]);
    let first = (0..is_private.len()).find(|&life| is_open(life))?;
    let mut component = BTreeSet::from([first]);
    let mut rest = vec![first];
    while let Some(life) = rest.pop() {
        let others = both.neighbours(life).filter(|&other| !is_private[other]);
        rest.extend(others.filter(|&other| component.insert(other)));
    }
    Some(component)
}

/// How much speaks for each life being the default pool's: the number of requests that it served, and much more
/// if it was freed first where several pools freed memory, beginning with a large segment, as empty_cache does.
fn weights(evidence: &Evidence) -> Vec<u64> {
    let mut weights: Vec<u64> = evidence.lives.iter().map(|life| life.requests + 1).collect();
    let most: u64 = weights.iter().sum();
    for run in &evidence.releases {
        let stretches = evidence.default_stretches(run);
        let first = stretches.first().filter(|_| stretches.len() > 1);
        for &life in first.filter(|first| evidence.lives[first[0]].class == PoolClass::Large).into_iter().flatten() {
            weights[life] += most;
        }
    }
    weights
}

/// Of two parts that exclude each other, the lighter one, which is to be private, and then the heavier one. If
/// the lives do not fall into two parts, the one life that excludes the most others for its weight.
fn parts(both: &Graph, component: &BTreeSet<LifeId>, weights: &[u64]) -> (Vec<LifeId>, Option<Vec<LifeId>>) {
    let weight = |part: &[LifeId]| part.iter().map(|&life| weights[life]).sum::<u64>();
    let mut side: BTreeMap<LifeId, bool> = BTreeMap::new();
    let mut rest: Vec<(LifeId, bool)> = component.first().map(|&first| (first, false)).into_iter().collect();
    let mut has_two_parts = true;
    while let Some((life, own)) = rest.pop() {
        match side.insert(life, own) {
            Some(other) => has_two_parts &= other == own,
            None => rest.extend(both.neighbours(life).filter(|other| component.contains(other)).map(|other| (other, !own))),
        }
    }
    if has_two_parts {
        let (one, other): (Vec<LifeId>, Vec<LifeId>) = component.iter().partition(|life| side[life]);
        return if weight(&one) < weight(&other) { (one, Some(other)) } else { (other, Some(one)) };
    }
    let degree = |life: LifeId| both.neighbours(life).filter(|other| component.contains(other)).count() as u64;
    // The fraction degree / weight, compared without dividing.
    let most = component.iter().copied().reduce(|best, life| {
        let (of_best, of_life) = (degree(best).saturating_mul(weights[life]), degree(life).saturating_mul(weights[best]));
        if of_life > of_best { life } else { best }
    });
    (most.into_iter().collect(), None)
}

/// Sorts the private lives into pools, in the order in which they began: each into the pool that it was freed
/// with, or else the one used last, if the evidence allows it.
fn partition(evidence: &Evidence, is_private: &[bool], goes_at_once: bool) -> Vec<Pool> {
    let lives = &evidence.lives;
    let apart = Graph::of(evidence.apart.iter().chain(&evidence.not_private).copied());
    let mut pools: Vec<Pool> = Vec::new();
    // Lives whose pool the file names come first, as they may exclude later ones.
    let named = |id: &LifeId| lives[*id].known.is_some();
    let private = || (0..lives.len()).filter(|&id| is_private[id]);
    for id in private().filter(named).chain(private().filter(|id| !named(id))) {
        let life = &lives[id];
        let place = match life.known {
            Some(_) => pools.iter().position(|pool| pool.known == life.known),
            None => best_of(&pools, id, evidence, goes_at_once, |pool| fits(pool, id, life, lives, &apart)),
        };
        let place = place.unwrap_or_else(|| {
            pools.push(Pool { known: life.known, members: Vec::new(), abandoned_at: None });
            pools.len() - 1
        });
        let pool = &mut pools[place];
        pool.members.push(id);
        pool.abandoned_at = pool.abandoned_at.into_iter().chain(life.first_given_at).min();
    }
    pools
}

/// Whether a life can be in a pool: nothing excludes it, and the pool serves no request after it was abandoned.
fn fits(pool: &Pool, id: LifeId, life: &Life, lives: &[Life], apart: &Graph) -> bool {
    let is_excluded = apart.neighbours(id).any(|other| pool.members.contains(&other));
    let comes_late = pool.abandoned_at.is_some_and(|abandoned| abandoned < life.last_used_at);
    let goes_early =
        life.first_given_at.is_some_and(|given| pool.members.iter().any(|&member| lives[member].last_used_at > given));
    !is_excluded && !comes_late && !goes_early
}

fn best_of(
    pools: &[Pool],
    id: LifeId,
    evidence: &Evidence,
    goes_at_once: bool,
    is_open: impl Fn(&Pool) -> bool,
) -> Option<usize> {
    let runs = evidence.releases.iter().filter(|run| run.iter().any(|&(_, life)| life == id));
    let goes_with: BTreeSet<LifeId> = runs.flat_map(|run| run.iter().map(|&(_, life)| life)).collect();
    let goes = |pool: &Pool| pool.members.iter().any(|member| goes_with.contains(member));
    let last_before = |pool: &Pool| pool.members.iter().copied().filter(|&member| member < id).max();
    let rank = |pool: &Pool| (goes(pool), last_before(pool));
    let may_be = |pool: &Pool| {
        last_before(pool).is_some()
            && is_open(pool)
            && (!goes_at_once || goes(pool) || (goes_with.is_empty() && pool.abandoned_at.is_none()))
    };
    (0..pools.len()).filter(|&place| may_be(&pools[place])).max_by_key(|&place| rank(&pools[place]))
}
