//! What was guessed about private pools, and whether that explains more than it takes for granted.

/// Private pools that a guess may have, whatever it explains.
const FEW_POOLS: u64 = 8;
/// Windows of one request that a guess may have, whatever it explains.
const FEW_WINDOWS: u64 = 6;

/// How many private pools were guessed that the file does not name, of which segments, and how well that is founded.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Guess {
    /// Segments, and ranges of expandable memory, of which the file does not name the pool: those taken to be of private pools.
    pub segments: Vec<GuessedSegment>,
    /// The private pools that they are of.
    pub pools: usize,
    /// How often the requests changed over from the default pool, or from one that the file names, to these. Not counted where private
    /// memory that the file names served too, in a window of some length.
    pub windows: u64,
    /// Requests until they changed back, together.
    pub requests: u64,
    /// Requests that a single pool would have served otherwise, and that the guess explains.
    pub contradictions: u64,
    /// How many of the segments are ranges of expandable memory.
    pub ranges: u64,
}

impl Guess {
    /// Whether it explains more than it takes for granted. Enough pools would explain any allocator's trace. But real ones are used in
    /// windows, a few requests in a row that one pool would mostly have served otherwise; a segment taken wrongly for a private one
    /// serves single requests all over the trace, of which few are contradictions. And no pool is for a single request.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        // Two ranges of a kind are two pools, whatever else.
        let is_explained = self.windows <= self.contradictions / 2 + self.ranges * 2 + FEW_WINDOWS;
        let is_used = self.windows <= self.requests / 2 + FEW_WINDOWS;
        // Where only an order of release speaks for them, no pool is for a single request.
        let is_evident = self.contradictions > 0 || self.ranges > 0 || self.requests >= 2 * self.windows;
        // Of 215 real recordings none has more than a pool for each fourth of what it explains, and these few, nor more segments than this.
        let has_few_pools = self.pools as u64 <= self.contradictions / 4 + FEW_POOLS;
        let has_few_segments = self.segments.len() as u64 <= self.contradictions + FEW_WINDOWS;
        has_few_pools && has_few_segments && is_explained && is_used && is_evident
    }
}

/// A segment, or a range of expandable memory, that was taken to be of a private pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GuessedSegment {
    /// Its first byte.
    pub address: u64,
    /// The entry that made it; `None` if it was there before the first.
    pub made_at: Option<usize>,
    /// The entry by which the last of it went back.
    pub gone_at: Option<usize>,
    /// Which of the guessed pools, from 1.
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
    fn a_guess_explains_more_than_it_takes_for_granted() {
        assert!(guess(9, 14, 8, 48, 100).is_sound());
        assert!(!guess(9, 14, 57, 200, 100).is_sound(), "a window for each second contradiction");
        assert!(!guess(9, 14, 40, 60, 100).is_sound(), "windows of one request");
        assert!(!guess(34, 40, 8, 48, 100).is_sound(), "a pool for each third contradiction");
        assert!(!guess(9, 107, 8, 48, 100).is_sound(), "a segment for each contradiction");
        assert!(!guess(1, 3, 4, 7, 0).is_sound() && guess(1, 3, 4, 8, 0).is_sound(), "only an order of release speaks for it");
    }
}
