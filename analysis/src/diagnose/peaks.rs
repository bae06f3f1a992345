//! The peaks of a run, and the moment to look at where nothing failed.

/// The most bytes of a kind at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Peak {
    /// The bytes.
    pub bytes: u64,
    /// The first entry after which there were so many; `None` if there were before the first entry, or without a trace.
    pub entry: Option<usize>,
}

/// The peaks of a run, seen after every operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Peaks {
    /// Of allocated bytes.
    pub allocated: Peak,
    /// Of reserved bytes.
    pub reserved: Peak,
    /// Of allocated bytes while reserved bytes were at their peak.
    pub allocated_at_reserved: Peak,
    /// What was reserved when allocated bytes reached their peak.
    pub reserved_at_allocated_bytes: u64,
}

impl Peaks {
    /// Adds the state after so many entries.
    pub(super) fn see(&mut self, entries: usize, allocated_bytes: u64, reserved_bytes: u64) {
        let entry = entries.checked_sub(1);
        let (allocated, reserved) = (Peak { bytes: allocated_bytes, entry }, Peak { bytes: reserved_bytes, entry });
        if reserved.bytes > self.reserved.bytes {
            (self.reserved, self.allocated_at_reserved) = (reserved, allocated);
        } else if reserved.bytes == self.reserved.bytes && allocated.bytes > self.allocated_at_reserved.bytes {
            self.allocated_at_reserved = allocated;
        }
        if allocated.bytes > self.allocated.bytes {
            (self.allocated, self.reserved_at_allocated_bytes) = (allocated, reserved_bytes);
        }
    }

    /// The last entry before the moment to look at: of those at which reserved memory is at its peak, the first at which the most is
    /// allocated. What is free even then was never needed for that peak. `None` is the moment before the first entry.
    pub(super) fn moment(&self) -> Option<usize> {
        self.allocated_at_reserved.entry
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peaks(states: &[(u64, u64)]) -> Peaks {
        let mut peaks = Peaks::default();
        states.iter().enumerate().for_each(|(entries, &(allocated, reserved))| peaks.see(entries, allocated, reserved));
        peaks
    }

    #[test]
    fn a_peak_is_where_it_is_first_reached() {
        let found = peaks(&[(0, 0), (5, 10), (7, 10), (6, 20), (8, 20), (3, 20)]);
        assert_eq!((found.allocated, found.reserved.bytes), (Peak { bytes: 8, entry: Some(3) }, 20));
        assert_eq!((found.reserved.entry, found.reserved_at_allocated_bytes), (Some(2), 20));
    }

    /// The last bytes of a peak are often one small segment, taken when little is in use.
    #[test]
    fn a_peak_is_looked_at_where_the_most_of_it_is_in_use() {
        assert_eq!(peaks(&[(0, 0), (9, 18), (2, 18), (3, 20), (6, 20), (6, 20), (2, 20)]).moment(), Some(3));
        let lost_beginning = peaks(&[(4, 20), (5, 20), (9, 20), (9, 20), (11, 18)]);
        assert_eq!((lost_beginning.reserved, lost_beginning.moment()), (Peak { bytes: 20, entry: None }, Some(1)));
        assert_eq!((lost_beginning.allocated.entry, lost_beginning.reserved_at_allocated_bytes), (Some(3), 18));
        assert_eq!(peaks(&[(4, 20), (3, 20)]).moment(), None);
    }
}
