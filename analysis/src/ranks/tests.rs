//! Comparisons of made-up ranks whose answer is known.

use parkade::profile::{Profile, Release};
use parkade_recording::{Action, DeviceRecording, Entry};
use proptest::prelude::*;

use super::*;
use crate::fragmentation::Fragmentation;

const GIB: i64 = 1 << 30;

/// A program that requests each of these sizes once.
fn program(sizes: impl IntoIterator<Item = u64>) -> RequestSizes {
    let trace = sizes.into_iter().map(|size| Entry::new(Action::Alloc, 0, size, 0)).collect();
    RequestSizes::of(&DeviceRecording { trace, ..DeviceRecording::default() })
}

/// The releases with the rules of this one.
fn releases(name: &str) -> Vec<&'static Release> {
    Profile::of(name).expect("a release").releases().collect()
}

/// The run of a rank with this peak of allocated memory; all else is the same, `content` aside.
fn run(content: u64, peak_allocated_bytes: i64) -> RankRun {
    RankRun {
        device: 0,
        entries: 1000,
        failure: None,
        is_cut_short: false,
        ooms: 0,
        retries: Some(0),
        peak_allocated_bytes: Some(peak_allocated_bytes),
        peak_reserved_bytes: Some(12 * GIB),
        end: Some(Fragmentation::default()),
        profile: "2.11",
        releases: releases("2.11"),
        settings: String::new(),
        sizes: program(0..100),
        content,
    }
}

fn ranks(peaks: &[i64]) -> Vec<RankRun> {
    peaks.iter().zip(0..).map(|(&peak, content)| run(content, peak)).collect()
}

fn odd(peaks: &[i64]) -> Vec<usize> {
    compare(&ranks(peaks)).odd.iter().map(|odd| odd.run).collect()
}

#[test]
fn one_unlike_equal_ones_is_odd_from_one_per_cent_on() {
    let found = compare(&ranks(&[10 * GIB, 11 * GIB, 10 * GIB, 10 * GIB])).odd;
    let [odd_one] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!((odd_one.run, odd_one.measure, odd_one.value, odd_one.median), (1, Measure::PeakAllocated, 11 * GIB, 10 * GIB));
    assert!(odd(&[10 * GIB, 10 * GIB + (1 << 20), 10 * GIB, 10 * GIB]).is_empty());
    assert!(odd(&[10 * GIB; 4]).is_empty());
}

#[test]
fn two_ranks_do_not_show_which_is_odd() {
    assert!(odd(&[10 * GIB, 20 * GIB]).is_empty());
    assert_eq!(odd(&[10 * GIB, 20 * GIB, 10 * GIB]), [1]);
}

#[test]
fn ranks_that_vary_among_themselves_are_not_odd() {
    assert!(odd(&[10 * GIB, 11 * GIB, 12 * GIB, 13 * GIB, 14 * GIB]).is_empty());
    assert_eq!(odd(&[10 * GIB, 11 * GIB, 12 * GIB, 13 * GIB, 40 * GIB]), [4]);
    // Two halves, as the stages of a pipeline.
    assert!(odd(&[10 * GIB, 10 * GIB, 20 * GIB, 20 * GIB]).is_empty());
}

#[test]
fn a_second_odd_one_does_not_hide_the_first() {
    assert_eq!(odd(&[10 * GIB, 30 * GIB, 10 * GIB, 10 * GIB, 60 * GIB, 10 * GIB]), [4, 1]);
}

#[test]
fn peaks_say_more_than_what_is_left_at_the_end() {
    let mut runs = ranks(&[10 * GIB, 10 * GIB, 11 * GIB, 10 * GIB, 10 * GIB, 10 * GIB]);
    runs[2].peak_reserved_bytes = Some(40 * GIB);
    runs[4].end = Some(Fragmentation { free_bytes: 9 << 30, ..Fragmentation::default() });
    let odd: Vec<_> = compare(&runs).odd.iter().map(|odd| (odd.run, odd.measure)).collect();
    assert_eq!(odd, [(2, Measure::PeakAllocated), (4, Measure::Free)]);
}

#[test]
fn the_first_failure_is_that_with_the_earliest_time() {
    let mut runs = ranks(&[GIB; 3]);
    assert_eq!(compare(&runs).fails_first, None);
    runs[0].failure = Some(Failure { entry: 10, time_us: Some(5_000) });
    runs[2].failure = Some(Failure { entry: 900, time_us: Some(4_000) });
    let by_time = FailsFirst { run: 2, next: Some((0, 1_000)), is_by_time: true, failed: 2 };
    assert_eq!(compare(&runs).fails_first, Some(by_time));
    runs[2].failure = Some(Failure { entry: 900, time_us: None });
    let by_entry = FailsFirst { run: 0, next: None, is_by_time: false, failed: 2 };
    assert_eq!(compare(&runs).fails_first, Some(by_entry));
}

#[test]
fn other_programs_and_copies_do_not_count_among_the_alike() {
    let mut runs = ranks(&[10 * GIB, 10 * GIB, 10 * GIB, 40 * GIB, 10 * GIB]);
    runs[3].sizes = program(1_000_000..1_000_100);
    runs[3].releases = releases("2.15");
    runs[4].content = runs[0].content;
    runs[1].settings = "expandable_segments:True".to_owned();
    let found = compare(&runs);
    assert_eq!((found.compared, found.odd), (vec![0, 1, 2], vec![]));
    let variants = |difference: &Difference| difference.variants().iter().map(|one| one.runs.clone()).collect::<Vec<_>>();
    let named: Vec<_> = found.differences.iter().map(|one| (one.name(), variants(one))).collect();
    let expected = [
        ("release", vec![vec![0, 1, 2, 4], vec![3]]),
        ("settings", vec![vec![0, 2, 3, 4], vec![1]]),
        ("program", vec![vec![0, 1, 2, 4], vec![3]]),
        ("copies", vec![vec![0, 4]]),
    ];
    assert_eq!(named, expected);
}

#[test]
fn releases_differ_only_where_none_may_have_made_both() {
    let mut runs = ranks(&[10 * GIB; 4]);
    let either: Vec<_> = [releases("2.10"), releases("2.11")].concat();
    runs[0].releases = either.clone();
    runs[2].releases = either;
    assert_eq!(compare(&runs).differences, []);
    runs[3].releases = releases("2.12");
    let variant = |value: &str, runs: &[usize]| Variant { value: value.to_owned(), runs: runs.to_vec() };
    let expected = vec![variant("2.11", &[0, 1, 2]), variant("2.12", &[3])];
    assert_eq!(compare(&runs).differences, [Difference::Release(expected)]);
}

#[test]
fn nothing_is_made_of_nothing() {
    let found = compare(&[]);
    assert_eq!((found.fails_first, found.compared.len(), found.odd.len(), found.differences.len()), (None, 0, 0, 0));
}

proptest! {
    /// The order of the files changes places only, and absurd values do not overflow.
    #[test]
    fn the_order_does_not_matter(peaks in proptest::collection::vec(any::<i64>(), 0..12)) {
        let found = compare(&ranks(&peaks));
        let mut reversed = ranks(&peaks);
        reversed.reverse();
        let mirrored = compare(&reversed);
        let last = peaks.len().saturating_sub(1);
        let places = |found: &Comparison, mirror: bool| {
            let mut places: Vec<_> = found.odd.iter().map(|odd| if mirror { last - odd.run } else { odd.run }).collect();
            places.sort_unstable();
            places
        };
        prop_assert_eq!(places(&found, false), places(&mirrored, true));
    }
}

#[test]
fn of_several_ranks_that_died_none_is_odd_for_what_it_had_no_time_to_need() {
    let with_died = |peak: i64, died: &[usize]| {
        let mut all = ranks(&[10 * GIB, 10 * GIB, 10 * GIB, peak]);
        died.iter().for_each(|&run| all[run].is_cut_short = true);
        compare(&all).odd.iter().map(|odd| odd.run).collect::<Vec<_>>()
    };
    assert_eq!((with_died(7 * GIB, &[]), with_died(7 * GIB, &[3])), (vec![3], vec![3]));
    assert_eq!((with_died(7 * GIB, &[0, 3]), with_died(13 * GIB, &[0, 3])), (vec![], vec![3]));
}
