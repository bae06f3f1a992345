//! PyTorch's size rules, written a second time from the specification in the slow and obvious way.

use parkade::units::MIB;

/// What the rules depend on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// Blocks of at least this size are oversize; `None`: none are.
    pub max_split: Option<u64>,
    /// How much larger than the request an oversize block may be, in bytes.
    pub non_split_rounding: u64,
    /// Size of the segments made for medium requests, in bytes.
    pub large_segment: u64,
    /// Steps between two powers of two, for requests below 2, 4 and 8 MiB and for larger ones; 0 disables this rounding.
    pub divisions: [u64; 4],
    /// The part of the limit beyond which unused segments are given back, in hundredths; 0 means never.
    pub collection_hundredths: u64,
}

/// A settings string and what it changes. Every string resets the rules it does not name, except the size of large segments,
/// which keeps its value and is what the rounding slack is reset to (spec 8.3).
#[derive(Clone, Copy, Debug)]
pub struct NamedSettings {
    /// The string.
    pub text: &'static str,
    max_split_mib: Option<u64>,
    non_split_rounding_mib: Option<u64>,
    large_segment_mib: Option<u64>,
    divisions: [u64; 4],
    collection_hundredths: u64,
}

/// The settings under which the laws are checked.
pub const SETTINGS: [NamedSettings; 9] = [
    NamedSettings::plain(""),
    NamedSettings { max_split_mib: Some(32), ..NamedSettings::plain("max_split_size_mb:32") },
    NamedSettings {
        max_split_mib: Some(64),
        non_split_rounding_mib: Some(40),
        ..NamedSettings::plain("max_split_size_mb:64,max_non_split_rounding_mb:40")
    },
    NamedSettings { divisions: [4; 4], ..NamedSettings::plain("roundup_power2_divisions:4") },
    NamedSettings { collection_hundredths: 60, ..NamedSettings::plain("garbage_collection_threshold:0.6") },
    NamedSettings {
        max_split_mib: Some(32),
        collection_hundredths: 30,
        ..NamedSettings::plain("garbage_collection_threshold:0.3,max_split_size_mb:32")
    },
    NamedSettings { large_segment_mib: Some(11), ..NamedSettings::plain("large_segment_size_mb:11") },
    NamedSettings {
        max_split_mib: Some(20),
        divisions: [2; 4],
        collection_hundredths: 90,
        ..NamedSettings::plain("max_split_size_mb:20,roundup_power2_divisions:2,garbage_collection_threshold:0.9")
    },
    NamedSettings { divisions: [4, 1, 8, 2], ..NamedSettings::plain("roundup_power2_divisions:[1:4,2:1,4:8,>:2]") },
];

impl NamedSettings {
    const fn plain(text: &'static str) -> NamedSettings {
        NamedSettings {
            text,
            max_split_mib: None,
            non_split_rounding_mib: None,
            large_segment_mib: None,
            divisions: [0; 4],
            collection_hundredths: 0,
        }
    }

    /// The rules after applying the string to `before`.
    #[must_use]
    pub fn applied_to(&self, before: Rules) -> Rules {
        let large_segment = self.large_segment_mib.map_or(before.large_segment, |mib| mib * MIB);
        Rules {
            max_split: self.max_split_mib.map(|mib| mib * MIB),
            non_split_rounding: self.non_split_rounding_mib.map_or(large_segment, |mib| mib * MIB),
            large_segment,
            divisions: self.divisions,
            collection_hundredths: self.collection_hundredths,
        }
    }
}

impl Default for Rules {
    fn default() -> Rules {
        Rules {
            max_split: None,
            non_split_rounding: 20 * MIB,
            large_segment: 20 * MIB,
            divisions: [0; 4],
            collection_hundredths: 0,
        }
    }
}

impl Rules {
    /// The block size for a request (spec 1.2 to 1.4). Requests here are too small to overflow.
    #[must_use]
    pub fn rounded(&self, requested: u64) -> u64 {
        let divisions = self.divisions[[2 * MIB, 4 * MIB, 8 * MIB].iter().filter(|&&bound| requested >= bound).count()];
        if divisions > 1 && requested > 512 * divisions {
            let mut power = 1;
            while power * 2 <= requested {
                power *= 2;
            }
            let steps = (0..=divisions).map(|step| power + step * (power / divisions));
            return steps.into_iter().find(|&size| size >= requested).expect("the next power of two is large enough");
        }
        requested.max(1).div_ceil(512) * 512
    }

    /// Whether a block of this size belongs to the large pool (spec 1.5).
    #[must_use]
    pub fn is_large(size: u64) -> bool {
        size > MIB
    }

    /// The segment size for a new block (spec 1.6).
    #[must_use]
    pub fn segment(&self, size: u64) -> u64 {
        match size {
            _ if size <= MIB => 2 * MIB,
            _ if size < 10 * MIB => self.large_segment,
            _ => size.div_ceil(2 * MIB) * 2 * MIB,
        }
    }

    /// Whether a free block of the right pool and stream may serve a block of `size` bytes (spec 2.5). The real rule tries only
    /// the smallest block that is large enough; but if it rejects that one, it would reject all larger ones.
    #[must_use]
    pub fn may_serve(&self, free: u64, size: u64) -> bool {
        let fits = match self.max_split {
            Some(oversize) if size >= oversize => free < size + self.non_split_rounding,
            Some(oversize) => free < oversize,
            None => true,
        };
        free >= size && fits
    }

    /// The size of the block that a request gets out of `whole` free bytes: a large enough remainder is split off (spec 3.1).
    #[must_use]
    pub fn cut(&self, whole: u64, size: u64) -> u64 {
        let rest = whole - size;
        let is_worth_splitting = if Rules::is_large(size) { !self.is_oversize(size) && rest > MIB } else { rest >= 512 };
        if is_worth_splitting { size } else { whole }
    }

    /// Whether a block counts as oversize.
    #[must_use]
    pub fn is_oversize(&self, size: u64) -> bool {
        self.max_split.is_some_and(|oversize| size >= oversize)
    }
}
