//! What a device reports about its memory (cudaMemGetInfo): never more than there is, and less by what others hold.

use parkade::device::DeviceBackend;

use crate::backend::{AnyBackend, AnyDevice, TestDevice};
use crate::checks::contract::probe::{ends_empty, ensure, free_bytes, open, pages};
use crate::suite::{Effort, Entry, Evidence, Group, Trouble, Verdict};

/// The entries of these rows.
pub(super) fn entries() -> Vec<Entry> {
    vec![
        Entry::new(Group::Contract, "info/never-more-than-there-is", "free plus held memory never exceeds the total", within),
        Entry::new(Group::Contract, "info/others-show", "memory that others hold does not count as free", others),
    ]
}

/// Sizes of the allocations, in pages.
const SIZES: [u64; 4] = [1, 10, 128, 512];

fn within(backend: &AnyBackend, _: &Effort) -> Verdict {
    let facts = backend.facts();
    let mut device = open(backend, None)?;
    let before = free_bytes(&mut device)?;
    let total = device.memory_info()?.total;
    let (mut ranges, mut memory, mut held) = (Vec::new(), Vec::new(), 0);
    let look = |device: &mut AnyDevice, held: u64, what: &str| {
        let info = device.memory_info()?;
        ensure(info.total == total, || format!("{what}: the total became {}", info.total))?;
        let sum = info.free.get() + held;
        ensure(sum <= total.get() && info.free.get() <= before, || format!("{what}: {info:?} with {held} bytes held"))?;
        ensure(before - info.free.get() == held, || format!("{what}: {before} bytes free became {info:?}, {held} are held"))
    };
    look(&mut device, held, "nothing")?;
    for size in SIZES.map(|count| pages(&facts, count)) {
        ranges.push((device.malloc(size)?, size));
        held += size.get();
        look(&mut device, held, &format!("malloc of {size} bytes"))?;
        if facts.has_virtual_memory {
            memory.push((device.create(size)?, size));
            held += size.get();
            look(&mut device, held, &format!("create of {size} bytes"))?;
        }
    }
    let text = format!("{held} bytes held, as many fewer free\n");
    for (address, size) in ranges {
        device.free(address)?;
        held -= size.get();
        look(&mut device, held, &format!("free of {size} bytes"))?;
    }
    for (piece, size) in memory {
        device.release(piece).map_err(|(_, error)| Trouble::from(error))?;
        held -= size.get();
        look(&mut device, held, &format!("release of {size} bytes"))?;
    }
    ends_empty(&mut device, before)?;
    Ok(Evidence { text, measured: format!("{total} bytes in total, {before} free"), operations: 16 })
}

fn others(backend: &AnyBackend, _: &Effort) -> Verdict {
    let facts = backend.facts();
    let mut device = open(backend, None)?;
    let before = device.memory_info()?;
    let mut text = String::new();
    for size in [1, 150, 0, 512, 0].map(|count| pages(&facts, count)) {
        device.others_hold(size)?;
        let now = device.memory_info()?;
        let missing = before.free.get().saturating_sub(now.free.get());
        ensure(missing == size.get() && now.total == before.total, || {
            format!("others hold {size} bytes: {before:?} became {now:?}")
        })?;
        text += &format!("others hold {size}: {missing} less free\n");
    }
    // The others hold nothing now.
    ends_empty(&mut device, before.free.get())?;
    Ok(Evidence { text, operations: 5, ..Evidence::default() })
}
