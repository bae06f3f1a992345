//! From the raw process lists that NVML writes to processes.

use super::types::GpuProcess;

/// The value of a word that the library has not written.
pub(super) const UNWRITTEN: u64 = 0xa5c3_96e1_5a3c_691e;
/// Words in the widest entry that a driver is known to write.
pub(super) const WIDEST_ENTRY: usize = 4;
/// Stands for a number of bytes that the driver does not know.
const NOT_AVAILABLE: u64 = u64::MAX;

/// A list in words: pid, used bytes, MIG instance ids, and one more word from some drivers.
pub(super) struct RawList {
    /// `WIDEST_ENTRY` words for each entry; `UNWRITTEN` where the library wrote nothing.
    pub(super) words: Vec<u64>,
    /// How many entries the library says it wrote.
    pub(super) count: usize,
}

impl RawList {
    /// Pids and bytes. A process occurs once for each MIG instance that it uses.
    fn entries(&self) -> impl Iterator<Item = (u32, Option<u64>)> {
        let pid = |word: u64| (word & u64::from(u32::MAX)) as u32;
        let bytes = |word| (word != NOT_AVAILABLE).then_some(word);
        self.words.chunks_exact(self.entry_words()).take(self.count).map(move |entry| (pid(entry[0]), bytes(entry[1])))
    }

    /// Words in one entry. Some drivers of series 535 write wider entries under the same function name,
    /// others narrower ones (collected in nvitop's pull requests 79 and 226), so the width is read off how
    /// far the library wrote.
    fn entry_words(&self) -> usize {
        const USUAL: usize = 3;
        let written = self.words.iter().rposition(|&word| word != UNWRITTEN).map_or(0, |last| last + 1);
        match written.div_ceil(self.count.max(1)) {
            words @ 2..=WIDEST_ENTRY => words,
            _ => USUAL,
        }
    }
}

/// The processes of both lists, by pid. A process that does compute and graphics is in both, with the same
/// bytes.
pub(super) fn merge(compute: &RawList, graphics: &RawList) -> Vec<GpuProcess> {
    let mut all = summed(compute, GpuProcess { pid: 0, used_bytes: None, compute: true, graphics: false });
    for drawing in summed(graphics, GpuProcess { pid: 0, used_bytes: None, compute: false, graphics: true }) {
        match all.iter_mut().find(|process| process.pid == drawing.pid) {
            Some(process) => {
                process.graphics = true;
                process.used_bytes = process.used_bytes.max(drawing.used_bytes);
            }
            None => all.push(drawing),
        }
    }
    all.sort_by_key(|process| process.pid);
    all
}

/// The processes of one list, each once, with the flags of `like`. If the bytes are unknown in one entry, the
/// sum is unknown.
fn summed(list: &RawList, like: GpuProcess) -> Vec<GpuProcess> {
    let mut all: Vec<GpuProcess> = Vec::new();
    for (pid, used_bytes) in list.entries() {
        match all.iter_mut().find(|process| process.pid == pid) {
            Some(process) => {
                process.used_bytes = process.used_bytes.zip(used_bytes).map(|(one, other)| one.saturating_add(other));
            }
            None => all.push(GpuProcess { pid, used_bytes, ..like }),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A list with room for `room` entries, of which these are written.
    fn list(entries: &[&[u64]], room: usize) -> RawList {
        let mut words = entries.concat();
        words.resize(room * WIDEST_ENTRY, UNWRITTEN);
        RawList { words, count: entries.len() }
    }

    fn read(list: &RawList) -> Vec<(u32, Option<u64>)> {
        merge(list, &RawList { words: Vec::new(), count: 0 }).iter().map(|process| (process.pid, process.used_bytes)).collect()
    }

    /// The half word after the pid is padding and may hold anything.
    const PADDING: u64 = 0xdead_beef << 32;
    const WHOLE_DEVICE: u64 = u64::MAX;

    #[test]
    fn entries_of_every_width_are_read() {
        let expected = [(7, Some(100)), (9, Some(200))];
        for room in [2, 3, 64] {
            assert_eq!(read(&list(&[&[7 | PADDING, 100], &[9, 200]], room)), expected);
            assert_eq!(read(&list(&[&[7, 100, WHOLE_DEVICE], &[9, 200, WHOLE_DEVICE]], room)), expected);
            assert_eq!(read(&list(&[&[7, 100, WHOLE_DEVICE, 0], &[9, 200, WHOLE_DEVICE, 0]], room)), expected);
        }
        assert_eq!(read(&list(&[], 64)), []);
    }

    #[test]
    fn a_count_that_is_too_high_reads_only_what_is_there() {
        let mut short = list(&[&[7, 100, WHOLE_DEVICE]], 1);
        short.count = 1_000_000;
        assert!(read(&short).len() <= 2);
        assert_eq!(read(&RawList { words: Vec::new(), count: 3 }), []);
    }

    #[test]
    fn bytes_that_the_driver_does_not_know_are_none() {
        assert_eq!(read(&list(&[&[7, NOT_AVAILABLE, WHOLE_DEVICE]], 4)), [(7, None)]);
    }

    #[test]
    fn mig_instances_add_up() {
        assert_eq!(read(&list(&[&[7, 100, 1], &[7, 50, 2]], 4)), [(7, Some(150))]);
        assert_eq!(read(&list(&[&[7, 100, 1], &[7, NOT_AVAILABLE, 2]], 4)), [(7, None)]);
    }

    #[test]
    fn a_process_in_both_lists_is_one_process() {
        let merged = merge(&list(&[&[9, 100, 0], &[5, 1, 0]], 4), &list(&[&[9, 100, 0], &[2, 3, 0]], 4));
        let process = |pid, bytes, compute, graphics| GpuProcess { pid, used_bytes: Some(bytes), compute, graphics };
        assert_eq!(merged, [process(2, 3, false, true), process(5, 1, true, false), process(9, 100, true, true)]);
    }
}
