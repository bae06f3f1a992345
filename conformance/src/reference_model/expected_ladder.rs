//! The retry ladder, written a second time: what a request that no free block serves gives back, waits for and asks for (spec
//! 2.4, 2.7, 2.9).
//!
//! It works on lists of segments and their sums; the heap before the request determines everything that must happen, rung by
//! rung.

use std::collections::BTreeSet;

use crate::reference_model::Rules;

/// The device's page: its unit of memory.
const PAGE: u64 = 2 << 20;

/// An ordinary segment, as it was when a request searched for a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// First byte.
    pub address: u64,
    /// Its length.
    pub size: u64,
    /// Its stream.
    pub stream: u64,
    /// Whether it belongs to the large pool.
    pub large: bool,
    /// Nothing in it is live or pending.
    pub is_free: bool,
    /// Nothing in it is live: it is free once all events are complete.
    pub is_free_after_waiting: bool,
    /// How many searches it has been free for.
    pub age: u64,
}

/// A request on the ladder, and the state it starts from.
#[derive(Clone, Debug)]
pub struct Ladder {
    /// The rules in force.
    pub rules: Rules,
    /// The request's rounded size.
    pub size: u64,
    /// Its stream.
    pub stream: u64,
    /// The memory limit.
    pub limit: Option<u64>,
    /// Pages that the device can still give; negative if others took memory that is held here.
    pub room_pages: i64,
    /// All segments.
    pub segments: Vec<Candidate>,
}

/// What must happen.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Climb {
    /// Start addresses of the segments given back.
    pub given_back: BTreeSet<u64>,
    /// How often the device is asked for memory.
    pub asked: usize,
    /// Whether it waits for all events, which counts as a retry.
    pub waited: bool,
    /// Whether it gets a new segment in the end.
    pub served: bool,
}

impl Ladder {
    /// Climbs the ladder.
    #[must_use]
    pub fn climb(mut self) -> Climb {
        let mut climb = Climb::default();
        let garbage = self.garbage();
        self.give_back(&garbage, &mut climb);
        if self.asks(&mut climb) {
            return climb;
        }
        let (oversize, is_enough) = self.oversize();
        self.give_back(&oversize, &mut climb);
        if is_enough && self.asks(&mut climb) {
            return climb;
        }
        climb.waited = true;
        let all: Vec<Candidate> = self.segments.iter().filter(|segment| segment.is_free_after_waiting).copied().collect();
        self.give_back(&all, &mut climb);
        self.asks(&mut climb);
        climb
    }

    fn reserved(&self) -> u64 {
        self.segments.iter().map(|segment| segment.size).sum()
    }

    fn give_back(&mut self, gone: &[Candidate], climb: &mut Climb) {
        self.segments.retain(|segment| !gone.contains(segment));
        self.room_pages += gone.iter().map(|segment| segment.size.div_ceil(PAGE) as i64).sum::<i64>();
        climb.given_back.extend(gone.iter().map(|segment| segment.address));
    }

    /// The limit comes before the device: a request beyond it does not reach the device.
    fn asks(&self, climb: &mut Climb) -> bool {
        let wanted = self.rules.segment(self.size);
        if self.limit.is_some_and(|limit| self.reserved() + wanted > limit) {
            return false;
        }
        climb.asked += 1;
        climb.served = wanted.div_ceil(PAGE) as i64 <= self.room_pages;
        climb.served
    }

    /// Free large segments to collect. Each round takes those at least as old as the average of the rest, until enough is
    /// collected or none is left (spec 2.7).
    fn garbage(&self) -> Vec<Candidate> {
        let Some(limit) = self.limit.filter(|_| self.rules.collection_hundredths > 0) else { return Vec::new() };
        let allowed = (self.rules.collection_hundredths as f64 / 100.0 * limit as f64) as u64;
        let target = self.reserved().saturating_sub(allowed);
        let (mut left, mut gone): (Vec<Candidate>, Vec<Candidate>) =
            (self.free().filter(|free| free.large).collect(), Vec::new());
        while gone.iter().map(|segment| segment.size).sum::<u64>() < target && !left.is_empty() {
            let average = left.iter().map(|segment| segment.age).sum::<u64>() as f64 / left.len() as f64;
            let (old, young): (Vec<_>, Vec<_>) = left.into_iter().partition(|segment| segment.age as f64 >= average);
            gone.extend(old);
            left = young;
        }
        gone
    }

    /// Free oversize segments of the request's own stream and pool: the smallest that is large enough, otherwise the largest ones
    /// until their sum is; and whether it is (spec 2.9).
    fn oversize(&self) -> (Vec<Candidate>, bool) {
        let Some(max_split) = self.rules.max_split else { return (Vec::new(), false) };
        let wanted = self.size.max(max_split);
        let large = Rules::is_large(self.size);
        let mut own: Vec<Candidate> = self.free().filter(|free| free.stream == self.stream && free.large == large).collect();
        own.retain(|free| free.size >= max_split);
        own.sort_by_key(|free| (free.size, free.address));
        if let Some(smallest) = own.iter().find(|free| free.size >= wanted) {
            return (vec![*smallest], true);
        }
        let (mut gone, mut sum) = (Vec::new(), 0);
        while sum < wanted
            && let Some(largest) = own.pop()
        {
            sum += largest.size;
            gone.push(largest);
        }
        (gone, sum >= wanted)
    }

    fn free(&self) -> impl Iterator<Item = Candidate> + '_ {
        self.segments.iter().filter(|segment| segment.is_free).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn segment(number: u64, mib: u64, age: u64) -> Candidate {
        let (address, size) = (number << 32, mib * MIB);
        Candidate { address, size, stream: 0, large: true, is_free: true, is_free_after_waiting: true, age }
    }

    fn ladder(rules: Rules, segments: Vec<Candidate>) -> Ladder {
        Ladder { rules, size: 30 * MIB, stream: 0, limit: None, room_pages: 0, segments }
    }

    #[test]
    fn everything_goes_when_nothing_else_helps() {
        let climb = ladder(Rules::default(), vec![segment(1, 20, 1), segment(2, 10, 1)]).climb();
        assert_eq!(climb, Climb { given_back: [1 << 32, 2 << 32].into(), asked: 2, waited: true, served: true });
    }

    #[test]
    fn oversize_segments_go_first_and_no_more_than_needed() {
        let rules = Rules { max_split: Some(20 * MIB), ..Rules::default() };
        let climb = ladder(rules, vec![segment(1, 20, 1), segment(2, 22, 1), segment(3, 24, 1), segment(4, 12, 1)]).climb();
        assert_eq!(climb, Climb { given_back: [2 << 32, 3 << 32].into(), asked: 2, waited: false, served: true });
    }

    #[test]
    fn the_oldest_are_collected_until_the_threshold_is_met() {
        let rules = Rules { collection_hundredths: 50, ..Rules::default() };
        let mut ladder = ladder(rules, vec![segment(1, 20, 9), segment(2, 20, 2), segment(3, 20, 1)]);
        (ladder.limit, ladder.room_pages) = (Some(80 * MIB), 15);
        assert_eq!(ladder.climb(), Climb { given_back: [1 << 32].into(), asked: 1, waited: false, served: true });
    }

    #[test]
    fn beyond_the_limit_the_device_is_not_asked() {
        let mut ladder = ladder(Rules::default(), Vec::new());
        (ladder.limit, ladder.room_pages) = (Some(30 * MIB - 1), 100);
        assert_eq!(ladder.climb(), Climb { waited: true, ..Climb::default() });
    }
}
