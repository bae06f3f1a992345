//! What is true of every generated workload.

use super::*;

#[test]
fn catalogue_sizes() {
    for named in &CATALOGUE {
        let begin = std::time::Instant::now();
        let workload = (named.make)(1);
        let ms = begin.elapsed().as_millis();
        println!(
            "{} {} {:.2} GiB {ms} ms",
            named.name,
            workload.events.len(),
            workload.load_bytes(512) as f64 / (1u64 << 30) as f64
        );
    }
}

#[test]
fn the_load_is_the_most_that_lives_at_once() {
    let allocate = |buffer, bytes| Event::Allocate { buffer, bytes, stream: 0 };
    let events =
        vec![allocate(0, 1000), allocate(1, 100), Event::Free { buffer: 0 }, allocate(2, 513), Event::Free { buffer: 1 }];
    let workload = Workload { name: "small".into(), says: "three buffers".into(), events };
    assert_eq!(workload.load_bytes(1), 1100);
    assert_eq!(workload.load_bytes(512), 1536);
    assert_eq!(workload.buffers(), 3);
}
