//! The adversaries as generators. Robson's reacts to where a policy places buffers, so it is made against a named
//! policy; the others are the same for every policy.

use parkade_policies::{CATALOGUE, Named, named, why_unknown};

use super::adversaries::{Robson, comb, fence, robson, stream_per_buffer};
use super::options::{self, Done, Generator, Key, MAX_BYTES, WorkloadError, within};
use crate::workload::Workload;

const MIB: u64 = 1 << 20;

/// Robson's adversary against a policy. The default unit is a multiple of every policy's page, so that few
/// policies round it.
pub(in crate::workload::generators) struct RobsonAgainst {
    numbers: Robson,
    against: &'static Named,
}

impl RobsonAgainst {
    /// The sizes of docs/bounds.md, against the policy of this name, or the catalogue's first if there is none.
    pub(in crate::workload::generators) fn new(against: &str) -> RobsonAgainst {
        let numbers = Robson { unit_bytes: 160 * MIB, largest_units: 16, live_units: 256 };
        RobsonAgainst { numbers, against: named(against).unwrap_or(&CATALOGUE[0]) }
    }
}

impl Generator for RobsonAgainst {
    fn keys(&self) -> Vec<Key> {
        vec!["against", "unit_bytes", "largest_units", "live_units", "seed"]
    }

    fn set(&mut self, key: Key, value: &str) -> Done {
        match key {
            "against" => {
                let policies = || match why_unknown(value) {
                    Some(why) => format!("a policy ({why})"),
                    None => CATALOGUE.iter().map(|policy| policy.name).collect::<Vec<_>>().join(", "),
                };
                self.against = named(value).map_or_else(|| options::refused(key, value, policies()), Ok)?;
            }
            "unit_bytes" => self.numbers.unit_bytes = options::bytes(key, value)?,
            "largest_units" => self.numbers.largest_units = options::number(key, value)?,
            "live_units" => self.numbers.live_units = options::number(key, value)?,
            _ => options::unused_seed(key, value)?,
        }
        Ok(())
    }

    fn make(&self) -> Result<Workload, WorkloadError> {
        let attack = robson((self.against.make)(), self.numbers)?;
        let says = format!("{}; played against {}", attack.workload.says, self.against.name);
        bounded(Workload { says, ..attack.workload })
    }
}

/// A pattern that up to three numbers describe.
pub(in crate::workload::generators) struct Pattern {
    keys: [Key; 3],
    values: [u64; 3],
    make: fn([u64; 3]) -> Result<Workload, WorkloadError>,
}

/// Stands for the missing keys of a pattern with fewer numbers.
const NONE: Key = "";

impl Pattern {
    pub(in crate::workload::generators) fn comb() -> Pattern {
        Pattern {
            keys: ["teeth", "tooth_bytes", NONE],
            values: [64, 20 * MIB, 0],
            make: |[teeth, bytes, _]| Ok(comb(count("teeth", teeth, 1 << 20)?, bytes)?),
        }
    }

    pub(in crate::workload::generators) fn fence() -> Pattern {
        Pattern {
            keys: ["cycles", NONE, NONE],
            values: [100, 0, 0],
            make: |[cycles, ..]| Ok(fence(count("cycles", cycles, 1_000_000)?)?),
        }
    }

    pub(in crate::workload::generators) fn stream_per_buffer() -> Pattern {
        Pattern {
            keys: ["calls", "streams", "bytes"],
            values: [100, 32, 1024 * MIB],
            make: |[calls, streams, bytes]| {
                let streams = count("streams", streams, u16::MAX.into())? as u16;
                Ok(stream_per_buffer(count("calls", calls, 1_000_000)?, streams, bytes)?)
            },
        }
    }
}

impl Generator for Pattern {
    fn keys(&self) -> Vec<Key> {
        self.keys.into_iter().filter(|key| *key != NONE).chain(["seed"]).collect()
    }

    fn set(&mut self, key: Key, value: &str) -> Done {
        match self.keys.iter().position(|known| *known == key) {
            None => options::unused_seed(key, value),
            Some(place) => {
                self.values[place] =
                    if key.ends_with("bytes") { options::bytes(key, value)? } else { options::number(key, value)? };
                Ok(())
            }
        }
    }

    fn make(&self) -> Result<Workload, WorkloadError> {
        (self.make)(self.values).and_then(bounded)
    }
}

fn count(option: Key, value: u64, most: u64) -> Result<u32, WorkloadError> {
    within(option, value, 1, most)?;
    u32::try_from(value).map_err(|_| WorkloadError::TooManyEvents)
}

fn bounded(workload: Workload) -> Result<Workload, WorkloadError> {
    if workload.load_bytes(1) > MAX_BYTES {
        return Err(WorkloadError::TooLarge { what: "the live buffers" });
    }
    Ok(workload)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::robson::powers_of_two;
    use crate::study::{RunOptions, run};
    use crate::workload::parse;

    #[test]
    fn robsons_adversary_is_made_against_the_policy_that_is_named() {
        let numbers = Robson { unit_bytes: 32 * MIB, largest_units: 8, live_units: 64 };
        for name in ["first-fit-remap", "pytorch", "bfc"] {
            let policy = named(name).unwrap();
            let described = parse(&format!("robson:against={name},unit_bytes=32MiB,live_units=64,largest_units=8")).unwrap();
            let attack = robson((policy.make)(), numbers).unwrap();
            assert!(described.events == attack.workload.events, "{name}");
            assert!(described.says.ends_with(&format!("; played against {name}")), "{}", described.says);
            let outcome = run(&described, (policy.make)(), &RunOptions::plenty());
            assert_eq!(outcome.peak_reserved_bytes, attack.reserved_bytes, "{name}: the same as in the attack");
        }
        let against = |unit: &str, name: &str| {
            parse(&format!("robson:unit_bytes={unit},live_units=64,largest_units=8,against={name}")).unwrap()
        };
        // No gap is large enough for the next size under any policy, so only where small buffers share a segment are
        // they placed elsewhere.
        let own = against("32MiB", "first-fit-remap");
        assert!(CATALOGUE.iter().all(|policy| against("32MiB", policy.name).events == own.events));
        assert!(against("3MiB", "pytorch").events != against("3MiB", "first-fit-remap").events);
        let default = parse("robson:unit_bytes=32MiB,live_units=64,largest_units=8").unwrap();
        assert!(default.events == own.events && default.says == own.says);
        let outcome = run(&own, (named("first-fit-remap").unwrap().make)(), &RunOptions::plenty());
        let forced = powers_of_two(64, 8).unwrap() * numbers.unit_bytes;
        assert!(outcome.peak_reserved_bytes >= forced, "{} of {forced}", outcome.peak_reserved_bytes);
    }

    #[test]
    fn the_other_adversaries_are_made_of_their_numbers() {
        for (text, workload) in [
            ("comb:teeth=5,tooth_bytes=3MiB", comb(5, 3 * MIB)),
            ("fence:cycles=7", fence(7)),
            ("stream-per-buffer:calls=5,streams=3,bytes=1GiB", stream_per_buffer(5, 3, 1024 * MIB)),
        ] {
            let (described, made) = (parse(text).unwrap(), workload.unwrap());
            assert_eq!((described.events, described.says), (made.events, made.says), "{text}");
        }
        assert_eq!(parse("comb:seed=1").unwrap().events, parse("comb:seed=2").unwrap().events);
    }

    #[test]
    fn numbers_that_make_none_are_named() {
        let said = |text: &str| parse(text).unwrap_err().to_string();
        assert!(said("robson:against=worst").starts_with("against is worst; allowed: pytorch, "));
        assert_eq!(said("robson:largest_units=3"), "there is no such adversary: the largest size must be a power of two");
        assert_eq!(said("comb:teeth=0"), "teeth is 0; allowed: 1 to 1048576");
        assert_eq!(said("stream-per-buffer:streams=70000"), "streams is 70000; allowed: 1 to 65535");
        assert!(said("comb:teeth=1000000,tooth_bytes=9GiB").starts_with("the live buffers would take more than"));
        assert!(said("fence:gaps=3").starts_with("fence has no option gaps; its options: cycles, seed, prealloc"));
    }
}
