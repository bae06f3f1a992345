//! Searches text with regular expressions, after a quick check of whether the text may contain a match.

use regex::Regex;

/// Compiles one of this crate's patterns.
///
/// # Panics
/// Panics if it is not a valid regular expression, which the tests rule out.
pub(super) fn compiled(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a regular expression")
}

/// Parts of words, in upper or lower case. Every match of the search contains at least one of them.
pub(super) struct Stems {
    stems: &'static [&'static str],
    /// The number of bytes of each stem that are compared first: the length of the shortest stem.
    compared: usize,
    /// For each pair of bytes that occurs in a stem, the distance from it to the end of the bytes compared first.
    shifts: [u8; 1 << 10],
}

/// Returns the index of two bytes in the table; upper-case and lower-case letters have the same index.
const fn place(first: u8, second: u8) -> usize {
    ((first as usize & 31) << 5) | (second as usize & 31)
}

impl Stems {
    /// Creates stems, each of at least two lower-case ASCII letters.
    pub(super) const fn of(stems: &'static [&'static str]) -> Stems {
        let (mut compared, mut stem) = (u8::MAX as usize, 0);
        while stem < stems.len() {
            let length = stems[stem].len();
            compared = if length < compared { length } else { compared };
            stem += 1;
        }
        let mut shifts = [compared as u8 - 1; 1 << 10];
        stem = 0;
        while stem < stems.len() {
            let (bytes, mut at) = (stems[stem].as_bytes(), 1);
            while at < compared {
                let (place, shift) = (place(bytes[at - 1], bytes[at]), (compared - 1 - at) as u8);
                shifts[place] = if shift < shifts[place] { shift } else { shifts[place] };
                at += 1;
            }
            stem += 1;
        }
        Stems { stems, compared, shifts }
    }

    /// Returns whether the text contains one of the stems.
    pub(super) fn are_in(&self, text: &str) -> bool {
        let text = text.as_bytes();
        let is_at = |rest: &[u8]| {
            let is = |stem: &&str| rest.get(..stem.len()).is_some_and(|bytes| bytes.eq_ignore_ascii_case(stem.as_bytes()));
            self.stems.iter().any(is)
        };
        let mut end = self.compared - 1;
        while let Some(&[first, second]) = text.get(end - 1..=end) {
            match self.shifts[place(first, second)] {
                0 if is_at(&text[end + 1 - self.compared..]) => return true,
                0 => end += 1,
                shift => end += usize::from(shift),
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stem_is_found_wherever_it_is() {
        const STEMS: Stems = Stems::of(&["memory", "oom-kill", "alloc_failed"]);
        for length in 0..30 {
            for word in ["memory", "MEMORY", "Memory", "oom-kill", "ALLOC_FAILED"] {
                for filler in ["m", "o", "em", "memor", "x", "é", "oom-"] {
                    let before = filler.repeat(length);
                    assert!(
                        STEMS.are_in(&format!("{before}{word}")) && STEMS.are_in(&format!("{before}{word}{before}")),
                        "{before}"
                    );
                    assert!(!STEMS.are_in(&format!("{before}{}#{before}", &word[..word.len() - 1])), "{before}{word}");
                }
            }
        }
    }
}
