//! Which device of one file is compared with which of the other.

use crate::terminal::output::list;

/// The pairs of devices, and what to say about those that differ. Devices of one number belong together; if no number is in both files,
/// the devices are paired in order.
pub(super) fn pairs(a: &[u32], b: &[u32]) -> (Vec<(u32, u32)>, Vec<String>) {
    let both: Vec<(u32, u32)> = a.iter().filter(|number| b.contains(number)).map(|&number| (number, number)).collect();
    if both.is_empty() {
        let pairs: Vec<(u32, u32)> = a.iter().copied().zip(b.iter().copied()).collect();
        let said = list(pairs.iter().map(|(a, b)| format!("{a} with {b}")));
        let note = format!(
            "The files are of different devices (A has {}, B has {}), so they are compared in order: {said}.",
            list(a),
            list(b)
        );
        return (pairs, vec![note]);
    }
    let alone = |name: &str, own: &[u32], other: &[u32]| {
        let alone: Vec<u32> = own.iter().filter(|number| !other.contains(number)).copied().collect();
        let devices = if alone.len() == 1 { "device" } else { "devices" };
        (!alone.is_empty()).then(|| format!("Only {name} has {devices} {}, so nothing is compared there.", list(alone)))
    };
    let notes = [alone("A", a, b), alone("B", b, a)].into_iter().flatten().collect();
    (both, notes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_of_one_number_belong_together() {
        assert_eq!(pairs(&[0, 1], &[0, 1]), (vec![(0, 0), (1, 1)], vec![]));
        let (found, notes) = pairs(&[0, 1, 2], &[1, 7]);
        assert_eq!(found, [(1, 1)]);
        assert!(notes[0].contains("Only A has devices 0, 2,") && notes[1].contains("Only B has device 7,"), "{notes:?}");
        let (found, notes) = pairs(&[0], &[3, 4]);
        assert_eq!(found, [(0, 3)]);
        assert!(notes[0].contains("A has 0, B has 3, 4") && notes[0].contains("0 with 3"), "{notes:?}");
    }
}
