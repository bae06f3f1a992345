//! A second, slow and straightforward implementation of PyTorch's rules for requests, based on the specification: the
//! sizes of blocks and segments, and the retry ladder.

use std::collections::BTreeSet;

use parkade::units::MIB;

/// The parameters of the rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// Blocks of at least this size are oversize; `None` means that no block is oversize.
    pub max_split: Option<u64>,
    /// The number of bytes by which an oversize block may be larger than the request.
    pub non_split_rounding: u64,
    /// The size in bytes of the segments that are allocated for medium requests.
    pub large_segment: u64,
    /// The number of steps between two powers of two, for requests below 2, 4 and 8 MiB and for larger ones; 0 disables
    /// this rounding.
    pub divisions: [u64; 4],
    /// The fraction of the limit above which unused segments are released, in hundredths; 0 means never.
    pub collection_hundredths: u64,
}

/// A settings string and its effect on the rules. Every string resets the rules that it does not name. The exception is
/// the size of large segments, which keeps its value; the rounding slack is reset to that value (spec 8.3).
#[derive(Clone, Copy, Debug)]
pub struct NamedSettings {
    /// The string.
    pub text: &'static str,
    max_split_mib: Option<u64>,
    non_split_rounding_mib: Option<u64>,
    large_segment_mib: Option<u64>,
    divisions: [u64; 4],
    collection_hundredths: u64,
}

/// The settings under which the laws are checked.
pub const SETTINGS: [NamedSettings; 9] = [
    NamedSettings::plain(""),
    NamedSettings { max_split_mib: Some(32), ..NamedSettings::plain("max_split_size_mb:32") },
    NamedSettings {
        max_split_mib: Some(64),
        non_split_rounding_mib: Some(40),
        ..NamedSettings::plain("max_split_size_mb:64,max_non_split_rounding_mb:40")
    },
    NamedSettings { divisions: [4; 4], ..NamedSettings::plain("roundup_power2_divisions:4") },
    NamedSettings { collection_hundredths: 60, ..NamedSettings::plain("garbage_collection_threshold:0.6") },
    NamedSettings {
        max_split_mib: Some(32),
        collection_hundredths: 30,
        ..NamedSettings::plain("garbage_collection_threshold:0.3,max_split_size_mb:32")
    },
    NamedSettings { large_segment_mib: Some(11), ..NamedSettings::plain("large_segment_size_mb:11") },
    NamedSettings {
        max_split_mib: Some(20),
        divisions: [2; 4],
        collection_hundredths: 90,
        ..NamedSettings::plain("max_split_size_mb:20,roundup_power2_divisions:2,garbage_collection_threshold:0.9")
    },
    NamedSettings { divisions: [4, 1, 8, 2], ..NamedSettings::plain("roundup_power2_divisions:[1:4,2:1,4:8,>:2]") },
];

impl NamedSettings {
    const fn plain(text: &'static str) -> NamedSettings {
        NamedSettings {
            text,
            max_split_mib: None,
            non_split_rounding_mib: None,
            large_segment_mib: None,
            divisions: [0; 4],
            collection_hundredths: 0,
        }
    }

    /// Returns the rules after the string is applied to `before`.
    #[must_use]
    pub fn applied_to(&self, before: Rules) -> Rules {
        let large_segment = self.large_segment_mib.map_or(before.large_segment, |mib| mib * MIB);
        Rules {
            max_split: self.max_split_mib.map(|mib| mib * MIB),
            non_split_rounding: self.non_split_rounding_mib.map_or(large_segment, |mib| mib * MIB),
            large_segment,
            divisions: self.divisions,
            collection_hundredths: self.collection_hundredths,
        }
    }
}

impl Default for Rules {
    fn default() -> Rules {
        Rules {
            max_split: None,
            non_split_rounding: 20 * MIB,
            large_segment: 20 * MIB,
            divisions: [0; 4],
            collection_hundredths: 0,
        }
    }
}

impl Rules {
    /// Returns the block size for a request (spec 1.2 to 1.4). Requests here are too small to
    /// overflow.
    #[must_use]
    pub fn rounded(&self, requested: u64) -> u64 {
        let divisions = self.divisions[[2 * MIB, 4 * MIB, 8 * MIB].iter().filter(|&&bound| requested >= bound).count()];
        if divisions > 1 && requested > 512 * divisions {
            let mut power = 1;
            while power * 2 <= requested {
                power *= 2;
            }
            let steps = (0..=divisions).map(|step| power + step * (power / divisions));
            return steps.into_iter().find(|&size| size >= requested).expect("the next power of two does not overflow");
        }
        requested.max(1).div_ceil(512) * 512
    }

    /// Returns whether a block of this size belongs to the large pool (spec 1.5).
    #[must_use]
    pub fn is_large(size: u64) -> bool {
        size > MIB
    }

    /// Returns the segment size for a new block (spec 1.6).
    #[must_use]
    pub fn segment(&self, size: u64) -> u64 {
        match size {
            _ if size <= MIB => 2 * MIB,
            _ if size < 10 * MIB => self.large_segment,
            _ => size.div_ceil(2 * MIB) * 2 * MIB,
        }
    }

    /// Returns whether a free block of the right pool and stream may serve a request of `size` rounded bytes (spec
    /// 2.5). The real rule tries only the smallest block that is large enough, but if it rejects that one, it would
    /// also reject all larger ones.
    #[must_use]
    pub fn may_serve(&self, free: u64, size: u64) -> bool {
        let fits = match self.max_split {
            Some(oversize) if size >= oversize => free < size + self.non_split_rounding,
            Some(oversize) => free < oversize,
            None => true,
        };
        free >= size && fits
    }

    /// Returns the size of the block that a request gets from `whole` free bytes: a remainder that is large enough is
    /// split off (spec 3.1).
    #[must_use]
    pub fn cut(&self, whole: u64, size: u64) -> u64 {
        let rest = whole - size;
        let is_worth_splitting = if Rules::is_large(size) { !self.is_oversize(size) && rest > MIB } else { rest >= 512 };
        if is_worth_splitting { size } else { whole }
    }

    /// Returns whether a block counts as oversize.
    #[must_use]
    pub fn is_oversize(&self, size: u64) -> bool {
        self.max_split.is_some_and(|oversize| size >= oversize)
    }
}

/// The device's page: its unit of memory.
const PAGE: u64 = 2 << 20;

/// An ordinary segment in its state when a request searched for a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// The address of its first byte.
    pub address: u64,
    /// Its length.
    pub size: u64,
    /// Its stream.
    pub stream: u64,
    /// Whether it belongs to the large pool.
    pub large: bool,
    /// Whether nothing in it is live or pending.
    pub is_free: bool,
    /// Whether nothing in it is live, so that it is free once all events are complete.
    pub is_free_after_waiting: bool,
    /// The number of searches for which it has been free.
    pub age: u64,
}

/// A second implementation of the retry ladder: what is released, waited for and requested when no free block serves a
/// request (spec 2.4, 2.7, 2.9).
///
/// It works on lists of segments and their sums. The state of the heap before the request determines everything that
/// must happen, rung by rung.
///
/// A request on the ladder, and the state from which it starts.
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
    /// The number of pages that the device can still supply; negative if others have taken memory
    /// that is held here.
    pub room_pages: i64,
    /// All segments.
    pub segments: Vec<Candidate>,
}

/// The actions that must happen.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Climb {
    /// The start addresses of the released segments.
    pub given_back: BTreeSet<u64>,
    /// The number of times that the device is asked for memory.
    pub asked: usize,
    /// Whether the request waits for all events, which counts as a retry.
    pub waited: bool,
    /// Whether the request gets a new segment in the end.
    pub served: bool,
}

impl Ladder {
    /// Climbs the ladder, and returns what must happen.
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

    /// The limit is checked before the device is asked: a request beyond it does not reach the
    /// device.
    fn asks(&self, climb: &mut Climb) -> bool {
        let wanted = self.rules.segment(self.size);
        if self.limit.is_some_and(|limit| self.reserved() + wanted > limit) {
            return false;
        }
        climb.asked += 1;
        climb.served = wanted.div_ceil(PAGE) as i64 <= self.room_pages;
        climb.served
    }

    /// Returns the free large segments to collect. Each round takes those that are at least as old as the average of
    /// the remaining ones, until enough is collected or none is left (spec 2.7).
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

    /// Returns free oversize segments of the request's own stream and pool: the smallest one that is large enough or,
    /// if none is, the largest ones until their sum is large enough. Also returns whether the sum is large enough (spec
    /// 2.9).
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
