//! The laws of policies as the suite's random programs find them, and that they see what they should.

use parkade_conformance::harness::Simulated;
use parkade_conformance::policies::{self, Share};
use parkade_conformance::suite::{Effort, Silent, Status, run};

#[test]
#[ignore]
fn explore() {
    let cases = std::env::var("PARKADE_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(50);
    let filter = std::env::var("FILTER").unwrap_or_default();
    let seed = std::env::var("SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let mut entries = policies::entries(&Simulated, None, Share::Whole);
    entries.retain(|entry| entry.name.contains(&filter));
    for row in run(&Simulated, &entries, &Effort { cases, seed }, &Silent) {
        println!("{} {} {:.1}s {} {}", row.name, row.status.name(), row.took.as_secs_f64(), row.reason, row.evidence.measured);
        if row.status != Status::Pass {
            println!("{}", row.script.unwrap_or_default());
        }
    }
}
