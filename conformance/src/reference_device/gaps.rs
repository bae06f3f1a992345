//! The gaps between ranges. All free addresses, pages and bytes are found with these functions.

/// A half-open range of numbers.
pub(super) type Range = (u64, u64);

/// Returns the parts of `start..end` that none of `taken` covers, lowest first and as long as possible.
pub(super) fn gaps((start, end): Range, taken: impl IntoIterator<Item = Range>) -> Vec<Range> {
    let mut taken: Vec<Range> = taken.into_iter().filter(|&(from, to)| from < to).collect();
    taken.sort_unstable();
    let (mut free, mut at) = (Vec::new(), start);
    for (from, to) in taken {
        if at < from.min(end) {
            free.push((at, from.min(end)));
        }
        at = at.max(to);
    }
    if at < end {
        free.push((at, end));
    }
    free
}

/// Returns the bytes that two ranges share.
pub(super) fn common((a, b): Range, (c, d): Range) -> Option<Range> {
    let (start, end) = (a.max(c), b.min(d));
    (start < end).then_some((start, end))
}

/// Joins each range with the one before it in the list if they touch.
pub(super) fn joined(ranges: impl IntoIterator<Item = Range>) -> Vec<Range> {
    let mut joined: Vec<Range> = Vec::new();
    for (from, to) in ranges {
        match joined.last_mut() {
            Some((_, end)) if *end == from => *end = to,
            _ => joined.push((from, to)),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_lie_between_ranges_and_at_both_ends() {
        assert_eq!(gaps((0, 100), [(20, 30), (30, 40), (90, 120), (5, 5)]), [(0, 20), (40, 90)]);
        assert_eq!(gaps((10, 20), [(0, 10), (20, 30)]), [(10, 20)]);
        assert_eq!(gaps((10, 20), [(0, 30), (5, 8)]), []);
        assert_eq!(common((0, 10), (10, 20)), None);
        assert_eq!(common((0, 11), (10, 20)), Some((10, 11)));
        assert_eq!(joined([(5, 6), (6, 7), (0, 5), (5, 9)]), [(5, 7), (0, 9)]);
    }
}
