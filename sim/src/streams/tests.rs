//! When marks are done, under every event timing.

use super::*;

#[test]
fn by_the_clock_a_mark_is_done_when_the_work_before_it_ends() {
    let mut streams = Streams::new(EventTiming::Clock);
    streams.launch(0, 100, 10);
    let first = streams.record(0, 10);
    streams.launch(0, 50, 20);
    let second = streams.record(0, 20);
    let other = streams.record(7, 20);
    assert!(streams.is_done(other, 20), "streams do not wait for each other");
    assert!(!streams.is_done(first, 109));
    assert!(streams.is_done(first, 110));
    assert!(!streams.is_done(second, 159));
    assert_eq!(streams.ready_at_ns(second), 160);
    assert!(streams.is_done(second, 160));
    assert_eq!(streams.ready_at_ns(second), 0);
}

#[test]
fn eager_is_done_at_once_and_lazy_never() {
    let mut eager = Streams::new(EventTiming::Eager);
    eager.launch(0, 100, 0);
    let mark = eager.record(0, 0);
    assert!(eager.is_done(mark, 0));
    assert_eq!(eager.idle_at_ns(), 0);
    let mut lazy = Streams::new(EventTiming::Lazy);
    let mark = lazy.record(0, 0);
    assert!(!lazy.is_done(mark, u64::MAX));
    lazy.complete_through(mark);
    assert!(lazy.is_done(mark, 0));
}

#[test]
fn a_stream_that_waits_begins_after_the_mark() {
    let mut streams = Streams::new(EventTiming::Clock);
    streams.launch(1, 100, 0);
    let first = streams.record(1, 0);
    streams.launch(1, 1000, 0);
    streams.wait(2, first);
    assert_eq!(streams.launch(2, 10, 5), (100, 110), "not behind what came after the mark");
    let second = streams.record(2, 5);
    streams.wait(3, second);
    assert_eq!(streams.stream_idle_at_ns(3), 110);
    assert!(!streams.is_done(second, 109) && streams.is_done(second, 110));
    let mut eager = Streams::new(EventTiming::Eager);
    let mark = eager.record(1, 0);
    eager.wait(2, mark);
    assert_eq!(eager.launch(2, 10, 5), (5, 5));
}

#[test]
fn what_is_done_makes_done_what_was_waited_for() {
    for timing in [EventTiming::Clock, EventTiming::Lazy, EventTiming::Seeded(1)] {
        for way in 0..4 {
            let mut streams = Streams::new(timing);
            streams.launch(1, 100, 0);
            let earlier = streams.record(1, 0);
            let first = streams.record(1, 0);
            let later = streams.record(1, 0);
            streams.wait(2, first);
            let second = streams.record(2, 0);
            streams.wait(3, second);
            let third = streams.record(3, 0);
            match way {
                0 => streams.complete_through(third),
                1 => streams.complete(3, 0),
                2 => assert_eq!(streams.complete_one(3, 0), 1),
                _ => {
                    streams.wait(4, third);
                    streams.complete(4, 0);
                }
            }
            let done = [earlier, first, second, third, later].map(|mark| streams.is_done(mark, 0));
            assert_eq!(done, [true, true, true, true, false], "{timing:?}, way {way}");
        }
    }
}

#[test]
fn of_two_marks_of_a_stream_the_newer_one_is_waited_for() {
    for swap in [false, true] {
        let mut streams = Streams::new(EventTiming::Lazy);
        let mut marks = [(); 3].map(|()| streams.record(1, 0));
        let first_two = if swap { [marks[1], marks[0]] } else { [marks[0], marks[1]] };
        first_two.into_iter().for_each(|mark| streams.wait(2, mark));
        let second = streams.record(2, 0);
        streams.complete_through(second);
        marks.rotate_left(1);
        assert_eq!(marks.map(|mark| streams.is_done(mark, 0)), [true, false, true], "swapped: {swap}");
    }
}

#[test]
fn handles_are_new_and_a_destroyed_stream_finishes_its_work() {
    let mut streams = Streams::new(EventTiming::Clock);
    streams.launch(0x2000, 10, 0);
    assert_eq!([(); 2].map(|()| streams.create()), [0x1000, 0x3000]);
    streams.launch(0x1000, 50, 0);
    let mark = streams.record(0x1000, 0);
    streams.destroy(0x1000, 0);
    assert!(!streams.is_done(mark, 49), "destroying waits for nothing and completes nothing");
    assert_eq!(streams.idle_at_ns(), 50);
    assert!(streams.is_done(mark, 50));
    streams.destroy(0x3000, 50);
    assert_eq!(streams.by_handle.keys().copied().collect::<Vec<_>>(), [0x2000], "nothing is left of both");
    let again = streams.record(0x1000, 50);
    streams.launch(0x1000, 50, 50);
    assert!(streams.is_done(mark, 50) && streams.is_done(again, 50), "an old mark stays done");
    assert_eq!(streams.create(), 0x4000, "never a second time");
}

#[test]
fn one_at_a_time_completes_the_oldest_mark() {
    let mut streams = Streams::new(EventTiming::Lazy);
    assert_eq!(streams.complete_one(3, 0), 0);
    let marks = [(); 3].map(|()| streams.record(3, 0));
    assert_eq!(streams.complete_one(3, 0), 1);
    assert_eq!(marks.map(|mark| streams.is_done(mark, 0)), [true, false, false]);
    streams.complete(3, 0);
    assert_eq!(marks.map(|mark| streams.is_done(mark, 0)), [true; 3]);
    assert_eq!(streams.complete_one(3, 0), 0);
}

#[test]
fn seeded_is_never_early_always_ordered_and_comes_in_the_end() {
    for seed in 0..50 {
        let mut streams = Streams::new(EventTiming::Seeded(seed));
        streams.launch(0, 100, 0);
        let marks = [(); 5].map(|()| streams.record(0, 0));
        assert!(!streams.is_done(marks[4], 99));
        let mut seen = [false; 5];
        for _ in 0..1000 {
            streams.is_done(marks[4], 100);
            let now = marks.map(|mark| streams.ready_at_ns(mark) == 0);
            assert!(now.is_sorted_by(|a, b| a >= b), "a prefix");
            assert!(seen.iter().zip(now).all(|(&before, after)| !before || after), "monotone");
            seen = now;
        }
        assert_eq!(seen, [true; 5]);
    }
}
