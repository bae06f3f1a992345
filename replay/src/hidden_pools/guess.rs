//! What was guessed about private pools, and whether that explains more than it assumes.

/// A guess may have this many private pools, however little it explains.
const FEW_POOLS: u64 = 8;
/// A guess may have this many windows, however little it explains.
const FEW_WINDOWS: u64 = 6;

/// The private pools that were guessed because the file does not name them, and the evidence for them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Guess {
    /// The segments that were assigned to private pools. An expandable segment counts as one.
    pub segments: Vec<GuessedSegment>,
    /// How many private pools they are in.
    pub pools: usize,
    /// How many windows there are: runs of requests that these segments served.
    ///
    /// A long run that memory of a private pool named in the file served too does not count.
    pub windows: u64,
    /// How many requests are in the windows.
    pub requests: u64,
    /// How many requests a single pool would have served differently and the guess explains.
    pub contradictions: u64,
    /// How many of the segments are expandable.
    pub ranges: u64,
}

impl Guess {
    /// Whether the guess explains more than it assumes.
    ///
    /// With enough pools, any allocator's trace can be explained. But real pools are used in windows of
    /// several requests, most of which a single pool would have served differently. A segment that is wrongly
    /// assigned to a private pool serves single requests all over the trace, few of which are contradictions.
    /// And no real pool is for a single request.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        // The requests that speak for a segment from before the first entry may all be lost.
        let made = self.segments.iter().filter(|segment| segment.made_at.is_some()).count() as u64;
        let early = self.segments.len() as u64 - made;
        // Two expandable segments of one stream and class prove two pools.
        let is_explained = self.windows <= self.contradictions / 2 + self.ranges * 2 + early + FEW_WINDOWS;
        let is_used = self.windows <= self.requests / 2 + FEW_WINDOWS;
        // If only the order of release speaks for the pools, each window must have at least two requests.
        let is_evident = self.contradictions > 0 || self.ranges > 0 || self.requests >= 2 * self.windows;
        // Of 215 real recordings none exceeds these limits.
        let has_few_pools = self.pools as u64 <= self.contradictions / 4 + FEW_POOLS;
        let has_few_segments = made <= self.contradictions + FEW_WINDOWS;
        has_few_pools && has_few_segments && is_explained && is_used && is_evident
    }
}

/// A segment that was assigned to a private pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GuessedSegment {
    /// Address of its first byte.
    pub address: u64,
    /// The entry that allocated it, or mapped its first page; `None` if it existed before the first entry.
    pub made_at: Option<usize>,
    /// The entry that freed it, or unmapped its last page; `None` if it existed at the end.
    pub gone_at: Option<usize>,
    /// The number of its guessed pool, from 1.
    pub pool: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guess(pools: usize, segments: usize, windows: u64, requests: u64, contradictions: u64) -> Guess {
        let segment = GuessedSegment { address: 1 << 40, made_at: Some(0), gone_at: Some(9), pool: 1 };
        Guess { segments: vec![segment; segments], pools, windows, requests, contradictions, ranges: 0 }
    }

    #[test]
    fn a_guess_explains_more_than_it_assumes() {
        assert!(guess(9, 14, 8, 48, 100).is_sound());
        assert!(!guess(9, 14, 57, 200, 100).is_sound(), "more than one window for two contradictions");
        assert!(!guess(9, 14, 40, 60, 100).is_sound(), "windows of one request");
        assert!(!guess(34, 40, 8, 48, 100).is_sound(), "more than one pool for four contradictions");
        assert!(!guess(9, 107, 8, 48, 100).is_sound(), "more than one segment for each contradiction");
        assert!(!guess(1, 3, 4, 7, 0).is_sound() && guess(1, 3, 4, 8, 0).is_sound(), "only the order of release speaks for it");
    }
}
