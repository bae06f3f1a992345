//! The history law: the trace that the allocator gives its observer is consistent, entry by entry.

use parkade::trace::{TraceAction, TraceEntry};

use crate::law::{Broken, Law, ensure};

/// The state implied by the entries so far, as lists of (start, size).
#[derive(Clone, Default, Debug)]
pub(super) struct History {
    segments: Vec<(u64, u64)>,
    /// The mapped runs of expandable segments.
    mapped: Vec<(u64, u64)>,
    live: Vec<(u64, u64)>,
    leaving: Vec<(u64, u64)>,
}

fn take(list: &mut Vec<(u64, u64)>, entry: &TraceEntry) -> Result<(), Broken> {
    let place = list.iter().position(|&known| known == (entry.address, entry.size));
    let place = place.ok_or_else(|| {
        Broken::new(Law::History, format!("{entry:?} refers to memory that does not exist; this memory exists: {list:x?}"))
    })?;
    list.swap_remove(place);
    Ok(())
}

fn touches(list: &[(u64, u64)], start: u64, size: u64) -> bool {
    list.iter().any(|&(other, bytes)| start < other + bytes && other < start + size)
}

impl History {
    /// Applies a mapping of addresses: a new run, joined with adjacent runs.
    fn map(&mut self, entry: &TraceEntry) -> Result<(), Broken> {
        let (mut start, mut end) = (entry.address, entry.address + entry.size);
        let taken = touches(&self.segments, start, entry.size) || touches(&self.mapped, start, entry.size);
        ensure(Law::History, !taken, || format!("{entry:?} overlaps other memory"))?;
        self.mapped.retain(|&(other, bytes)| {
            let beside = other + bytes == start || other == end;
            if beside {
                (start, end) = (start.min(other), end.max(other + bytes));
            }
            !beside
        });
        self.mapped.push((start, end - start));
        Ok(())
    }

    /// Applies an unmapping of addresses; nothing there may be in use.
    fn unmap(&mut self, entry: &TraceEntry) -> Result<(), Broken> {
        let (start, size) = (entry.address, entry.size);
        let in_use = touches(&self.live, start, size) || touches(&self.leaving, start, size);
        ensure(Law::History, !in_use, || format!("{entry:?} covers memory that is in use"))?;
        let place = self.mapped.iter().position(|&(other, bytes)| other <= start && start + size <= other + bytes);
        let Some((other, bytes)) = place.map(|place| self.mapped.swap_remove(place)) else {
            return ensure(Law::History, false, || format!("{entry:?} covers addresses that are not mapped"));
        };
        let rest = [(other, start - other), (start + size, other + bytes - start - size)];
        self.mapped.extend(rest.into_iter().filter(|&(_, bytes)| bytes > 0));
        Ok(())
    }

    /// Applies one entry.
    ///
    /// # Errors
    /// If the entry is impossible: memory is handed out twice or outside every segment, a segment is released while in
    /// use, or something is released that does not exist.
    pub(super) fn follow(&mut self, entry: &TraceEntry) -> Result<(), Broken> {
        let &TraceEntry { action, address, size, .. } = entry;
        match action {
            TraceAction::SegmentAlloc => {
                ensure(Law::History, !touches(&self.segments, address, size), || format!("{entry:?} overlaps another segment"))?;
                self.segments.push((address, size));
            }
            TraceAction::SegmentFree => {
                take(&mut self.segments, entry)?;
                let in_use = touches(&self.live, address, size) || touches(&self.leaving, address, size);
                ensure(Law::History, !in_use, || format!("{entry:?} covers memory that is in use"))?;
            }
            TraceAction::SegmentMap => self.map(entry)?,
            TraceAction::SegmentUnmap => self.unmap(entry)?,
            TraceAction::Alloc => {
                let holds = |&(start, bytes): &(u64, u64)| start <= address && address + size <= start + bytes;
                let inside = self.segments.iter().any(holds) || self.mapped.iter().any(holds);
                ensure(Law::History, inside, || format!("{entry:?} is outside every segment"))?;
                let in_use = touches(&self.live, address, size) || touches(&self.leaving, address, size);
                ensure(Law::History, !in_use, || format!("{entry:?} covers memory that is in use"))?;
                self.live.push((address, size));
            }
            TraceAction::FreeRequested => {
                take(&mut self.live, entry)?;
                self.leaving.push((address, size));
            }
            TraceAction::FreeCompleted => take(&mut self.leaving, entry)?,
            TraceAction::Oom | TraceAction::Snapshot => {}
        }
        Ok(())
    }

    /// Returns whether nothing is held.
    pub(super) fn is_empty(&self) -> bool {
        self.segments.is_empty() && self.live.is_empty() && self.leaving.is_empty()
    }
}
