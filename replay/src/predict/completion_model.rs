//! When other streams are done with memory, in a run that differs from the recorded one.
//!
//! The GPU does the work in the order of the frees that wait for it. A piece of work starts when the piece before is
//! done, or when the program hands it over, whichever is later. In the recorded run it is known which of the
//! two it was. In a predicted run the program and the GPU are each ahead of the recorded one, or behind,
//! because the driver is called at other places. Where nothing differs, every time is the recorded one.
//!
//! A [`Variation`] is another run of the same program: each takes a little longer or shorter.

use super::pace::Pace;

/// How another run of the same program differs from the recorded one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Variation {
    /// The program's own time, in permille of the recorded one.
    pub program_permille: u32,
    /// The GPU's time for its work.
    pub gpu_permille: u32,
    /// The driver's time.
    pub driver_permille: u32,
    /// Where work was done between the last look that did not see it and the one that did: 0 after the first.
    pub place_permille: u32,
    /// How long before a free its work began at most, in permille of its lag.
    pub reach_permille: u32,
    /// How much each of the program's times varies, in permille.
    pub noise_permille: u32,
    /// Chooses which of them are longer.
    pub seed: u64,
}

/// How much the program's own time differs between runs at most, in permille.
const PROGRAM: u32 = 100;
/// How much the GPU's time does.
const GPU: u32 = 50;
/// How much the driver's time does.
const DRIVER: u32 = 300;
/// How much one time of the program's does.
const NOISE: u32 = 300;

/// Steps of a sequence that fills five dimensions evenly, whatever its length: powers of the inverse of the root of
/// x^6 = x + 1, in parts of 2^32.
const STEPS: [u32; 5] = [3_679_390_609, 3_152_041_523, 2_700_274_805, 2_313_257_605, 1_981_709_430];

impl Variation {
    /// The recorded run itself.
    pub const NONE: Variation = Variation {
        program_permille: 1000,
        gpu_permille: 1000,
        driver_permille: 1000,
        place_permille: 500,
        reach_permille: 0,
        noise_permille: 0,
        seed: 0,
    };

    /// A likely run, by its number from 1. The same number always gives the same.
    #[must_use]
    pub fn likely(number: u32) -> Variation {
        let part = |dimension: usize, width: u32| {
            let place = (u64::from(number) * u64::from(STEPS[dimension]) + (1 << 31)) & u64::from(u32::MAX);
            ((place * u64::from(width)) >> 32) as u32
        };
        Variation {
            program_permille: 1000 - PROGRAM + part(0, 2 * PROGRAM),
            gpu_permille: 1000 - GPU + part(1, 2 * GPU),
            driver_permille: 1000 - DRIVER + part(2, 2 * DRIVER),
            place_permille: part(3, 1000),
            reach_permille: part(4, 1000),
            noise_permille: NOISE,
            seed: u64::from(number),
        }
    }
}

/// A predicted run's clock, and how far its GPU is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    variation: Variation,
    /// How much later the GPU is than in the recorded run, in nanoseconds.
    gpu_shift: i64,
    /// When the GPU was last done with something, in the recorded run.
    done_ns: i64,
}

impl Clock {
    pub(crate) fn new(variation: Variation) -> Clock {
        Clock { variation, gpu_shift: 0, done_ns: 0 }
    }

    /// When an operation begins, if the one before ended now.
    pub(crate) fn begins(&mut self, pace: &Pace, operation: usize, now_ns: u64) -> u64 {
        let Some(step) = pace.steps.get(operation) else { return now_ns };
        if step.has_waited {
            let reached = (step.began_ns as i64 + self.gpu_shift).max(0) as u64;
            self.done_ns = self.done_ns.max(step.began_ns as i64);
            return reached.max(now_ns + (pace.wait_ns / 10).min(step.own_ns));
        }
        let noise = self.noise(operation);
        now_ns + step.own_ns * u64::from(self.variation.program_permille) / 1000 * noise / 1000
    }

    /// When the work that the memory freed by an operation waits for is done.
    pub(crate) fn completes(&mut self, pace: &Pace, operation: usize, now_ns: u64) -> u64 {
        let Some(step) = pace.steps.get(operation) else { return now_ns };
        let within = step.done_before_ns - 1 - step.done_after_ns;
        let place = u64::from(self.variation.place_permille);
        let done = (step.done_after_ns + (u128::from(within) * u128::from(place) / 1000) as u64) as i64;
        let freed = (step.began_ns + step.allocator_ns) as i64;
        let lag = done - freed;
        // Before the free the GPU had nothing to do for so long, or had still so much to do.
        let idle = (freed - self.done_ns - lag * i64::from(self.variation.reach_permille) / 1000).max(0);
        let queued = (self.done_ns - freed).max(0);
        let worked = (done - self.done_ns.max(freed)).max(0);
        let program_shift = now_ns as i64 - freed;
        self.gpu_shift = (program_shift - queued).max(self.gpu_shift - idle);
        self.gpu_shift += worked * (i64::from(self.variation.gpu_permille) - 1000) / 1000;
        self.done_ns = self.done_ns.max(done);
        (done + self.gpu_shift).max(now_ns as i64) as u64
    }

    /// When an operation ends that began then and waited until now; `driver_ns` is what the driver
    /// took, unless it did what it did in the recorded run.
    pub(crate) fn ends(&mut self, pace: &Pace, operation: usize, began_ns: u64, now_ns: u64, driver_ns: Option<u64>) -> u64 {
        let Some(step) = pace.steps.get(operation) else { return now_ns };
        self.done_ns = self.done_ns.max(step.drained_ns.map_or(0, |ns| ns as i64));
        match driver_ns {
            None => now_ns.max(began_ns + step.allocator_ns),
            Some(spent) => now_ns + spent * pace.driver_permille / 1000 * u64::from(self.variation.driver_permille) / 1000,
        }
    }

    /// A number around 1000 that the operation and the seed decide.
    fn noise(&self, operation: usize) -> u64 {
        let width = u64::from(self.variation.noise_permille);
        if width == 0 {
            return 1000;
        }
        let mut state = self.variation.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(operation as u64);
        state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        state ^= state >> 31;
        1000 - width.min(1000) + state % (2 * width.min(1000) + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::super::pace::Step;
    use super::*;

    /// The program frees at 10, 20 and 30 us memory whose work is done at 25, 40 and 41 us.
    fn pace() -> Pace {
        let step = |began_ns, done_ns| Step {
            own_ns: 10_000,
            began_ns,
            done_after_ns: done_ns,
            done_before_ns: done_ns + 1,
            ..Step::default()
        };
        Pace {
            steps: vec![step(10_000, 25_000), step(20_000, 40_000), step(30_000, 41_000)],
            wait_ns: 100_000,
            driver_permille: 1000,
            held_up_ns: 0,
        }
    }

    /// When the work is done if the driver takes so long in the first operation.
    fn done(pace: &Pace, variation: Variation, driver_ns: Option<u64>) -> Vec<u64> {
        let mut clock = Clock::new(variation);
        let mut now_ns = 0;
        let mut one = |operation: usize| {
            let began_ns = clock.begins(pace, operation, now_ns);
            let done = clock.completes(pace, operation, began_ns);
            now_ns = clock.ends(pace, operation, began_ns, began_ns, driver_ns.filter(|_| operation == 0));
            done
        };
        (0..pace.steps.len()).map(&mut one).collect()
    }

    #[test]
    fn where_nothing_differs_work_is_done_when_it_was() {
        assert_eq!(done(&pace(), Variation::NONE, None), [25_000, 40_000, 41_000]);
    }

    #[test]
    fn a_program_that_is_late_catches_up_with_a_gpu_that_has_work() {
        assert_eq!(done(&pace(), Variation::NONE, Some(4_000)), [25_000, 40_000, 41_000], "the GPU was 5 us behind");
        assert_eq!(done(&pace(), Variation::NONE, Some(8_000)), [25_000, 43_000, 44_000]);
    }

    #[test]
    fn a_slower_gpu_is_later_with_each_piece_of_work() {
        let slower = Variation { gpu_permille: 1100, ..Variation::NONE };
        assert_eq!(done(&pace(), slower, None), [26_500, 43_000, 44_100]);
    }

    #[test]
    fn likely_runs_stay_near_the_recorded_one_and_repeat() {
        for number in 1..100 {
            let run = Variation::likely(number);
            assert!((900..1100).contains(&run.program_permille) && (950..1050).contains(&run.gpu_permille), "{run:?}");
            assert!((700..1300).contains(&run.driver_permille) && run.place_permille < 1000, "{run:?}");
            assert_eq!(run, Variation::likely(number));
        }
        assert_ne!(Variation::likely(1), Variation::likely(2));
    }
}
