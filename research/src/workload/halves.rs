//! The two halves of a workload: what an allocator does once, at the beginning, and what it goes on doing.

use super::event::Workload;

impl Workload {
    /// The event with which the later half begins: of two or more steps the first of the later half (of three steps the
    /// last), otherwise half of the events.
    #[must_use]
    pub fn later_half(&self) -> usize {
        match self.steps.get(self.steps.len().div_ceil(2)) {
            Some(&event) => event as usize,
            None => self.events.len() / 2,
        }
    }

    /// The number of steps in the later half; 0 if there are fewer than two.
    #[must_use]
    pub fn later_steps(&self) -> usize {
        self.steps.len() / 2
    }

    /// How much work the streams are given, in nanoseconds. 0 if the workload does not say how long its work takes, as a
    /// recording does not: then nothing can be said about how long a call waits for the device.
    #[must_use]
    pub fn work_ns(&self) -> u64 {
        let of_event = |event: &super::Event| match *event {
            super::Event::Launch { us, .. } => u64::from(us) * 1000,
            _ => 0,
        };
        self.events.iter().map(of_event).fold(0, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use crate::workload::{Event, Workload, parse};

    fn halves(events: usize, steps: &[u32]) -> (usize, usize) {
        let workload = Workload { events: vec![Event::EmptyCache; events], steps: steps.to_vec(), ..Workload::default() };
        (workload.later_half(), workload.later_steps())
    }

    #[test]
    fn the_later_half_is_the_later_half_of_the_steps() {
        assert_eq!(halves(10, &[]), (5, 0));
        assert_eq!(halves(10, &[2]), (5, 0), "one step has no halves");
        assert_eq!(halves(10, &[2, 7]), (7, 1));
        assert_eq!(halves(10, &[2, 4, 9]), (9, 1));
        assert_eq!(halves(10, &[0, 1, 2, 3]), (2, 2));
    }

    #[test]
    fn generators_say_where_steps_begin() {
        let model = "layers=2,hidden=64,heads=2,vocabulary=100,sequence=64,batch=2";
        for (text, steps) in [
            (format!("transformer:{model},mixed=on,steps=5"), 5),
            (format!("varlen:{model},lengths=uniform/8/64,steps=4"), 4),
            (format!("alternate:{model},rounds=3,prompt=16,answers=uniform/8/40,empties_cache=on"), 3),
            ("cnn:batches=2/4,repeats=3".to_owned(), 6),
            ("mlp:depth=3,width=64,steps=7,prealloc=1MiB".to_owned(), 7),
            ("prefetch:steps=6,depth=2,batches=uniform/2/4".to_owned(), 6),
            (format!("graphs:{model},batches=1/2/4,eager_runs=2"), 5),
            ("chain:layers=3".to_owned(), 1),
            ("comb:teeth=4".to_owned(), 0),
        ] {
            let workload = parse(&text).unwrap();
            assert_eq!((workload.check(), workload.steps.len()), (Ok(()), steps), "{text}");
        }
        let server = parse("serving:requests=5,slots=2,answers=uniform/3/3,rate=1000").unwrap();
        assert!(server.check() == Ok(()) && server.steps.len() >= 9, "{} turns", server.steps.len());
    }

    #[test]
    fn work_is_counted() {
        let work = [Event::Launch { stream: 0, us: 7 }, Event::EmptyCache, Event::Launch { stream: 3, us: 5 }];
        assert_eq!(Workload { events: work.into(), ..Workload::default() }.work_ns(), 12_000);
        assert_eq!(Workload::default().work_ns(), 0);
    }
}
