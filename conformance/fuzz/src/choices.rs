//! A generator's choices, drawn from a string of bytes.
//!
//! After the bytes run out, every choice is the first one, which the generators make the simplest. A shorter string of bytes
//! is therefore a simpler input, and shortening it minimises failures.

use arbitrary::Unstructured;

/// A source of choices.
pub(crate) struct Choices<'b>(Unstructured<'b>);

impl<'b> Choices<'b> {
    /// Creates choices from these bytes.
    #[must_use]
    pub(crate) fn new(bytes: &'b [u8]) -> Choices<'b> {
        Choices(Unstructured::new(bytes))
    }

    /// Returns whether no bytes are left.
    pub(crate) fn is_used_up(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns a number below `end`, which must not be 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0.int_in_range(0..=end - 1).unwrap_or(0)
    }

    /// Returns true once in `times` calls, and never after the bytes have run out.
    pub(crate) fn once_in(&mut self, times: usize) -> bool {
        self.below(times) + 1 == times
    }

    /// Returns one of these values.
    pub(crate) fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }

    /// Returns an index into a list; `None` if the list is empty.
    pub(crate) fn place(&mut self, length: usize) -> Option<usize> {
        (length > 0).then(|| self.below(length))
    }

    /// Returns a byte.
    pub(crate) fn byte(&mut self) -> u8 {
        self.0.arbitrary().unwrap_or(0)
    }

    /// Returns any number.
    pub(crate) fn number(&mut self) -> u64 {
        self.0.arbitrary().unwrap_or(0)
    }

    /// Returns a size in bytes: usually one that programs request, sometimes one at a threshold of PyTorch's rules, and
    /// rarely an absurd one.
    pub(crate) fn size(&mut self) -> u64 {
        const BORDERS: [u64; 16] = [
            1,
            511,
            512,
            513,
            (1 << 20) - 1,
            1 << 20,
            (1 << 20) + 1,
            2 << 20,
            10 << 20,
            (10 << 20) + 1,
            20 << 20,
            200 << 20,
            1 << 30,
            12 << 30,
            80 << 30,
            1 << 46,
        ];
        const ABSURD: [u64; 6] = [0, 1 << 63, u64::MAX, u64::MAX - 511, (1 << 63) - 1, 1 << 62];
        match self.below(8) {
            0..=2 => (self.number() % (4 << 20)).max(1),
            3 => 512 * (1 + self.below(64) as u64),
            4 => (1 << self.below(41)) + self.below(3) as u64,
            5 => (2 << 20) * (1 + self.below(64) as u64),
            6 => self.pick(&BORDERS),
            _ if self.once_in(4) => self.pick(&ABSURD),
            _ => self.number() >> self.below(64),
        }
    }

    /// Returns an address, usually from the range in which devices place segments.
    pub(crate) fn address(&mut self) -> u64 {
        match self.below(6) {
            0..=2 => 0x7f00_0000_0000 + ((2 << 20) * self.below(4096) as u64),
            3 => 0x7f00_0000_0000 + 512 * self.below(1 << 20) as u64,
            4 => self.pick(&[0, 512, 1 << 63, u64::MAX, u64::MAX - (2 << 20), 1 << 47]),
            _ => self.number(),
        }
    }

    /// Returns a stream's handle, usually one of a few.
    pub(crate) fn stream(&mut self) -> u64 {
        match self.below(8) {
            0..=4 => self.pick(&[0, 1, 2, 7]),
            5 => self.pick(&[u64::MAX, 1 << 63, 0x5555_0000_1000]),
            _ => self.below(5000) as u64,
        }
    }

    /// Returns a text made of some words from a vocabulary and of other characters.
    pub(crate) fn words(&mut self, vocabulary: &[&str], most: usize) -> String {
        let mut text = String::new();
        for _ in 0..self.below(most + 1) {
            match self.below(12) {
                0..=8 => text.push_str(self.pick(vocabulary)),
                9 => text.push_str(&self.number().to_string()),
                10 => text.push(char::from(self.byte())),
                _ => text.push(char::from_u32(self.number() as u32 % 0x11_0000).unwrap_or('\u{fffd}')),
            }
        }
        text
    }

    /// Damages bytes: some are changed, removed, repeated or cut off.
    pub(crate) fn damage(&mut self, bytes: &mut Vec<u8>, most: usize) {
        for _ in 0..=self.below(most) {
            let Some(at) = self.place(bytes.len()) else { return };
            match self.below(8) {
                0 | 1 => bytes[at] = self.byte(),
                2 | 3 => bytes[at] ^= 1 << self.below(8),
                4 => drop(bytes.remove(at)),
                5 => bytes.insert(at, self.byte()),
                6 => {
                    let end = (at + 1 + self.below(64)).min(bytes.len());
                    let part = bytes[at..end].to_vec();
                    let to = self.below(bytes.len() + 1);
                    bytes.splice(to..to, part);
                }
                _ if self.once_in(4) => bytes.truncate(at),
                _ => drop(bytes.drain(at..(at + 1 + self.below(16)).min(bytes.len()))),
            }
        }
    }
}
