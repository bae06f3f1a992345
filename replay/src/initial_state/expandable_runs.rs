//! The mapped runs of expandable segments, while a trace is walked backwards.
//!
//! A recording lists an expandable segment as its mapped runs of addresses, and the trace maps and unmaps parts
//! of them. Adjacent runs of one stream are one run: those of PyTorch are of one pool as well.

use std::collections::BTreeMap;

use super::early::EarlySegment;

/// Runs by address.
#[derive(Clone, Debug, Default)]
pub(crate) struct Runs {
    by_address: BTreeMap<u64, EarlySegment>,
}

impl Runs {
    /// Adds a run; false if it overlaps one that is there.
    pub(crate) fn insert(&mut self, mut run: EarlySegment) -> bool {
        let Some(end) = run.address.checked_add(run.total) else { return false };
        let before = self.by_address.range(..end).next_back().map(|(_, &before)| before);
        if before.is_some_and(|before| before.address + before.total > run.address) {
            return false;
        }
        // The pool of a run that is unmapped within the trace is guessed from its
        // size; an adjacent run is more reliable.
        let stream = run.stream;
        let same = |other: &EarlySegment| other.stream == stream;
        if let Some(before) = before.filter(|before| before.address + before.total == run.address && same(before)) {
            self.by_address.remove(&before.address);
            run = EarlySegment { total: before.total + run.total, ..before };
        }
        if let Some(&after) = self.by_address.get(&end).filter(|after| same(after)) {
            self.by_address.remove(&end);
            // The file's word on one of them counts for both.
            let known = if run.is_listed { run } else { after };
            run = EarlySegment { address: run.address, total: run.total + after.total, ..known };
        }
        self.by_address.insert(run.address, run);
        true
    }

    /// Removes memory; false if some of it is not there. It may be of several adjacent runs: some allocators hand mapped memory
    /// from one stream or pool to another, which the trace does not tell.
    pub(crate) fn remove(&mut self, address: u64, bytes: u64) -> bool {
        let Some(end) = address.checked_add(bytes).filter(|_| bytes > 0) else { return false };
        let Some((&first, _)) = self.by_address.range(..=address).next_back() else { return false };
        let touched: Vec<EarlySegment> = self.by_address.range(first..end).map(|(_, &run)| run).collect();
        let mut covered = address;
        for run in &touched {
            if run.address > covered {
                return false;
            }
            covered = run.address + run.total;
        }
        if covered < end {
            return false;
        }
        for run in touched {
            self.by_address.remove(&run.address);
            let run_end = run.address + run.total;
            if run.address < address {
                self.by_address.insert(run.address, EarlySegment { total: address - run.address, ..run });
            }
            if end < run_end {
                self.by_address.insert(end, EarlySegment { address: end, total: run_end - end, ..run });
            }
        }
        true
    }

    /// All runs, in the order of their addresses.
    pub(crate) fn into_iter(self) -> impl Iterator<Item = EarlySegment> {
        self.by_address.into_values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parkade::units::PoolId;

    fn run(address: u64, total: u64, stream: u64) -> EarlySegment {
        EarlySegment { address, total, stream, large: true, expandable: true, pool: PoolId::DEFAULT, is_listed: true }
    }

    fn of(runs: Runs) -> Vec<(u64, u64, u64)> {
        runs.into_iter().map(|run| (run.address, run.total, run.stream)).collect()
    }

    #[test]
    fn memory_of_several_adjacent_runs_is_removed_at_once() {
        let mut runs = Runs::default();
        assert!(runs.insert(run(100, 20, 1)) && runs.insert(run(120, 10, 2)) && runs.insert(run(130, 20, 1)));
        assert!(runs.remove(110, 30));
        assert_eq!(of(runs), [(100, 10, 1), (140, 10, 1)]);
    }

    #[test]
    fn nothing_is_removed_where_some_of_it_is_not_there() {
        let mut runs = Runs::default();
        assert!(runs.insert(run(100, 20, 1)) && runs.insert(run(121, 20, 2)));
        for (address, bytes) in [(110, 20), (99, 10), (130, 12), (110, 0), (u64::MAX, 2)] {
            assert!(!runs.remove(address, bytes), "{bytes} bytes at {address}");
        }
        assert_eq!(of(runs), [(100, 20, 1), (121, 20, 2)]);
    }
}
