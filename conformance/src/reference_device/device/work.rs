//! What a program does on the device: streams, kernels, fills, copies and reads.

use parkade::units::{Bytes, DeviceAddress, StreamId};
use parkade_sim::{Access, AccessError, AccessKind, PAGE_BYTES, RaceAccess, RaceUse};

use super::{PlainDevice, Range, Span, Unit, common, joined, order};

/// Returns an access.
fn access(address: u64, bytes: u64, kind: AccessKind) -> Access {
    Access { address: DeviceAddress(address), size: Bytes(bytes), kind }
}

/// An access and the memory behind it.
struct Touched {
    access: Access,
    spans: Vec<Span>,
}

impl Touched {
    fn physical(&self) -> Vec<Range> {
        self.spans.iter().map(|span| span.physical).collect()
    }
}

impl PlainDevice {
    pub(in super::super) fn create_stream(&mut self) -> u64 {
        self.streams.create()
    }

    pub(in super::super) fn destroy_stream(&mut self, stream: u64) {
        self.streams.destroy(stream, self.clock.now_ns);
    }

    pub(in super::super) fn complete(&mut self, stream: u64) {
        self.streams.complete(stream, self.clock.now_ns);
    }

    pub(in super::super) fn complete_one(&mut self, stream: u64) -> u64 {
        self.streams.complete_one(stream, self.clock.now_ns)
    }

    pub(in super::super) fn complete_all(&mut self) {
        self.streams.complete_all(self.clock.now_ns);
    }

    pub(in super::super) fn wait_for(&mut self, stream: u64) {
        let idle_ns = self.streams.idle_ns(stream);
        self.clock.pass(idle_ns.max(self.clock.now_ns) - self.clock.now_ns);
        self.has_waited_for(stream);
    }

    pub(in super::super) fn kernel(&mut self, stream: u64, ns: u64, label: &str, uses: &[Access]) -> Result<(), AccessError> {
        let touched = uses.iter().map(|&access| self.touch(access)).collect::<Result<Vec<_>, _>>()?;
        for written in touched.iter().filter(|touched| touched.access.kind == AccessKind::Write) {
            self.journal.lose(written.physical());
        }
        self.launch(stream, ns, label, touched);
        Ok(())
    }

    pub(in super::super) fn fill(&mut self, address: u64, bytes: u64, word: u32, stream: u64) -> Result<(), AccessError> {
        if !address.is_multiple_of(4) || !bytes.is_multiple_of(4) {
            return Err(AccessError::NotWords);
        }
        let written = self.touch(access(address, bytes, AccessKind::Write))?;
        self.journal.fill(written.physical(), word);
        self.launch(stream, 0, "fill", vec![written]);
        Ok(())
    }

    pub(in super::super) fn copy(&mut self, from: u64, to: u64, bytes: u64, stream: u64) -> Result<(), AccessError> {
        let read = self.touch(access(from, bytes, AccessKind::Read))?;
        let written = self.touch(access(to, bytes, AccessKind::Write))?;
        self.journal.copy(self.journal.now(), read.physical(), written.physical());
        self.launch(stream, 0, "copy", vec![read, written]);
        Ok(())
    }

    /// Reads bytes on the host, which waits for stream 0 only.
    pub(in super::super) fn read(&mut self, address: u64, bytes: u64) -> Result<Vec<u8>, AccessError> {
        let read = self.touch(access(address, bytes, AccessKind::Read))?;
        self.wait_for(0);
        let side = order::host_side("read", RaceUse::Read, (address, bytes), self.clock.now_ns);
        self.order.read(side, &read.spans);
        Ok(read.physical().into_iter().flat_map(|(from, to)| from..to).map(|byte| self.journal.byte(byte)).collect())
    }

    fn touch(&self, access: Access) -> Result<Touched, AccessError> {
        self.behind(access.address.get(), access.size.get()).map(|spans| Touched { access, spans })
    }

    fn launch(&mut self, stream: u64, ns: u64, label: &str, touched: Vec<Touched>) {
        let (start_ns, end_ns) = self.streams.launch(stream, ns, self.clock.now_ns);
        for Touched { access: Access { address, size, kind }, spans } in touched {
            let what = if kind == AccessKind::Read { RaceUse::Read } else { RaceUse::Written };
            let stream = Some(StreamId(stream));
            let side = RaceAccess { number: 0, label: label.to_owned().into(), stream, what, address, size, start_ns, end_ns };
            self.order.launched(side, kind, spans);
        }
    }

    /// Returns the physical bytes behind addresses.
    pub(super) fn behind(&self, address: u64, bytes: u64) -> Result<Vec<Span>, AccessError> {
        let end = address.checked_add(bytes).ok_or(AccessError::NotMapped)?;
        let (units, mut at, mut found) = (self.units(), address, Vec::new());
        while at < end {
            let unit = units.iter().find(|unit| (unit.address..unit.end()).contains(&at)).ok_or(AccessError::NotMapped)?;
            if !unit.has_access {
                return Err(AccessError::NoAccess);
            }
            found.extend(unit.spans().iter().filter_map(|span| part(span, (at, end))));
            at = unit.end().min(end);
        }
        Ok(found)
    }

    pub(in super::super) fn page_behind(&self, address: u64) -> Result<u64, AccessError> {
        let spans = self.behind(address, 1)?;
        spans.first().map(|span| span.physical.0 / PAGE_BYTES).ok_or(AccessError::NotMapped)
    }

    /// Returns the pages of the range or mapping at an address. `None` if it is one of several pieces that were created together,
    /// because it is not specified how far their mapping reaches.
    pub(in super::super) fn pages_at(&self, address: u64) -> Option<Vec<Range>> {
        let is_one_of_several = self.mappings.iter().any(|mapping| {
            let piece = &self.pieces[mapping.piece];
            piece.has_siblings && address.checked_sub(mapping.address).is_some_and(|offset| offset < piece.bytes)
        });
        if is_one_of_several {
            return None;
        }
        let units = self.units();
        let unit = units.iter().find(|unit: &&Unit| (unit.address..unit.end()).contains(&address));
        Some(unit.map_or(Vec::new(), |unit| joined(unit.pages.iter().copied())))
    }
}

/// Returns the part of a span at these addresses.
fn part(span: &Span, addresses: Range) -> Option<Span> {
    let own = (span.address, span.address + (span.physical.1 - span.physical.0));
    common(own, addresses).map(|(from, to)| {
        let start = span.physical.0 + (from - span.address);
        Span { physical: (start, start + (to - from)), address: from }
    })
}
