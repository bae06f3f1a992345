//! Colours that pages and pictures share. Each is readable on the light and on the dark background.

/// Blocks of about the same size.
pub(super) struct SizeClass {
    /// They are smaller than this many bytes.
    pub(super) below_bytes: u64,
    /// Their sizes in words.
    pub(super) words: &'static str,
    /// Their colour.
    pub(super) colour: &'static str,
}

const fn class(below_bytes: u64, words: &'static str, colour: &'static str) -> SizeClass {
    SizeClass { below_bytes, words, colour }
}

/// The sizes of blocks, from small to large.
pub(super) static SIZES: [SizeClass; 8] = [
    class(64 << 10, "below 64 KiB", "#17998c"),
    class(1 << 20, "64 KiB to 1 MiB", "#2490b8"),
    class(4 << 20, "1 to 4 MiB", "#3f7fd6"),
    class(16 << 20, "4 to 16 MiB", "#5b69d6"),
    class(64 << 20, "16 to 64 MiB", "#8457cf"),
    class(256 << 20, "64 to 256 MiB", "#b148b4"),
    class(1 << 30, "256 MiB to 1 GiB", "#d0417c"),
    class(u64::MAX, "1 GiB and more", "#c8502f"),
];

/// The class of a block's size.
pub(super) fn size_class(bytes: u64) -> &'static SizeClass {
    SIZES.iter().find(|class| bytes < class.below_bytes).unwrap_or(&SIZES[SIZES.len() - 1])
}

/// Colours of stacks, those that hold the most first. Stacks beyond these share one colour.
pub(super) const STACKS: [&str; 24] = [
    "#3b6fd8", "#c5454f", "#1d9a6c", "#a45bc8", "#b8791b", "#1f93b0", "#d4588e", "#7a8f1f", "#6a5ad8", "#a0563a", "#3f8f3a",
    "#b965a9", "#4a90d9", "#8a5a86", "#cf6a3a", "#2f8f8a", "#ad4a72", "#6f8f5a", "#7f6fb8", "#a88412", "#b5534a", "#5a7fa8",
    "#c04fb8", "#5f8f1f",
];
/// The other stacks.
pub(super) const OTHER_STACKS: &str = "#7c8798";
/// Blocks for which the file has no stack.
pub(super) const NO_STACK: &str = "#9c8a63";

/// How long blocks have been in use, as the share of the run's entries below which their age lies.
pub(super) const AGES: [(f64, &str, &str); 5] = [
    (0.001, "for less than 0.1 % of the run", "#17998c"),
    (0.01, "for less than 1 %", "#3f7fd6"),
    (0.1, "for less than 10 %", "#8457cf"),
    (2.0, "for longer", "#d0417c"),
    (f64::INFINITY, "from before the first entry", "#9c8a63"),
];

/// Kinds of blocks, in the order of [`Kind::ALL`](parkade_analysis::holders::Kind::ALL).
pub(super) const KINDS: [&str; 9] =
    ["#3b6fd8", "#c5454f", "#a45bc8", "#1d9a6c", "#1f93b0", "#b8791b", "#d4588e", "#7a8f1f", "#7c8798"];

/// Phases, the most frequent names first. Names beyond these share one colour.
pub(super) const PHASES: [&str; 6] = ["#8b6fd0", "#c2617f", "#5d8f3d", "#b07d2b", "#3f8fa8", "#a45b9b"];
/// Phases with other names.
pub(super) const OTHER_PHASES: &str = "#7c8798";

/// The settings that were tried, in the order of their table.
pub(super) const SETTINGS: [&str; 8] = ["#3b6fd8", "#c5454f", "#1d9a6c", "#a45bc8", "#b8791b", "#1f93b0", "#8a6d4b", "#d4588e"];

#[cfg(test)]
mod tests {
    use super::*;

    /// Relative luminance, as WCAG 2 defines it.
    fn luminance(colour: &str) -> f64 {
        let part = |at: usize| f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap()) / 255.0;
        let linear = |c: f64| if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) };
        0.2126 * linear(part(1)) + 0.7152 * linear(part(3)) + 0.0722 * linear(part(5))
    }

    /// WCAG 2 requires a contrast of 3:1 between a graphical object and its surroundings.
    #[test]
    fn every_colour_stands_out_on_both_backgrounds() {
        let sizes = SIZES.iter().map(|class| class.colour);
        let ages = AGES.iter().map(|&(_, _, colour)| colour);
        let others = [OTHER_STACKS, NO_STACK, OTHER_PHASES].into_iter().chain(STACKS).chain(KINDS).chain(PHASES).chain(SETTINGS);
        for colour in sizes.chain(ages).chain(others) {
            for background in ["#ffffff", "#161a20"] {
                let (one, other) = (luminance(colour) + 0.05, luminance(background) + 0.05);
                assert!(
                    one.max(other) / one.min(other) >= 3.0,
                    "{colour} on {background}: {:.2}",
                    one.max(other) / one.min(other)
                );
            }
        }
    }

    #[test]
    fn sizes_belong_to_one_class() {
        let of = |bytes| size_class(bytes).words;
        assert_eq!([0, 65_535, 65_536].map(of), ["below 64 KiB", "below 64 KiB", "64 KiB to 1 MiB"]);
        assert_eq!([1 << 30, u64::MAX].map(of), ["1 GiB and more"; 2]);
        assert!(SIZES.is_sorted_by_key(|class| class.below_bytes));
    }
}
