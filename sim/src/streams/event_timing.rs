//! When the completion of work becomes visible to the host.
//!
//! An allocator polls events at its own pace, and what is tested about it must hold whenever they complete.
//! So the same program is run under several timings.

/// When an event is seen complete.
///
/// Under every timing a complete event stays complete until it is recorded again, streams are first in, first
/// out, and waits and the `complete` methods of [`SimDevice`](crate::SimDevice) complete what they name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum EventTiming {
    /// Complete when the simulated clock has reached the end of the work before it.
    #[default]
    Clock,
    /// Work takes no time: every event is complete at once, as with the fake driver's `FAKE_EVENTS_AUTO=1`.
    Eager,
    /// Nothing completes until it is waited for or completed explicitly, as with the fake driver by default.
    Lazy,
    /// Like `Clock`, but a query may miss completions for a while. Each stream has a rate drawn from the
    /// seed, and each query makes none, one or several of the oldest finished events visible.
    Seeded(u64),
}

/// The pseudo-random draws of one stream under [`EventTiming::Seeded`].
#[derive(Clone, Debug)]
pub(super) struct Draws {
    state: u64,
    /// Chance of success in 256ths, from 32 to 224: streams are slow or fast, but none is stuck.
    rate: u64,
}

impl Draws {
    /// The draws of one stream. They depend on the seed and the stream only, not on other streams.
    pub(super) fn new(seed: u64, stream: u64) -> Self {
        let mut state = seed ^ split_mix(stream.wrapping_add(1));
        state = split_mix(state);
        Draws { state, rate: 32 + state % 193 }
    }

    /// Makes one draw.
    pub(super) fn succeeds(&mut self) -> bool {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        split_mix(self.state) % 256 < self.rate
    }
}

/// The output function of SplitMix64 (Steele, Lea and Flood, 2014).
fn split_mix(state: u64) -> u64 {
    let mut z = state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_repeat_and_differ_by_seed_and_stream() {
        let draw = |seed, stream| {
            let mut draws = Draws::new(seed, stream);
            (0..64).map(|_| draws.succeeds()).collect::<Vec<_>>()
        };
        assert_eq!(draw(1, 0), draw(1, 0));
        assert_ne!(draw(1, 0), draw(2, 0));
        assert_ne!(draw(1, 0), draw(1, 0x1000));
    }

    #[test]
    fn every_stream_succeeds_and_fails_sometimes() {
        for seed in 0..100 {
            let mut draws = Draws::new(seed, seed * 0x1000);
            let hits = (0..1000).filter(|_| draws.succeeds()).count();
            assert!((50..950).contains(&hits), "seed {seed}: {hits} of 1000");
        }
    }
}
