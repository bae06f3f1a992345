//! A17: the same workload with and without reserving its memory first.

use crate::backend::AnyBackend;
use crate::suite::{Entry, Evidence, Trouble, Verdict};
use parkade::stats::Family;
use parkade::units::Bytes;

use crate::scenarios::story::{Story, claim, format_bytes, mib, scenario};

/// Steps of the workload.
const STEPS: u64 = 16;
/// The most that is live at once: the weights and the last step's activations.
const MOST_LIVE: u64 = 256 + activations(STEPS - 1) * 3 + 6;

/// MiB of a step's first activation; sequences grow from step to step.
const fn activations(step: u64) -> u64 {
    40 + 12 * step
}

pub(super) fn entries() -> Vec<Entry> {
    let says = "memory reserved before the workload: fewer driver calls and less reserved, but none of it comes back meanwhile";
    vec![scenario("A17", says, warm_up)]
}

/// Weights that stay, then steps with three activations each, which grow.
fn work(story: &mut Story) -> Result<(), Trouble> {
    story.alloc("weights", mib(256))?;
    for step in 0..STEPS {
        for number in 1..=3 {
            story.alloc(&format!("activation {number}"), mib(activations(step) + 2 * (number - 1)))?;
        }
        for number in 1..=3 {
            story.free(&format!("activation {number}"))?;
        }
    }
    Ok(())
}

/// What one way of running the workload cost.
struct Cost {
    peak_reserved: i64,
    mallocs: i64,
    frees: i64,
    retries: i64,
    kept: i64,
}

fn run(
    backend: &AnyBackend,
    settings: &str,
    limit: Option<Bytes>,
    reserve: Option<Bytes>,
    evidence: &mut Evidence,
) -> Result<Cost, Trouble> {
    let mut story = Story::new(backend, settings, limit)?;
    if let Some(bytes) = reserve {
        story.alloc("reservation", bytes)?;
        story.free("reservation")?;
        story.say(&format!("{} reserved before the workload", format_bytes(bytes.get())));
    }
    work(&mut story)?;
    story.show("after the workload");
    let stats = story.stage.stats();
    let reserved = stats.family(Family::ReservedBytes).all.peak;
    let (mallocs, frees, retries) = (stats.num_device_alloc, stats.num_device_free, stats.num_alloc_retries);
    story.stage.release_cached()?;
    let kept = story.figures().reserved;
    let told = story.finish()?;
    evidence.text.push_str(&told.text);
    evidence.text.push('\n');
    evidence.operations += told.operations;
    Ok(Cost { peak_reserved: reserved, mallocs, frees, retries, kept })
}

fn warm_up(backend: &AnyBackend) -> Verdict {
    let mut evidence = Evidence::default();
    let limit = Some(mib(1500));
    let ways = [
        ("on the fly", "", None, None),
        ("on the fly, limit 1500 MiB", "", limit, None),
        ("reserved before", "", limit, Some(mib(MOST_LIVE))),
        ("expandable, on the fly", "expandable_segments:True", limit, None),
    ];
    let mut table = format!(
        "{:<28} {:>18} {:>8} {:>6} {:>8} {:>30}\n",
        "", "peak reserved", "mallocs", "frees", "retries", "reserved after empty_cache"
    );
    let mut costs = Vec::new();
    for (name, settings, limit, reserve) in ways {
        let cost = run(backend, settings, limit, reserve, &mut evidence)?;
        let Cost { peak_reserved, mallocs, frees, retries, kept } = cost;
        table.push_str(&format!("{name:<28} {peak_reserved:>16} B {mallocs:>8} {frees:>6} {retries:>8} {kept:>28} B\n"));
        costs.push(cost);
    }
    let [plain, limited, reserved, _] = &costs[..] else { return Err(Trouble::fail("four ways were run")) };
    claim(reserved.mallocs == 1 && reserved.retries == 0, || format!("{} mallocs with the reservation", reserved.mallocs))?;
    claim(reserved.peak_reserved == mib(MOST_LIVE).get() as i64, || format!("{} reserved", reserved.peak_reserved))?;
    claim(plain.mallocs == 1 + 3 * STEPS as i64 && plain.peak_reserved > 5 * reserved.peak_reserved, || table.clone())?;
    claim(limited.retries > 0, || "the limit was not met".to_owned())?;
    // The price: the weights keep the whole reservation; without it, only the weights stay reserved.
    claim(reserved.kept > plain.kept, || table.clone())?;
    evidence.text.push_str(&table);
    Ok(evidence)
}
