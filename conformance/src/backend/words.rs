//! Memory that a device filled with one word, as it was read back.

/// Returns the position of the first whole word that differs from `word`.
pub(crate) fn first_other_word(bytes: &[u8], word: u32) -> Option<usize> {
    let word = word.to_le_bytes();
    // Memory that begins with the word and equals itself one word later holds nothing else. This comparison is fast even in a build
    // without optimisation, where tests read most.
    let is_filled = bytes.starts_with(&word) && bytes[word.len()..] == bytes[..bytes.len() - word.len()];
    let differs = |found: &[u8]| found != word;
    if is_filled { None } else { bytes.chunks_exact(word.len()).position(differs).map(|place| place * word.len()) }
}

#[cfg(test)]
mod tests {
    use super::first_other_word;

    #[test]
    fn any_other_byte_of_a_whole_word_is_found() {
        const WORD: u32 = 0x0102_0301;
        for len in 0..40 {
            let filled: Vec<u8> = WORD.to_le_bytes().into_iter().cycle().take(len).collect();
            assert_eq!(first_other_word(&filled, WORD), None);
            for changed in 0..len {
                let mut bytes = filled.clone();
                bytes[changed] ^= 3;
                let expected = (changed < len / 4 * 4).then_some(changed / 4 * 4);
                assert_eq!(first_other_word(&bytes, WORD), expected, "{len} bytes, of which {changed} differs");
            }
        }
    }
}
