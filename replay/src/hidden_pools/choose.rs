//! Turns the evidence into a division into pools, with as few segments in private pools and as few pools as possible. The
//! pools then get ids in the order in which they were freed.

use std::collections::BTreeSet;

use parkade::units::{PoolClass, PoolId};

use super::evidence::Evidence;
use super::layout::{Life, LifeId};
use crate::pools::AssumedPools;

/// The number of lives, among those that one pool may have freed at once, that are checked for each life assigned to a pool.
const MOST_MATES: usize = 16;

/// A division of lives into private pools. A life that is in none of them belongs to the default pool.
#[derive(Clone, Debug, Default)]
pub(super) struct Partition {
    pub(super) pools: Vec<Pool>,
    /// Pairs of sets of lives, one of which must be private: the chosen set and the other one.
    pub(super) instead: Vec<(Vec<LifeId>, Vec<LifeId>)>,
}

/// A private pool.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    /// Its id, if the recording names it.
    pub(super) known: Option<PoolId>,
    /// The lives of the pool's segments.
    pub(super) members: Vec<LifeId>,
    /// The first entry that frees memory of the pool: the pool is not used from then on.
    pub(super) abandoned_at: Option<usize>,
}

/// For each life, the lives that must not share a pool with it, in order.
#[derive(Debug)]
struct Graph(Vec<Vec<LifeId>>);

impl Graph {
    fn of(lives: usize, pairs: impl Iterator<Item = (LifeId, LifeId)>) -> Graph {
        let mut graph = vec![Vec::new(); lives];
        for (a, b) in pairs {
            graph[a].push(b);
            graph[b].push(a);
        }
        for others in &mut graph {
            others.sort_unstable();
            others.dedup();
        }
        Graph(graph)
    }

    fn neighbours(&self, life: LifeId) -> impl Iterator<Item = LifeId> {
        self.0[life].iter().copied()
    }
}

/// What follows from the evidence alone, regardless of the choice.
#[derive(Debug)]
pub(super) struct Grounds {
    /// Pairs of lives that cannot both be in the default pool.
    both: Graph,
    /// Pairs of lives that cannot both be in one private pool.
    apart: Graph,
    weights: Vec<u64>,
    /// For each life, the lives that were freed together with it.
    goes_with: Vec<BTreeSet<LifeId>>,
    /// Those of these lives that one pool may have freed in one go with it.
    mates: Vec<BTreeSet<LifeId>>,
}

impl Grounds {
    pub(super) fn of(evidence: &Evidence) -> Grounds {
        let lives = evidence.lives.len();
        let apart = Graph::of(lives, evidence.apart.iter().chain(&evidence.not_private).copied());
        let mut goes_with = vec![BTreeSet::new(); lives];
        let mut mates = goes_with.clone();
        for run in &evidence.releases {
            let together: BTreeSet<LifeId> = run.iter().map(|&(_, life)| life).collect();
            let is_of_one = together.iter().all(|&life| !apart.neighbours(life).any(|other| together.contains(&other)));
            for &life in &together {
                goes_with[life].extend(&together);
                if is_of_one {
                    mates[life].extend(together.iter().filter(|&&other| other != life));
                }
            }
        }
        let both = Graph::of(lives, evidence.apart.iter().chain(&evidence.not_default).copied());
        Grounds { both, apart, weights: weights(evidence), goes_with, mates }
    }
}

/// The assumptions of a guess beyond the evidence.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Trial {
    /// Lives that are assumed to be private.
    pub(super) private: BTreeSet<LifeId>,
    /// Whether a pool frees all its memory at once. If not, it may later free memory that was in use at that time.
    pub(super) goes_at_once: bool,
}

impl Trial {
    /// The same assumptions, with these lives also private.
    pub(super) fn also_private(&self, lives: impl IntoIterator<Item = LifeId>) -> Trial {
        Trial { private: self.private.iter().copied().chain(lives).collect(), ..self.clone() }
    }
}

/// Chooses a division into pools. `None` if no division agrees with the evidence. Counts the pairs examined in `work`.
pub(super) fn choose(evidence: &Evidence, grounds: &Grounds, trial: &Trial, work: &mut u64) -> Option<Partition> {
    let private = &trial.private;
    let lives = &evidence.lives;
    let Grounds { both, weights, .. } = grounds;
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
    let mut instead = Vec::new();
    while let Some(component) = open_component(both, &is_private) {
        *work += component.iter().map(|&life| both.0[life].len() as u64).sum::<u64>();
        let (lighter, heavier) = parts(both, &component, weights);
        lighter.iter().for_each(|&life| is_private[life] = true);
        instead.extend(heavier.map(|heavier| (lighter, heavier)));
    }
    let is_open = |life: &LifeId| lives[*life].known.is_none() && !private.contains(life);
    take_back(both, &mut is_private, (0..lives.len()).filter(is_open).collect(), weights);
    Some(Partition { pools: partition(evidence, grounds, &is_private, trial.goes_at_once), instead })
}

/// Moves lives back to the default pool if they need not be private because all lives that exclude them are private. Starts
/// with the heaviest.
fn take_back(both: &Graph, is_private: &mut [bool], mut order: Vec<LifeId>, weights: &[u64]) {
    order.retain(|&life| is_private[life]);
    order.sort_by_key(|&life| std::cmp::Reverse(weights[life]));
    for life in order {
        is_private[life] = both.neighbours(life).any(|other| !is_private[other]);
    }
}

/// A connected set of lives, in order, that are not private so far and cannot all be in the default pool.
fn open_component(both: &Graph, is_private: &[bool]) -> Option<Vec<LifeId>> {
    let is_open = |life: LifeId| !is_private[life] && both.neighbours(life).any(|other| !is_private[other]);
    let first = (0..is_private.len()).find(|&life| is_open(life))?;
    let mut is_in = vec![false; is_private.len()];
    is_in[first] = true;
    let (mut component, mut rest) = (vec![first], vec![first]);
    while let Some(life) = rest.pop() {
        for other in both.neighbours(life).filter(|&other| !is_private[other]) {
            if !std::mem::replace(&mut is_in[other], true) {
                component.push(other);
                rest.push(other);
            }
        }
    }
    component.sort_unstable();
    Some(component)
}

/// For each life, the weight of evidence that it belongs to the default pool: the number of requests that it served. The
/// weight is much higher if several pools freed memory at once and this life was among the first to be freed, starting with a
/// large segment, as `empty_cache` does.
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

/// Of two parts that exclude each other: first the lighter one, which becomes private, and then the heavier one. If the lives
/// do not form two parts: the single life that excludes the most others relative to its weight.
fn parts(both: &Graph, component: &[LifeId], weights: &[u64]) -> (Vec<LifeId>, Option<Vec<LifeId>>) {
    let mut is_in = vec![false; weights.len()];
    component.iter().for_each(|&life| is_in[life] = true);
    if let Some(side) = two_sides(both, component, &is_in) {
        let weight = |part: &[LifeId]| part.iter().map(|&life| weights[life]).sum::<u64>();
        let (one, other): (Vec<LifeId>, Vec<LifeId>) = component.iter().partition(|&&life| side[life] == Some(true));
        return if weight(&one) < weight(&other) { (one, Some(other)) } else { (other, Some(one)) };
    }
    let degree = |life: LifeId| both.neighbours(life).filter(|&other| is_in[other]).count() as u64;
    let degrees = component.iter().map(|&life| (life, degree(life)));
    // Compares the fraction degree / weight without a division.
    let most = degrees.reduce(|best, one| {
        let (of_best, of_one) = (best.1.saturating_mul(weights[one.0]), one.1.saturating_mul(weights[best.0]));
        if of_one > of_best { one } else { best }
    });
    (most.map(|(life, _)| life).into_iter().collect(), None)
}

/// For each life in a component, the part (of two) that it is in, if lives in the same part never exclude each other.
fn two_sides(both: &Graph, component: &[LifeId], is_in: &[bool]) -> Option<Vec<Option<bool>>> {
    let mut side: Vec<Option<bool>> = vec![None; is_in.len()];
    let mut rest: Vec<LifeId> = component.first().copied().into_iter().collect();
    rest.iter().for_each(|&first| side[first] = Some(false));
    while let Some(life) = rest.pop() {
        for other in both.neighbours(life).filter(|&other| is_in[other]) {
            if side[other].is_none() {
                side[other] = side[life].map(|own| !own);
                rest.push(other);
            } else if side[other] == side[life] {
                return None;
            }
        }
    }
    Some(side)
}

/// Assigns the private lives to pools, in the order in which they began. A life goes into the pool that it was freed
/// with, or into the pool used last, if the evidence allows it.
fn partition(evidence: &Evidence, grounds: &Grounds, is_private: &[bool], goes_at_once: bool) -> Vec<Pool> {
    let lives = &evidence.lives;
    let mut pools: Vec<Pool> = Vec::new();
    let mut pool_of: Vec<Option<usize>> = vec![None; lives.len()];
    // The lives whose pool the file names come first, because they may exclude later ones.
    let named = |id: &LifeId| lives[*id].known.is_some();
    let private = || (0..lives.len()).filter(|&id| is_private[id]);
    for id in private().filter(named).chain(private().filter(|id| !named(id))) {
        let life = &lives[id];
        let place = match life.known {
            Some(_) => pools.iter().position(|pool| pool.known == life.known),
            None => best_of(&pools, &pool_of, id, lives, grounds, goes_at_once),
        };
        let place = place.unwrap_or_else(|| {
            pools.push(Pool { known: life.known, members: Vec::new(), abandoned_at: None });
            pools.len() - 1
        });
        let pool = &mut pools[place];
        pool.members.push(id);
        pool_of[id] = Some(place);
        pool.abandoned_at = pool.abandoned_at.into_iter().chain(life.first_given_at).min();
    }
    pools
}

/// Whether a life fits into a pool that no evidence excludes: the pool serves no request after it has been abandoned.
fn fits(pool: &Pool, life: &Life, lives: &[Life]) -> bool {
    let comes_late = pool.abandoned_at.is_some_and(|abandoned| abandoned < life.last_used_at);
    let goes_early =
        life.first_given_at.is_some_and(|given| pool.members.iter().any(|&member| lives[member].last_used_at > given));
    !comes_late && !goes_early
}

fn best_of(
    pools: &[Pool],
    pool_of: &[Option<usize>],
    id: LifeId,
    lives: &[Life],
    grounds: &Grounds,
    goes_at_once: bool,
) -> Option<usize> {
    let places = |others: &mut dyn Iterator<Item = LifeId>| {
        let mut is_one = vec![false; pools.len()];
        others.filter_map(|other| pool_of[other]).for_each(|place| is_one[place] = true);
        is_one
    };
    let goes_with = &grounds.goes_with[id];
    let goes = places(&mut goes_with.iter().copied());
    let is_excluded = places(&mut grounds.apart.neighbours(id));
    // Lives that one pool may have freed at once belong to one pool. None of them can therefore be in a pool that excludes
    // another of them.
    let mut excludes_mates = vec![false; pools.len()];
    for &mate in grounds.mates[id].iter().take(MOST_MATES) {
        let excludes = places(&mut grounds.apart.neighbours(mate));
        excludes_mates.iter_mut().zip(excludes).for_each(|(any, excludes)| *any |= excludes);
    }
    let last_before = |pool: &Pool| pool.members.iter().copied().filter(|&member| member < id).max();
    let rank = |place: usize| Some((goes[place], last_before(&pools[place])?));
    let may_be = |place: &usize| {
        let pool = &pools[*place];
        !is_excluded[*place]
            && !excludes_mates[*place]
            && fits(pool, &lives[id], lives)
            && (!goes_at_once || goes[*place] || (goes_with.is_empty() && pool.abandoned_at.is_none()))
    };
    let open = (0..pools.len()).filter(may_be).filter_map(|place| Some((rank(place)?, place)));
    open.max_by_key(|&(rank, _)| rank).map(|(_, place)| place)
}

/// The pools, sorted by the order in which pools released together were freed, if there is one: PyTorch iterates over a hash
/// map. Each pool comes with the number of pools that must be freed before it.
pub(super) fn in_order(mut pools: Vec<Pool>, evidence: &Evidence) -> Vec<(Pool, u64)> {
    pools.sort_by_key(|pool| pool.abandoned_at.unwrap_or(usize::MAX));
    let mut pool_of = vec![None; evidence.lives.len()];
    for (place, pool) in pools.iter().enumerate() {
        pool.members.iter().for_each(|&life| pool_of[life] = Some(place));
    }
    let mut comes_after: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); pools.len()];
    for run in &evidence.releases {
        let mut order: Vec<usize> = run.iter().filter_map(|&(_, life)| pool_of[life]).collect();
        order.dedup();
        for pair in order.windows(2) {
            comes_after[pair[1]].insert(pair[0]);
        }
    }
    let mut rest: Vec<usize> = (0..pools.len()).collect();
    let mut is_left = vec![true; pools.len()];
    let mut ordered = Vec::new();
    let mut depths = vec![0; pools.len()];
    while !rest.is_empty() {
        let is_next = |pool: &usize| comes_after[*pool].iter().all(|&before| !is_left[before]);
        let place = rest.iter().position(is_next).unwrap_or(0);
        let pool = rest.remove(place);
        is_left[pool] = false;
        let before = comes_after[pool].iter().filter(|&&before| !is_left[before] && before != pool);
        depths[pool] = before.map(|&before| depths[before] + 1).max().unwrap_or(0);
        ordered.push((pools[pool].clone(), depths[pool]));
    }
    ordered
}

/// Ids for these pools, chosen so that pools that are freed together are freed in this order. Pools of different
/// depths are as far apart in PyTorch's hash table as possible.
pub(super) fn ids(pools: &[(Pool, u64)]) -> Vec<PoolId> {
    let depths = pools.iter().map(|&(_, depth)| depth + 1).max().unwrap_or(1);
    let distance = u64::MAX / depths;
    // No position is 0, which is the default pool's.
    (1..).zip(pools).map(|(number, (_, depth))| PoolId::walked_at(depth * distance + number)).collect()
}

/// Lives with their pools, in the form in which the replay looks them up.
pub(super) fn assumed<'l>(lives: impl Iterator<Item = (&'l Life, &'l PoolId)>) -> AssumedPools {
    let mut pools = AssumedPools::default();
    for (life, &pool) in lives {
        match life.made_at {
            // For an expandable segment, the default pool is also stated: the nearest segment below may belong to a different
            // pool.
            Some(at) if pool != PoolId::DEFAULT || life.expandable => {
                pools.made.insert(at as u32, pool);
            }
            Some(_) => {}
            None => {
                pools.before.insert(life.base, pool);
            }
        }
        if let (true, Some(at)) = (life.expandable, life.gone_at) {
            pools.range_ends.insert(at as u32, life.base);
        }
    }
    pools
}
