//! What the memory limit was. A recording does not state it, but shows which requests were served and which were refused.
//!
//! A limit here is all that the process could reserve: its memory limit (`set_per_process_memory_fraction`) or what the device had.

/// What a recording shows about the limit.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LimitEvidence {
    /// The most bytes that were reserved, and after how many entries.
    pub served: Option<(u64, usize)>,
    /// The fewest reserved bytes that were refused, and the entry of the request that needed them.
    pub refused: Option<(u64, usize)>,
    /// The device's free memory at the out-of-memory error, if there was one.
    pub device_free_bytes: Option<u64>,
    /// The bytes that the allocator tried to take of it.
    pub tried_bytes: Option<u64>,
}

/// What is known of the limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// The caller stated it.
    Given {
        /// The most that could be reserved.
        bytes: u64,
    },
    /// The device was full: it had less free than the allocator tried to take.
    DeviceFull {
        /// The reserved bytes and what the device still had free.
        bytes: u64,
    },
    /// Between what was served and what was refused.
    Between {
        /// The limit is at least this, which was reserved.
        at_least_bytes: u64,
        /// The limit is below this, which was refused.
        below_bytes: u64,
    },
    /// At one time less was refused than was reserved at another, so there was no fixed limit: others used the device too.
    NotFixed {
        /// The most bytes reserved.
        reserved_bytes: u64,
        /// The fewest bytes refused.
        refused_bytes: u64,
    },
    /// Nothing was refused.
    NeverReached {
        /// The limit is at least this, the most that was reserved.
        at_least_bytes: u64,
    },
}

/// What in a file contradicts a limit that the caller stated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contradiction {
    /// More was reserved.
    Reserved {
        /// The bytes reserved.
        bytes: u64,
        /// After how many entries.
        entries: usize,
    },
    /// A request was refused that would have stayed within the limit.
    Refused {
        /// The bytes that would have been reserved.
        bytes: u64,
        /// The request's entry.
        entry: usize,
    },
}

impl LimitEvidence {
    /// Notes that this much was reserved after so many entries.
    pub(super) fn serve(&mut self, reserved_bytes: u64, entries: usize) {
        if self.served.is_none_or(|(most, _)| reserved_bytes > most) {
            self.served = Some((reserved_bytes, entries));
        }
    }

    /// Notes that a request was refused that would have raised reserved memory to this.
    pub(super) fn refuse(&mut self, wanted_bytes: u64, entry: usize) {
        if self.refused.is_none_or(|(least, _)| wanted_bytes < least) {
            self.refused = Some((wanted_bytes, entry));
        }
    }

    /// What contradicts a limit of `limit_bytes`, if anything.
    #[must_use]
    pub fn contradiction(&self, limit_bytes: u64) -> Option<Contradiction> {
        let reserved = self.served.filter(|&(bytes, _)| bytes > limit_bytes);
        let refused = self.refused.filter(|&(bytes, _)| bytes <= limit_bytes);
        let reserved = reserved.map(|(bytes, entries)| Contradiction::Reserved { bytes, entries });
        reserved.or_else(|| refused.map(|(bytes, entry)| Contradiction::Refused { bytes, entry }))
    }

    /// What follows from the evidence. `given_bytes` is the limit that the caller stated, `reserved_bytes` what was reserved at the
    /// out-of-memory error.
    pub(super) fn conclude(&self, given_bytes: Option<u64>, reserved_bytes: u64) -> Limit {
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
    fn served_and_refused_bytes_give_an_interval() {
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
    fn a_limit_below_what_was_served_or_above_what_was_refused_is_contradicted() {
        let evidence = LimitEvidence { served: Some((30, 2)), refused: Some((40, 8)), ..LimitEvidence::default() };
        assert_eq!(evidence.contradiction(29), Some(Contradiction::Reserved { bytes: 30, entries: 2 }));
        assert_eq!((evidence.contradiction(30), evidence.contradiction(39)), (None, None));
        assert_eq!(evidence.contradiction(40), Some(Contradiction::Refused { bytes: 40, entry: 8 }));
        assert_eq!(LimitEvidence::default().contradiction(0), None);
    }

    #[test]
    fn a_device_with_less_free_than_was_tried_is_full() {
        let full = LimitEvidence { device_free_bytes: Some(9), tried_bytes: Some(10), ..LimitEvidence::default() };
        assert_eq!(full.conclude(None, 100), Limit::DeviceFull { bytes: 109 });
        let limited = LimitEvidence { device_free_bytes: Some(10), ..full };
        assert_eq!(limited.conclude(None, 100), Limit::NeverReached { at_least_bytes: 0 });
    }
}
