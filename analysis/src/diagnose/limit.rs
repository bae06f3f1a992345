//! What the memory limit was, as far as a recording shows: it does not contain it, but it shows what was served and what was
//! refused.

const GIB: u64 = 1 << 30;
/// How many limits are tried where none was given.
const MOST_GUESSES: usize = 8;

/// The memory that a process could reserve: a limit (`set_per_process_memory_fraction`) or what the device had for it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LimitEvidence {
    /// Served: so much was reserved, after so many entries.
    pub served: Option<(u64, usize)>,
    /// Refused: so much would have been reserved, had the request at this entry been served without giving anything back.
    pub refused: Option<(u64, usize)>,
    /// The free memory of the device at the out-of-memory point, if there was one, and what was tried to take of it.
    pub device_free_bytes: Option<u64>,
    /// What was tried to take of it.
    pub tried_bytes: Option<u64>,
}

/// What is known of the memory that could be reserved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// The caller said so.
    Given {
        /// The most that could be reserved.
        bytes: u64,
    },
    /// The device was full: it had less free than was tried. So much could be reserved then.
    DeviceFull {
        /// What was reserved and what the device still had free.
        bytes: u64,
    },
    /// Between what was served and what was refused.
    Between {
        /// At least so much, for it was reserved.
        at_least_bytes: u64,
        /// Less than that, for it was refused.
        below_bytes: u64,
    },
    /// Less was refused than was reserved at another time, so it was no fixed limit: others used the device too.
    NotFixed {
        /// What was reserved.
        reserved_bytes: u64,
        /// What was refused.
        refused_bytes: u64,
    },
    /// Nothing was refused: at least what was reserved.
    NeverReached {
        /// The most that was reserved.
        at_least_bytes: u64,
    },
}

/// What in the file cannot be under a limit that the caller said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contradiction {
    /// More was reserved.
    Reserved {
        /// So much.
        bytes: u64,
        /// After so many entries.
        entries: usize,
    },
    /// A request was refused that would have stayed within it.
    Refused {
        /// So much would have been reserved.
        bytes: u64,
        /// The request's entry.
        entry: usize,
    },
}

impl LimitEvidence {
    /// So much is reserved after so many entries.
    pub(super) fn serve(&mut self, reserved_bytes: u64, entries: usize) {
        if self.served.is_none_or(|(most, _)| reserved_bytes > most) {
            self.served = Some((reserved_bytes, entries));
        }
    }

    /// A request was refused that would have made so much reserved.
    pub(super) fn refuse(&mut self, wanted_bytes: u64, entry: usize) {
        if self.refused.is_none_or(|(least, _)| wanted_bytes < least) {
            self.refused = Some((wanted_bytes, entry));
        }
    }

    /// The whole gibibytes that the limit may be, at most [`MOST_GUESSES`]: none unless something was refused.
    pub(super) fn whole_gibibytes(&self) -> impl Iterator<Item = u64> {
        let least = self.served.map_or(0, |(bytes, _)| bytes);
        let below = self.refused.map_or(0, |(bytes, _)| bytes);
        (least.div_ceil(GIB)..below.div_ceil(GIB)).take(MOST_GUESSES).map(|gibibytes| gibibytes.saturating_mul(GIB))
    }

    /// What contradicts a limit of `limit_bytes`, if anything does.
    #[must_use]
    pub fn contradiction(&self, limit_bytes: u64) -> Option<Contradiction> {
        let reserved = self.served.filter(|&(bytes, _)| bytes > limit_bytes);
        let refused = self.refused.filter(|&(bytes, _)| bytes <= limit_bytes);
        let reserved = reserved.map(|(bytes, entries)| Contradiction::Reserved { bytes, entries });
        reserved.or_else(|| refused.map(|(bytes, entry)| Contradiction::Refused { bytes, entry }))
    }

    /// What follows from it. `given_bytes` is what the caller said, `reserved_bytes` what was reserved at the out-of-memory
    /// point.
    #[must_use]
    pub fn conclude(&self, given_bytes: Option<u64>, reserved_bytes: u64) -> Limit {
        if let Some(bytes) = given_bytes {
            return Limit::Given { bytes };
        }
        if let (Some(free), Some(tried)) = (self.device_free_bytes, self.tried_bytes)
            && free < tried
        {
            return Limit::DeviceFull { bytes: reserved_bytes.saturating_add(free) };
        }
        let at_least_bytes = self.served.map_or(0, |(bytes, _)| bytes);
        match self.refused {
            None => Limit::NeverReached { at_least_bytes },
            Some((below_bytes, _)) if at_least_bytes < below_bytes => Limit::Between { at_least_bytes, below_bytes },
            Some((refused_bytes, _)) => Limit::NotFixed { reserved_bytes: at_least_bytes, refused_bytes },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_served_and_refused_gives_an_interval() {
        let mut evidence = LimitEvidence::default();
        assert_eq!(evidence.conclude(None, 0), Limit::NeverReached { at_least_bytes: 0 });
        for (bytes, entries) in [(10, 1), (30, 2), (20, 3)] {
            evidence.serve(bytes, entries);
        }
        assert_eq!(evidence.conclude(None, 20), Limit::NeverReached { at_least_bytes: 30 });
        for (bytes, entry) in [(50, 7), (40, 8), (45, 9)] {
            evidence.refuse(bytes, entry);
        }
        assert_eq!((evidence.served, evidence.refused), (Some((30, 2)), Some((40, 8))));
        assert_eq!(evidence.conclude(None, 20), Limit::Between { at_least_bytes: 30, below_bytes: 40 });
        assert_eq!(evidence.conclude(Some(35), 20), Limit::Given { bytes: 35 });
        evidence.refuse(30, 11);
        assert_eq!(evidence.conclude(None, 20), Limit::NotFixed { reserved_bytes: 30, refused_bytes: 30 });
    }

    #[test]
    fn a_limit_below_what_was_served_or_not_below_what_was_refused_is_contradicted() {
        let evidence = LimitEvidence { served: Some((30, 2)), refused: Some((40, 8)), ..LimitEvidence::default() };
        assert_eq!(evidence.contradiction(29), Some(Contradiction::Reserved { bytes: 30, entries: 2 }));
        assert_eq!((evidence.contradiction(30), evidence.contradiction(39)), (None, None));
        assert_eq!(evidence.contradiction(40), Some(Contradiction::Refused { bytes: 40, entry: 8 }));
        assert_eq!(LimitEvidence::default().contradiction(0), None);
    }

    #[test]
    fn whole_gibibytes_between_served_and_refused_are_tried() {
        let tried = |served: u64, refused: Option<u64>| {
            let refused = refused.map(|bytes| (bytes, 1));
            let evidence = LimitEvidence { served: Some((served, 0)), refused, ..LimitEvidence::default() };
            evidence.whole_gibibytes().map(|bytes| bytes / GIB).collect::<Vec<_>>()
        };
        assert_eq!(tried(15 * GIB + 1, Some(17 * GIB + 1)), [16, 17]);
        assert_eq!(tried(15 * GIB, Some(17 * GIB)), [15, 16]);
        assert!(tried(15 * GIB + 1, Some(16 * GIB)).is_empty() && tried(15 * GIB, None).is_empty());
        assert_eq!(tried(0, Some(u64::MAX)).len(), MOST_GUESSES);
    }

    #[test]
    fn a_device_with_less_free_than_was_tried_was_full() {
        let full = LimitEvidence { device_free_bytes: Some(9), tried_bytes: Some(10), ..LimitEvidence::default() };
        assert_eq!(full.conclude(None, 100), Limit::DeviceFull { bytes: 109 });
        let limited = LimitEvidence { device_free_bytes: Some(10), ..full };
        assert_eq!(limited.conclude(None, 100), Limit::NeverReached { at_least_bytes: 0 });
    }
}
