//! Digests: a few digits that stand for an answer, so that two runs can be compared without their text.
//!
//! The harness has the same function, `put_digest` in `pytorch_harness/src/oracle.cpp`. Text is cheap to compare but not to make:
//! most of it is statistics, which a digest takes as numbers, all of them and not only those that changed.

/// The digest of an answer's text and of the numbers that belong to it. Every step can be undone, so that what differs
/// in a single word differs in its digest.
pub(super) fn of(text: &str, numbers: &[i64]) -> u64 {
    let words = text.as_bytes().chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    words.chain(numbers.iter().map(|&number| number as u64)).fold(text.len() as u64, |digest, word| {
        let mixed = (digest ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ mixed >> 32
    })
}

#[cfg(test)]
mod tests {
    use super::of;

    #[test]
    fn each_byte_and_each_number_counts() {
        let text = "{\"i\":0,\"op\":\"free a\",\"ok\":1}";
        let digest = of(text, &[1, 2, 3]);
        for place in 0..text.len() {
            let mut other = text.to_owned();
            other.replace_range(place..=place, "#");
            assert_ne!(of(&other, &[1, 2, 3]), digest, "{other}");
        }
        for other in [&[1, 2, 4][..], &[1, 2], &[2, 1, 3], &[1, 2, 3, 0]] {
            assert_ne!(of(text, other), digest, "{other:?}");
        }
        assert_ne!(of("a", &[]), of("a\0", &[]));
    }
}
