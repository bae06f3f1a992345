//! The moves of a search: placing a buffer, raising a floor, and undoing both; with their consequences for floors
//! and lowest addresses.

use super::{Change, Search};

impl Search<'_> {
    /// Places a buffer at its lowest address. False if the branch has failed.
    pub(super) fn place(&mut self, buffer: usize) -> bool {
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

    /// Raises the floor of a section, which nothing covers. False if the branch has failed.
    pub(super) fn rise(&mut self, section: usize) -> bool {
        let relations = self.relations;
        let buffers = relations.instance.buffers();
        let floor = self.floors[section];
        for &buffer in &relations.members[section] {
            let b = buffer as usize;
            if self.placed[b] || self.offsets[b] != floor {
                continue;
            }
            // It will be on top of another buffer then, which is not placed yet.
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

    /// Raises a buffer's lowest address. False if it no longer fits.
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

    /// Computes the floors of the touched sections. False if the unplaced buffers do not fit above one of them.
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

    /// Undoes all changes after this mark of the trail.
    pub(super) fn undo(&mut self, mark: usize) {
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
