//! A short run of places by address, each with a free block or vacant, with the address where one was.
//!
//! Addresses, sizes and slots are separate arrays: a search for an address touches the first, a search for a
//! size the second.

/// A free block: its first byte, its size in bytes, its slot in the arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) index: u32,
}

/// Places in a row.
#[derive(Clone, Debug)]
pub(super) struct Run {
    places: usize,
    live: usize,
    addresses: [u64; Run::MOST],
    /// 0 for a vacant place, and after the last one.
    sizes: [u64; Run::MOST],
    indices: [u32; Run::MOST],
}

impl Run {
    /// The most places.
    pub(super) const MOST: usize = 32;

    /// From at most [`Run::MOST`] blocks, in order.
    pub(super) fn new(entries: impl IntoIterator<Item = Entry>) -> Run {
        let nothing = [0; Run::MOST];
        let mut run = Run { places: 0, live: 0, addresses: nothing, sizes: nothing, indices: [0; Run::MOST] };
        for entry in entries {
            run.places += 1;
            run.put(run.places - 1, entry);
        }
        run
    }

    /// How many places hold a block.
    #[inline]
    pub(super) fn live(&self) -> usize {
        self.live
    }

    /// The addresses of all places.
    #[inline]
    pub(super) fn addresses(&self) -> &[u64] {
        &self.addresses[..self.places]
    }

    #[inline]
    fn sizes(&self) -> &[u64] {
        &self.sizes[..self.places]
    }

    /// Whether the place exists and is vacant.
    #[inline]
    pub(super) fn is_vacant(&self, place: usize) -> bool {
        self.sizes().get(place) == Some(&0)
    }

    /// The blocks.
    pub(super) fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        let all = self.addresses().iter().zip(&self.sizes).zip(&self.indices);
        all.map(|((&address, &size), &index)| Entry { address, size, index }).filter(|entry| entry.size != 0)
    }

    /// The size of the largest block in bytes.
    #[inline]
    pub(super) fn largest(&self) -> u64 {
        // Over all places, used or not: a loop of fixed length is faster than a shorter one.
        let mut most = [0; 4];
        for sizes in self.sizes.as_chunks::<4>().0 {
            most = core::array::from_fn(|lane| sizes[lane].max(most[lane]));
        }
        most.into_iter().fold(0, u64::max)
    }

    /// The place of the block at an address.
    #[inline]
    pub(super) fn find(&self, address: u64) -> Option<usize> {
        let place = self.first_from(address);
        (self.addresses().get(place) == Some(&address) && self.sizes[place] != 0).then_some(place)
    }

    /// The slot of the lowest block with at least `size` bytes, which must not be 0, from the place `first` on.
    #[inline]
    pub(super) fn lowest_at_least(&self, first: usize, size: u64) -> Option<u32> {
        let place = self.sizes()[first..].iter().position(|&own| own >= size)?;
        Some(self.indices[first + place])
    }

    /// The first place whose address is at least this one, or the number of places.
    #[inline]
    pub(super) fn first_from(&self, address: u64) -> usize {
        self.addresses().partition_point(|&other| other < address)
    }

    /// The last block before a place.
    #[inline]
    pub(super) fn last_before(&self, place: usize) -> Option<Entry> {
        let place = self.sizes().iter().take(place).rposition(|&own| own != 0)?;
        Some(Entry { address: self.addresses[place], size: self.sizes[place], index: self.indices[place] })
    }

    /// Fills a vacant place.
    #[inline]
    pub(super) fn put(&mut self, place: usize, entry: Entry) {
        self.addresses[place] = entry.address;
        self.sizes[place] = entry.size;
        self.indices[place] = entry.index;
        self.live += 1;
    }

    /// Vacates a place. Returns the size of the block that was there.
    #[inline]
    pub(super) fn vacate(&mut self, place: usize) -> u64 {
        self.live -= 1;
        core::mem::take(&mut self.sizes[place])
    }

    /// Adds a block where its address belongs, in a vacant place or a new one. Returns the place; `None` if
    /// the run is full.
    pub(super) fn insert(&mut self, entry: Entry) -> Option<usize> {
        let mut place = self.first_from(entry.address);
        debug_assert!(self.find(entry.address).is_none(), "a block entered the order by address twice");
        if self.is_vacant(place) {
            self.put(place, entry);
        } else if place > 0 && self.is_vacant(place - 1) {
            place -= 1;
            self.put(place, entry);
        } else if self.places < Run::MOST {
            let later = place..self.places;
            self.addresses.copy_within(later.clone(), place + 1);
            self.sizes.copy_within(later.clone(), place + 1);
            self.indices.copy_within(later, place + 1);
            self.places += 1;
            self.put(place, entry);
        } else {
            return None;
        }
        Some(place)
    }
}
