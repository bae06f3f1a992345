//! Lists of processes as NVML writes them, as processes.

use super::GpuProcess;

/// What a word holds that the library has not written.
pub(super) const UNWRITTEN: u64 = 0xa5c3_96e1_5a3c_691e;
/// Words of the widest entry that any driver writes.
pub(super) const WIDEST_ENTRY: usize = 4;
/// What stands for a number of bytes that the driver does not know.
const NOT_AVAILABLE: u64 = u64::MAX;

/// A list, in words: pid, used bytes, instances of a divided device, and in some drivers one more.
pub(super) struct RawList {
    /// Room for `WIDEST_ENTRY` words an entry, `UNWRITTEN` where the library wrote nothing.
    pub(super) words: Vec<u64>,
    /// How many entries the library says that it wrote.
    pub(super) count: usize,
}

impl RawList {
    /// The pids and their bytes. A process occurs once for each instance of a divided device.
    fn entries(&self) -> impl Iterator<Item = (u32, Option<u64>)> {
        let pid = |word: u64| (word & u64::from(u32::MAX)) as u32;
        let bytes = |word| (word != NOT_AVAILABLE).then_some(word);
        self.words.chunks_exact(self.entry_words()).take(self.count).map(move |entry| (pid(entry[0]), bytes(entry[1])))
    }

    /// Words of one entry. Drivers of the series 535 write wider entries under an unchanged name, others narrower ones
    /// (nvitop's pull requests 79 and 226 collected them), so it is seen from how far the library wrote.
    fn entry_words(&self) -> usize {
        const USUAL: usize = 3;
        let written = self.words.iter().rposition(|&word| word != UNWRITTEN).map_or(0, |last| last + 1);
        match written.div_ceil(self.count.max(1)) {
            words @ 2..=WIDEST_ENTRY => words,
            _ => USUAL,
        }
    }
}

/// The processes of both lists, by pid. A process that computes and draws is in both with the same bytes.
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

/// The processes of one list, each once, with the kind of `like`. Bytes that are known in part are not known.
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

    /// A list with room for `room` entries of which these are written.
    fn list(entries: &[&[u64]], room: usize) -> RawList {
        let mut words = entries.concat();
        words.resize(room * WIDEST_ENTRY, UNWRITTEN);
        RawList { words, count: entries.len() }
    }

    fn read(list: &RawList) -> Vec<(u32, Option<u64>)> {
        merge(list, &RawList { words: Vec::new(), count: 0 }).iter().map(|process| (process.pid, process.used_bytes)).collect()
    }

    /// The half of a word after the pid is padding, which holds anything.
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
    fn a_list_that_says_too_much_is_read_as_far_as_it_goes() {
        let mut short = list(&[&[7, 100, WHOLE_DEVICE]], 1);
        short.count = 1_000_000;
        assert!(read(&short).len() <= 2);
        assert_eq!(read(&RawList { words: Vec::new(), count: 3 }), []);
    }

    #[test]
    fn bytes_that_the_driver_does_not_know_are_unknown() {
        assert_eq!(read(&list(&[&[7, NOT_AVAILABLE, WHOLE_DEVICE]], 4)), [(7, None)]);
    }

    #[test]
    fn instances_of_a_divided_device_add_up() {
        assert_eq!(read(&list(&[&[7, 100, 1], &[7, 50, 2]], 4)), [(7, Some(150))]);
        assert_eq!(read(&list(&[&[7, 100, 1], &[7, NOT_AVAILABLE, 2]], 4)), [(7, None)]);
    }

    #[test]
    fn a_process_that_computes_and_draws_is_one() {
        let merged = merge(&list(&[&[9, 100, 0], &[5, 1, 0]], 4), &list(&[&[9, 100, 0], &[2, 3, 0]], 4));
        let process = |pid, bytes, compute, graphics| GpuProcess { pid, used_bytes: Some(bytes), compute, graphics };
        assert_eq!(merged, [process(2, 3, false, true), process(5, 1, true, false), process(9, 100, true, true)]);
    }
}
