use parkade::device::ProcessMemory;
use parkade::texts::OutOfMemory;
use parkade::units::Bytes;

/// A row of `oom_messages.py`: the numbers of an error, and the real message made from them.
fn oom_row(row: &str) -> (OutOfMemory, &str) {
    let cells: Vec<&str> = row.split('\t').collect();
    let bytes = |index: usize| Bytes(cells[index].parse().unwrap());
    let processes = cells[4].split(',').filter(|process| !process.is_empty()).map(|process| {
        let (pid, used) = process.split_once('=').unwrap();
        ProcessMemory { pid: pid.parse().ok(), used: Bytes(used.parse().unwrap()) }
    });
    let report = OutOfMemory {
        segment_bytes: bytes(0),
        device: cells[1].parse().unwrap(),
        device_total: bytes(2),
        device_free: bytes(3),
        processes: processes.collect(),
        limit: (cells[5] != "-").then(|| bytes(5)),
        allocated_bytes: cells[6].parse().unwrap(),
        reserved_bytes: cells[7].parse().unwrap(),
        private_cached_bytes: bytes(8),
        hint: parkade::texts::Hint::ExpandableSegments,
        words: &parkade::texts::OomWords::PYTORCH_2_11,
        rescue: None,
    };
    (report, cells[9])
}
