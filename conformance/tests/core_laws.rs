//! Tests that every law holds, with a few cases each; the suite draws more.

use std::time::Instant;

use parkade_conformance::core_laws::{Draws, LAWS};

#[test]
fn every_law_holds() {
    let cases = std::env::var("PARKADE_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(20);
    for law in LAWS {
        let start = Instant::now();
        let outcome = (law.check)(&Draws { cases, seed: 0 });
        let took = start.elapsed().as_millis();
        let operations = outcome.unwrap_or_else(|failure| panic!("{}: {}\n{}", law.name, failure.broken, failure.script));
        assert!(operations > 0, "{} has no effect", law.name);
        eprintln!("{:24} {operations:9} operations in {took} ms", law.name);
    }
}
