//! A systematic search for a packing of at most a given height, for some hundreds of buffers.
//!
//! Each section of time has a floor: everything that is still to be placed there lies above it. A node asks of one section what
//! covers the byte at its floor: one of the buffers that may lie there, or nothing, in which case the floor rises. Placing a
//! buffer lifts all that live together with it and are not placed, so floors rise in other sections too; where what is still to
//! come does not fit between floor and capacity, the branch is given up. A section with the lowest floor is asked; before that,
//! buffers are placed that have no other place, because their section has room for no gap.
//!
//! Of all packings the search looks for one whose addresses add up to the least. In that one every buffer lies on the ground or
//! on another one, and none would fit further down: branches where that cannot be so any more are given up. Of two equal buffers
//! the first is placed first. (Floors per section are an idea of MiniMalloc, ASPLOS 2023; weights of failures are from constraint
//! programming.)

mod moves;

use super::instance::Packing;
use super::relations::Relations;

/// How a search ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// With a packing of at most that height.
    Found(Packing),
    /// There is none.
    Impossible,
    /// The steps did not suffice.
    Unknown,
}

/// Which section is asked, of several with the lowest floor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Asked {
    /// The one with the fewest answers.
    Fewest,
    /// The one with the least room above what is to come.
    Tightest,
    /// The one in which the most branches failed.
    Hardest,
    /// The first one.
    Earliest,
}

impl Asked {
    pub(super) const ALL: [Asked; 4] = [Asked::Fewest, Asked::Tightest, Asked::Hardest, Asked::Earliest];
}

/// A search, with its state at the present node.
pub(super) struct Search<'a> {
    relations: &'a Relations<'a>,
    capacity: u64,
    /// The order in which buffers are tried: lower first.
    rank: &'a [u32],
    /// How often branches failed in each section.
    weights: &'a mut [u32],
    /// The lowest address that each buffer can have, or has.
    offsets: Vec<u64>,
    /// The lowest address above all placed buffers that live together with each one.
    supports: Vec<u64>,
    placed: Vec<bool>,
    floors: Vec<u64>,
    /// How many buffers may lie on each floor.
    ready: Vec<u32>,
    /// What is still to be placed in each section, in bytes.
    rest: Vec<u64>,
    /// For each section how many buffers that are still to be placed live in it and in the one before.
    crossing: Vec<u32>,
    /// Stretches to be solved after others, as lists that share their ends.
    later: Vec<Later>,
    trail: Vec<Change>,
    /// Sections to look at again.
    touched: Vec<u32>,
    is_touched: Vec<bool>,
    asked: Asked,
    pub(super) steps: u64,
}

/// Something that is taken back when a branch is given up.
enum Change {
    Offset(u32, u64),
    Support(u32, u64),
    Floor(u32, u64, u32),
    Placed(u32),
}

/// Sections from the first to the last (exclusive).
type Stretch = (u32, u32);

/// A node: what it is about, and the answers that are still to be tried.
struct Node {
    answers: Vec<Answer>,
    /// The length of the trail before any of them.
    mark: usize,
    /// What is to be placed here.
    task: Task,
    /// The length of the list of stretches that come later, before any of them.
    later: usize,
}

/// A stretch of time to solve.
#[derive(Clone, Copy)]
struct Task {
    stretch: Stretch,
    /// The node whose answer made it a stretch of its own. If there is no way to solve it, that answer is wrong, whatever was
    /// found for other stretches.
    owner: usize,
    /// What is to be solved after it, a place in [`Search::later`].
    next: Option<usize>,
}

/// The owner of what nothing divided: if there is no way, there is none at all.
const ROOT: usize = usize::MAX;

/// A stretch that comes later.
struct Later(Task);

#[derive(Clone, Copy)]
enum Answer {
    Place(u32),
    /// Nothing covers the floor of this section.
    Rise(u32),
}

impl<'a> Search<'a> {
    pub(super) fn new(
        relations: &'a Relations<'a>,
        rank: &'a [u32],
        weights: &'a mut [u32],
        asked: Asked,
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
            asked,
        }
    }

    /// Searches until something is found, or all is seen, or `limit` steps are done.
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
            let Some(answer) = node.answers.pop() else {
                if task.owner == ROOT {
                    break;
                }
                path.truncate(task.owner + 1);
                let (mark, later) = (path[task.owner].mark, path[task.owner].later);
                self.take_back(mark);
                self.later.truncate(later);
                continue;
            };
            let stands = match answer {
                Answer::Place(buffer) => self.place(buffer as usize),
                Answer::Rise(section) => self.rise(section as usize),
            };
            if !stands {
                self.take_back(mark);
                continue;
            }
            let here = path.len() - 1;
            let next = match answer {
                Answer::Place(_) => self.divide(task, here),
                Answer::Rise(_) => Some(Task { owner: here, ..task }),
            };
            match next {
                Some(task) => path.push(self.open(task)),
                None => return Outcome::Found(self.packing()),
            }
        }
        Outcome::Impossible
    }

    /// What is to be solved next: the first of the stretches into which a task falls because no buffer that is still to be
    /// placed lives in two of them, or what comes after the task if nothing is left of it.
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
        // Short ones first: whether there is no way is soon known.
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

    /// The next question about a stretch, its answers in reverse order of trying.
    fn open(&mut self, task: Task) -> Node {
        let node = |answers, search: &Search<'_>| Node { answers, mark: search.trail.len(), task, later: search.later.len() };
        if let Some(buffer) = self.forced(task.stretch) {
            return node(vec![Answer::Place(buffer)], self);
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
        let mut answers = Vec::with_capacity(self.ready[section] as usize + 1);
        if floor + self.rest[section] < self.capacity {
            answers.push(Answer::Rise(section as u32));
        }
        // One whose floor rose to here without anything to lie on comes later.
        let is_ready =
            |b: u32| !self.placed[b as usize] && self.offsets[b as usize] == floor && self.supports[b as usize] == floor;
        let has_waiting_twin = |b: u32| relations.twins[b as usize].is_some_and(is_ready);
        let lying = relations.members[section].iter().copied();
        let mut lying: Vec<u32> = lying.filter(|&b| is_ready(b) && !has_waiting_twin(b)).collect();
        lying.sort_unstable_by_key(|&b| std::cmp::Reverse(self.rank[b as usize]));
        answers.extend(lying.into_iter().map(Answer::Place));
        node(answers, self)
    }

    /// A buffer that has to lie on the floor of some section, because nothing else can and there is no room for a gap.
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
            // What may come to lie below it in another section has to be placed first.
            let goes_below = |&o: &u32| !self.placed[o as usize] && self.offsets[o as usize] + buffers[o as usize].size <= floor;
            self.steps += relations.neighbours[buffer as usize].len() as u64 / 2;
            if !relations.neighbours[buffer as usize].iter().any(goes_below) {
                return Some(buffer);
            }
        }
        None
    }

    /// The section with the lowest floor, of these the one that is to be asked first.
    fn lowest(&self, (first, end): Stretch) -> usize {
        let open = (first as usize..end as usize).filter(|&section| self.rest[section] > 0);
        let key = |section: usize| {
            let (rest, floor) = (self.rest[section], self.floors[section]);
            let room = self.capacity - floor - rest;
            let second = match self.asked {
                Asked::Fewest => u64::from(self.ready[section]) + u64::from(room > 0),
                Asked::Tightest => room,
                Asked::Hardest => u64::from(u32::MAX - self.weights[section]),
                Asked::Earliest => 0,
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
