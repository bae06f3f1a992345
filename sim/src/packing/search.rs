//! A systematic search for a packing of at most a given height, for some hundreds of buffers.
//!
//! Each section of time has a floor: everything that is still to be placed there lies above it. A node asks of one section what covers the
//! byte at its floor: one of the buffers that may lie there, or nothing, in which case the floor rises. Placing a buffer lifts all
//! that live together with it and are not placed, so floors rise in other sections too; where what is still to come does
//! not fit between floor and capacity, the branch is given up. A section with the lowest floor is asked; before that, buffers are
//! placed that have no other place, because their section has room for no gap.
//!
//! Of all packings the search looks for one whose addresses add up to the least. In that one every buffer lies on the ground or on another
//! one, and none would fit further down: branches where that cannot be so any more are given up. Of two equal buffers the
//! first is placed first. (Floors per section are an idea of MiniMalloc, ASPLOS 2023; weights of failures are from constraint
//! programming.)

use super::Packing;
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
    unplaced: usize,
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

/// A node: a section, and the answers that are still to be tried.
struct Node {
    answers: Vec<Answer>,
    /// The length of the trail before any of them.
    mark: usize,
}

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
            unplaced: count,
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
        let mut path = vec![self.open()];
        while let Some(node) = path.last_mut() {
            if self.steps >= limit {
                return Outcome::Unknown;
            }
            let mark = node.mark;
            let Some(answer) = node.answers.pop() else {
                path.pop();
                if let Some(above) = path.last() {
                    let mark = above.mark;
                    self.take_back(mark);
                }
                continue;
            };
            let stands = match answer {
                Answer::Place(buffer) => self.place(buffer as usize),
                Answer::Rise(section) => self.rise(section as usize),
            };
            if !stands {
                self.take_back(mark);
            } else if self.unplaced == 0 {
                return Outcome::Found(self.packing());
            } else {
                path.push(self.open());
            }
        }
        Outcome::Impossible
    }

    fn packing(&self) -> Packing {
        let tops = self.relations.instance.buffers().iter().zip(&self.offsets).map(|(buffer, offset)| offset + buffer.size);
        Packing { height: tops.max().unwrap_or(0), offsets: self.offsets.clone() }
    }

    /// The next question, its answers in reverse order of trying.
    fn open(&mut self) -> Node {
        let mark = self.trail.len();
        if let Some(buffer) = self.forced() {
            return Node { answers: vec![Answer::Place(buffer)], mark };
        }
        let section = self.lowest();
        let floor = self.floors[section];
        let relations = self.relations;
        let buffers = relations.instance.buffers();
        self.steps += (buffers.len() / 4 + relations.members[section].len()) as u64;
        let fits_below = |b: usize| !self.placed[b] && self.supports[b] + buffers[b].size <= floor;
        if (0..buffers.len()).any(fits_below) {
            return Node { answers: Vec::new(), mark };
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
        Node { answers, mark }
    }

    /// A buffer that has to lie on the floor of some section, because nothing else can and there is no room for a gap.
    fn forced(&mut self) -> Option<u32> {
        let relations = self.relations;
        let buffers = relations.instance.buffers();
        self.steps += self.rest.len() as u64 / 4;
        for (section, &rest) in self.rest.iter().enumerate() {
            let floor = self.floors[section];
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
    fn lowest(&self) -> usize {
        let open = self.rest.iter().enumerate().filter(|&(_, &rest)| rest > 0);
        let key = |(section, &rest): (usize, &u64)| {
            let floor = self.floors[section];
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

    /// Places a buffer at its lowest address. False if that leads nowhere.
    fn place(&mut self, buffer: usize) -> bool {
        let relations = self.relations;
        let buffers = relations.instance.buffers();
        let (offset, size, span) = (self.offsets[buffer], buffers[buffer].size, relations.instance.spans[buffer]);
        self.placed[buffer] = true;
        self.unplaced -= 1;
        self.trail.push(Change::Placed(buffer as u32));
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

    /// Nothing covers the floor of this section. False if that leads nowhere.
    fn rise(&mut self, section: usize) -> bool {
        let relations = self.relations;
        let buffers = relations.instance.buffers();
        let floor = self.floors[section];
        for &buffer in &relations.members[section] {
            let b = buffer as usize;
            if self.placed[b] || self.offsets[b] != floor {
                continue;
            }
            // It lies on top of something else then, which is not placed yet.
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

    /// A buffer cannot lie lower than this. False if it does not fit then.
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

    /// Finds the floors of the touched sections. False if what is still to come does not fit above one of them.
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

    fn take_back(&mut self, mark: usize) {
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
                    self.placed[buffer as usize] = false;
                    self.unplaced += 1;
                }
            }
        }
    }
}
