//! A systematic search for a packing of at most a given height, for up to a few hundred buffers.
//!
//! Each section of time has a floor: every buffer that is still to be placed there must be above it. A node of the search
//! picks a section and branches on what covers the byte at its floor: one of the buffers that can be there, or nothing; in
//! the latter case, the floor rises. Placing a buffer lifts all unplaced buffers that overlap it in time, so floors also rise
//! in other sections. If the unplaced buffers of a section do not fit between its floor and the capacity, the branch is
//! pruned. The section picked is one with the lowest floor; before that, the search places buffers that have no choice
//! because their section has no room for a gap.
//!
//! The search looks for the packing with the smallest sum of addresses. In that packing every buffer is at the bottom or on
//! top of another, and none fits further down; branches where that has become impossible are pruned. Of two equal buffers,
//! the first is placed first. (The idea of a floor per section is from MiniMalloc, ASPLOS 2023; weighting by failures is from
//! constraint programming.)
//!
//! [`Relations`] computes once what every search on an instance needs: which buffers overlap in time, which are equal, and
//! the unit of addresses.

use super::instance::{Instance, Packing};

/// How a search ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// It found a packing of at most that height.
    Found(Packing),
    /// There is no such packing.
    Impossible,
    /// It ran out of steps.
    Unknown,
}

/// The rule for picking a section among several with the lowest floor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pick {
    /// The section with the fewest branches.
    Fewest,
    /// The section with the least room above its unplaced buffers.
    Tightest,
    /// The section in which the most branches failed.
    Hardest,
    /// The first section.
    Earliest,
}

impl Pick {
    pub(super) const ALL: [Pick; 4] = [Pick::Fewest, Pick::Tightest, Pick::Hardest, Pick::Earliest];
}

/// A search, with the state of its current node.
pub(super) struct Search<'a> {
    relations: &'a Relations<'a>,
    capacity: u64,
    /// The rank of each buffer; lower ranks are tried first.
    rank: &'a [u32],
    /// The number of branches that failed in each section.
    weights: &'a mut [u32],
    /// The address of each placed buffer, and the lowest possible address of each unplaced one.
    offsets: Vec<u64>,
    /// For each buffer, the lowest address that is above all placed buffers that overlap it in time.
    supports: Vec<u64>,
    placed: Vec<bool>,
    floors: Vec<u64>,
    /// The number of buffers that can be on the floor of each section.
    ready: Vec<u32>,
    /// The bytes of the unplaced buffers of each section.
    rest: Vec<u64>,
    /// For each section, the number of unplaced buffers that are live in it and in the previous one.
    crossing: Vec<u32>,
    /// Stretches to be solved after others: linked lists that share their tails.
    later: Vec<Later>,
    trail: Vec<Change>,
    /// Sections whose floors must be computed again.
    touched: Vec<u32>,
    is_touched: Vec<bool>,
    pick: Pick,
    pub(super) steps: u64,
}

/// A change that is undone when a branch is pruned.
enum Change {
    Offset(u32, u64),
    Support(u32, u64),
    Floor(u32, u64, u32),
    Placed(u32),
}

/// Sections from the first to the last (exclusive).
type Stretch = (u32, u32);

/// A node: its task, and the branches that are still to be tried.
struct Node {
    branches: Vec<Branch>,
    /// The length of the trail before any branch.
    mark: usize,
    /// The task to solve at this node.
    task: Task,
    /// The length of [`Search::later`] before any branch.
    later: usize,
}

/// A stretch of time to solve.
#[derive(Clone, Copy)]
struct Task {
    stretch: Stretch,
    /// The node whose branch split this stretch off. If the stretch cannot be solved, that branch has failed, regardless of
    /// what was found for other stretches.
    owner: usize,
    /// The task after this one, as an index into [`Search::later`].
    next: Option<usize>,
}

/// The owner of the undivided task: if it cannot be solved, there is no packing.
const ROOT: usize = usize::MAX;

/// A stretch to be solved later.
struct Later(Task);

#[derive(Clone, Copy)]
enum Branch {
    Place(u32),
    /// Nothing covers the floor of this section.
    Rise(u32),
}

impl<'a> Search<'a> {
    pub(super) fn new(
        relations: &'a Relations<'a>,
        rank: &'a [u32],
        weights: &'a mut [u32],
        pick: Pick,
        capacity: u64,
    ) -> Search<'a> {
        let count = relations.neighbours.len();
        let sections = relations.members.len();
        let ready = relations.members.iter().map(|members| members.len() as u32).collect();
        Search {
            relations,
            capacity,
            rank,
            weights,
            offsets: vec![0; count],
            supports: vec![0; count],
            placed: vec![false; count],
            floors: vec![0; sections],
            ready,
            rest: relations.instance.loads.clone(),
            crossing: crossing(relations),
            later: Vec::new(),
            trail: Vec::new(),
            touched: Vec::new(),
            is_touched: vec![false; sections],
            steps: 0,
            pick,
        }
    }

    /// Searches until a packing is found, every branch has been tried, or `limit` steps have been taken.
    pub(super) fn run(&mut self, limit: u64) -> Outcome {
        if self.rest.iter().any(|&rest| rest > self.capacity) {
            return Outcome::Impossible;
        }
        let whole = Task { stretch: (0, self.rest.len() as u32), owner: ROOT, next: None };
        let Some(task) = self.divide(whole, ROOT) else { return Outcome::Found(self.packing()) };
        let mut path = vec![self.open(task)];
        while let Some(node) = path.last_mut() {
            if self.steps >= limit {
                return Outcome::Unknown;
            }
            let (mark, task) = (node.mark, node.task);
            let Some(branch) = node.branches.pop() else {
                if task.owner == ROOT {
                    break;
                }
                path.truncate(task.owner + 1);
                let (mark, later) = (path[task.owner].mark, path[task.owner].later);
                self.undo(mark);
                self.later.truncate(later);
                continue;
            };
            let stands = match branch {
                Branch::Place(buffer) => self.place(buffer as usize),
                Branch::Rise(section) => self.rise(section as usize),
            };
            if !stands {
                self.undo(mark);
                continue;
            }
            let here = path.len() - 1;
            let next = match branch {
                Branch::Place(_) => self.divide(task, here),
                Branch::Rise(_) => Some(Task { owner: here, ..task }),
            };
            match next {
                Some(task) => path.push(self.open(task)),
                None => return Outcome::Found(self.packing()),
            }
        }
        Outcome::Impossible
    }

    /// Returns the next task. If no unplaced buffer connects its parts, a task splits into several stretches, and the first
    /// of them is next; if nothing is left of the task, the task after it is next.
    fn divide(&mut self, task: Task, owner: usize) -> Option<Task> {
        let (first, end) = task.stretch;
        self.steps += u64::from(end - first) / 4;
        let mut stretches: Vec<Stretch> = Vec::new();
        let mut begin = first;
        for section in first..=end {
            if section < end && (section == begin || self.crossing[section as usize] > 0) {
                continue;
            }
            if self.rest[begin as usize..section as usize].iter().any(|&rest| rest > 0) {
                stretches.push((begin, section));
            }
            begin = section;
        }
        // Short stretches come first, so that the search finds out early if they cannot be solved.
        stretches.sort_by_key(|&(begin, end)| std::cmp::Reverse((end - begin, begin)));
        let mut next = task.next;
        let Some(soonest) = stretches.pop() else { return next.map(|place| self.later[place].0) };
        for stretch in stretches {
            self.later.push(Later(Task { stretch, owner, next }));
            next = Some(self.later.len() - 1);
        }
        Some(Task { stretch: soonest, owner, next })
    }

    fn packing(&self) -> Packing {
        let tops = self.relations.instance.buffers().iter().zip(&self.offsets).map(|(buffer, offset)| offset + buffer.size);
        Packing { height: tops.max().unwrap_or(0), offsets: self.offsets.clone() }
    }

    /// Returns the node for a task, with its branches in the reverse of the order in which they are tried.
    fn open(&mut self, task: Task) -> Node {
        let node = |branches, search: &Search<'_>| Node { branches, mark: search.trail.len(), task, later: search.later.len() };
        if let Some(buffer) = self.forced(task.stretch) {
            return node(vec![Branch::Place(buffer)], self);
        }
        let section = self.lowest(task.stretch);
        let floor = self.floors[section];
        let relations = self.relations;
        let buffers = relations.instance.buffers();
        let beginning = relations.beginning(task.stretch);
        self.steps += (beginning.len() / 4 + relations.members[section].len()) as u64;
        let fits_below = |&b: &u32| !self.placed[b as usize] && self.supports[b as usize] + buffers[b as usize].size <= floor;
        if beginning.iter().any(fits_below) {
            return node(Vec::new(), self);
        }
        let mut branches = Vec::with_capacity(self.ready[section] as usize + 1);
        if floor + self.rest[section] < self.capacity {
            branches.push(Branch::Rise(section as u32));
        }
        // A buffer that was lifted to the floor but has nothing below it is tried later.
        let is_ready =
            |b: u32| !self.placed[b as usize] && self.offsets[b as usize] == floor && self.supports[b as usize] == floor;
        let has_waiting_twin = |b: u32| relations.twins[b as usize].is_some_and(is_ready);
        let lying = relations.members[section].iter().copied();
        let mut lying: Vec<u32> = lying.filter(|&b| is_ready(b) && !has_waiting_twin(b)).collect();
        lying.sort_unstable_by_key(|&b| std::cmp::Reverse(self.rank[b as usize]));
        branches.extend(lying.into_iter().map(Branch::Place));
        node(branches, self)
    }

    /// Returns a buffer that must be on the floor of some section, because no other buffer can be and there is no room for a
    /// gap.
    fn forced(&mut self, stretch: Stretch) -> Option<u32> {
        let relations = self.relations;
        let buffers = relations.instance.buffers();
        self.steps += u64::from(stretch.1 - stretch.0) / 4;
        for section in stretch.0 as usize..stretch.1 as usize {
            let (rest, floor) = (self.rest[section], self.floors[section]);
            if rest == 0 || self.ready[section] != 1 || floor + rest < self.capacity {
                continue;
            }
            let is_ready = |&b: &u32| !self.placed[b as usize] && self.offsets[b as usize] == floor;
            let buffer = relations.members[section].iter().copied().find(is_ready)?;
            // Buffers that may go below this one in another section must be placed first.
            let goes_below = |&o: &u32| !self.placed[o as usize] && self.offsets[o as usize] + buffers[o as usize].size <= floor;
            self.steps += relations.neighbours[buffer as usize].len() as u64 / 2;
            if !relations.neighbours[buffer as usize].iter().any(goes_below) {
                return Some(buffer);
            }
        }
        None
    }

    /// Returns the section to pick: of those with the lowest floor, the one that the heuristic prefers.
    fn lowest(&self, (first, end): Stretch) -> usize {
        let open = (first as usize..end as usize).filter(|&section| self.rest[section] > 0);
        let key = |section: usize| {
            let (rest, floor) = (self.rest[section], self.floors[section]);
            let room = self.capacity - floor - rest;
            let second = match self.pick {
                Pick::Fewest => u64::from(self.ready[section]) + u64::from(room > 0),
                Pick::Tightest => room,
                Pick::Hardest => u64::from(u32::MAX - self.weights[section]),
                Pick::Earliest => 0,
            };
            (floor, second, section)
        };
        open.map(key).min().map_or(0, |(_, _, section)| section)
    }
}

fn crossing(relations: &Relations<'_>) -> Vec<u32> {
    let mut crossing = vec![0; relations.members.len()];
    for &(start, end) in &relations.instance.spans {
        crossing[start as usize + 1..end as usize].iter_mut().for_each(|crossing| *crossing += 1);
    }
    crossing
}

impl Search<'_> {
    /// Places a buffer at its lowest address. Returns false if the branch has failed.
    fn place(&mut self, buffer: usize) -> bool {
        let relations = self.relations;
        let buffers = relations.instance.buffers();
        let (offset, size, span) = (self.offsets[buffer], buffers[buffer].size, relations.instance.spans[buffer]);
        self.placed[buffer] = true;
        self.trail.push(Change::Placed(buffer as u32));
        self.crossing[span.0 as usize + 1..span.1 as usize].iter_mut().for_each(|crossing| *crossing -= 1);
        for section in span.0..span.1 {
            self.rest[section as usize] -= size;
            self.touch(section);
        }
        let top = offset + size;
        self.steps += relations.neighbours[buffer].len() as u64;
        for &other in &relations.neighbours[buffer] {
            let o = other as usize;
            if self.placed[o] {
                continue;
            }
            if self.supports[o] < top {
                self.trail.push(Change::Support(other, self.supports[o]));
                self.supports[o] = top.next_multiple_of(buffers[o].alignment);
            }
            if !self.lift(other, top) {
                self.touched_done();
                return false;
            }
        }
        self.settle()
    }

    /// Raises the floor of a section, which nothing covers. Returns false if the branch has failed.
    fn rise(&mut self, section: usize) -> bool {
        let relations = self.relations;
        let buffers = relations.instance.buffers();
        let floor = self.floors[section];
        for &buffer in &relations.members[section] {
            let b = buffer as usize;
            if self.placed[b] || self.offsets[b] != floor {
                continue;
            }
            // The buffer will then be on top of another one that has not been placed yet.
            let mut least = u64::MAX;
            for &other in &relations.neighbours[b] {
                let o = other as usize;
                if !self.placed[o] {
                    least = least.min((self.offsets[o] + buffers[o].size).max(floor + relations.unit));
                }
            }
            self.steps += relations.neighbours[b].len() as u64 / 2;
            if least == u64::MAX || !self.lift(buffer, least) {
                self.weights[section] += 1;
                self.touched_done();
                return false;
            }
        }
        self.settle()
    }

    /// Raises a buffer's lowest address. Returns false if it no longer fits.
    fn lift(&mut self, buffer: u32, offset: u64) -> bool {
        let b = buffer as usize;
        let wanted = self.relations.instance.buffers()[b];
        let offset = offset.next_multiple_of(wanted.alignment);
        if offset <= self.offsets[b] {
            return true;
        }
        self.trail.push(Change::Offset(buffer, self.offsets[b]));
        self.offsets[b] = offset;
        let (start, end) = self.relations.instance.spans[b];
        for section in start..end {
            self.touch(section);
        }
        offset + wanted.size <= self.capacity
    }

    fn touch(&mut self, section: u32) {
        if !self.is_touched[section as usize] {
            self.is_touched[section as usize] = true;
            self.touched.push(section);
        }
    }

    fn touched_done(&mut self) {
        for section in self.touched.drain(..) {
            self.is_touched[section as usize] = false;
        }
    }

    /// Computes the floors of the touched sections. Returns false if the unplaced buffers do not fit above one of them.
    fn settle(&mut self) -> bool {
        let mut stands = true;
        for at in 0..self.touched.len() {
            let section = self.touched[at] as usize;
            if self.rest[section] == 0 {
                continue;
            }
            let (mut floor, mut ready) = (u64::MAX, 0);
            for &buffer in &self.relations.members[section] {
                let b = buffer as usize;
                if self.placed[b] {
                    continue;
                }
                if self.offsets[b] < floor {
                    (floor, ready) = (self.offsets[b], 0);
                }
                ready += u32::from(self.offsets[b] == floor);
            }
            self.steps += self.relations.members[section].len() as u64 / 2;
            if floor + self.rest[section] > self.capacity {
                self.weights[section] += 1;
                stands = false;
                break;
            }
            if (floor, ready) != (self.floors[section], self.ready[section]) {
                self.trail.push(Change::Floor(section as u32, self.floors[section], self.ready[section]));
                (self.floors[section], self.ready[section]) = (floor, ready);
            }
        }
        self.touched_done();
        stands
    }

    /// Undoes all changes after this mark in the trail.
    fn undo(&mut self, mark: usize) {
        for change in self.trail.drain(mark..).rev() {
            match change {
                Change::Support(buffer, support) => self.supports[buffer as usize] = support,
                Change::Offset(buffer, offset) => self.offsets[buffer as usize] = offset,
                Change::Floor(section, floor, ready) => {
                    (self.floors[section as usize], self.ready[section as usize]) = (floor, ready);
                }
                Change::Placed(buffer) => {
                    let size = self.relations.instance.buffers()[buffer as usize].size;
                    let (start, end) = self.relations.instance.spans[buffer as usize];
                    self.rest[start as usize..end as usize].iter_mut().for_each(|rest| *rest += size);
                    self.crossing[start as usize + 1..end as usize].iter_mut().for_each(|crossing| *crossing += 1);
                    self.placed[buffer as usize] = false;
                }
            }
        }
    }
}

/// Facts about an instance that all searches share.
pub(super) struct Relations<'a> {
    pub(super) instance: &'a Instance,
    /// For each buffer, those that overlap it in time.
    neighbours: Vec<Vec<u32>>,
    /// The buffers of each section.
    members: Vec<Vec<u32>>,
    /// For each buffer, the previous one with the same span, size and alignment.
    twins: Vec<Option<u32>>,
    /// All buffers, in order of the sections in which they begin.
    by_start: Vec<u32>,
    /// For each section, the number of buffers that begin before it.
    begun: Vec<u32>,
    /// In a packing without needless gaps, all addresses are multiples of this.
    unit: u64,
}

impl<'a> Relations<'a> {
    pub(super) fn new(instance: &'a Instance) -> Relations<'a> {
        let buffers = instance.buffers();
        let count = buffers.len();
        let others = |a: usize| (0..count).filter(|&b| a != b && instance.overlap(a, b)).map(|b| b as u32).collect();
        let mut members = vec![Vec::new(); instance.loads.len()];
        for (buffer, &(start, end)) in instance.spans.iter().enumerate() {
            members[start as usize..end as usize].iter_mut().for_each(|list: &mut Vec<u32>| list.push(buffer as u32));
        }
        let kind = |b: usize| (instance.spans[b], buffers[b].size, buffers[b].alignment);
        let twins = (0..count).map(|b| (0..b).rev().find(|&a| kind(a) == kind(b)).map(|a| a as u32)).collect();
        let unit = buffers.iter().fold(0, |unit, buffer| gcd(gcd(unit, buffer.size), step_of(buffer.alignment)));
        let mut by_start: Vec<u32> = (0..count as u32).collect();
        by_start.sort_by_key(|&buffer| instance.spans[buffer as usize].0);
        let sections = 0..=instance.loads.len() as u32;
        let begun =
            sections.map(|section| by_start.partition_point(|&b| instance.spans[b as usize].0 < section) as u32).collect();
        let neighbours = (0..count).map(others).collect();
        Relations { instance, neighbours, members, twins, by_start, begun, unit: unit.max(1) }
    }

    /// Returns the buffers that begin in these sections.
    fn beginning(&self, (first, end): (u32, u32)) -> &[u32] {
        &self.by_start[self.begun[first as usize] as usize..self.begun[end as usize] as usize]
    }
}

/// Returns an alignment as a step between addresses. An alignment of 1 imposes no constraint; represented as 0, it does not
/// change a greatest common divisor.
fn step_of(alignment: u64) -> u64 {
    if alignment == 1 { 0 } else { alignment }
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
