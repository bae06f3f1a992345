//! The adversaries as generators. Robson's reacts to where a policy puts things, so that its program is one made against a named policy;
//! the others are the same for all.

use parkade_policies::{CATALOGUE, Named, named};

use super::{Done, Generator, Key, read};
use crate::workload::adversary::{AttackError, Robson, best_fit_attack, comb, fence, robson, stream_per_buffer};
use crate::workload::error::within;
use crate::workload::{MAX_BYTES, Workload, WorkloadError};

const MIB: u64 = 1 << 20;

/// Robson's adversary, playing against a policy. The unit is a multiple of every policy's page, so that few round it.
pub(super) struct RobsonAgainst {
    numbers: Robson,
    against: &'static Named,
}

impl RobsonAgainst {
    /// With the sizes of docs/bounds.md, against the policy of this name, or the first if there is none.
    pub(super) fn new(against: &str) -> RobsonAgainst {
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
                let allowed = || CATALOGUE.iter().map(|policy| policy.name).collect::<Vec<_>>().join(", ");
                let refused = || WorkloadError::Option { option: key, value: value.into(), allowed: allowed() };
                self.against = named(value).ok_or_else(refused)?;
            }
            "unit_bytes" => self.numbers.unit_bytes = read::bytes(key, value)?,
            "largest_units" => self.numbers.largest_units = read::number(key, value)?,
            "live_units" => self.numbers.live_units = read::number(key, value)?,
            _ => nothing_is_random(key, value)?,
        }
        Ok(())
    }

    fn make(&self) -> Result<Workload, WorkloadError> {
        let attack = robson((self.against.make)(), self.numbers)?;
        let says = format!("{}; played against {}", attack.workload.says, self.against.name);
        bounded(Workload { says, ..attack.workload })
    }
}

/// A pattern made of up to three numbers.
pub(super) struct Pattern {
    keys: [Key; 3],
    values: [u64; 3],
    make: fn([u64; 3]) -> Result<Workload, WorkloadError>,
}

/// A pattern with fewer numbers has no key in the places behind.
const NONE: Key = "";

impl Pattern {
    pub(super) fn best_fit_attack() -> Pattern {
        Pattern {
            keys: ["gaps", "largest_units", "unit_bytes"],
            values: [120, 24, 160 * MIB],
            make: |[gaps, largest, unit]| {
                // More gaps would be more events than there may be.
                let gaps = count("gaps", gaps, 1700)?;
                Ok(best_fit_attack(gaps, largest, unit)?)
            },
        }
    }

    pub(super) fn comb() -> Pattern {
        Pattern {
            keys: ["teeth", "tooth_bytes", NONE],
            values: [64, 20 * MIB, 0],
            make: |[teeth, bytes, _]| Ok(comb(count("teeth", teeth, 1 << 20)?, bytes)?),
        }
    }

    pub(super) fn fence() -> Pattern {
        Pattern {
            keys: ["cycles", NONE, NONE],
            values: [100, 0, 0],
            make: |[cycles, ..]| Ok(fence(count("cycles", cycles, 1_000_000)?)?),
        }
    }

    pub(super) fn stream_per_buffer() -> Pattern {
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
            None => nothing_is_random(key, value),
            Some(place) => {
                self.values[place] = if key.ends_with("bytes") { read::bytes(key, value)? } else { read::number(key, value)? };
                Ok(())
            }
        }
    }

    fn make(&self) -> Result<Workload, WorkloadError> {
        (self.make)(self.values).and_then(bounded)
    }
}

fn nothing_is_random(key: Key, value: &str) -> Done {
    read::number(key, value).map(drop)
}

fn count(option: Key, value: u64, most: u64) -> Result<u32, WorkloadError> {
    within(option, value, 1, most)?;
    u32::try_from(value).map_err(|_| WorkloadError::TooManyEvents)
}

fn bounded(workload: Workload) -> Result<Workload, WorkloadError> {
    if workload.load_bytes(1) > MAX_BYTES {
        return Err(WorkloadError::TooLarge { what: "all that lives at once" });
    }
    Ok(workload)
}

impl From<AttackError> for WorkloadError {
    fn from(error: AttackError) -> WorkloadError {
        WorkloadError::Attack(error)
    }
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
        for name in ["first-fit", "pytorch", "buddy"] {
            let policy = named(name).unwrap();
            let described = parse(&format!("robson:against={name},unit_bytes=32MiB,live_units=64,largest_units=8")).unwrap();
            let attack = robson((policy.make)(), numbers).unwrap();
            assert!(described.events == attack.workload.events, "{name}");
            assert!(described.says.ends_with(&format!("; played against {name}")), "{}", described.says);
            let outcome = run(&described, (policy.make)(), &RunOptions::plenty());
            assert_eq!(outcome.peak_reserved_bytes, attack.reserved_bytes, "{name}: it does again what it did");
        }
        let against = |unit: &str, name: &str| {
            parse(&format!("robson:unit_bytes={unit},live_units=64,largest_units=8,against={name}")).unwrap()
        };
        // Nobody's gaps are large enough for what is asked next, so only who rounds puts things elsewhere.
        let own = against("32MiB", "first-fit");
        assert!(CATALOGUE.iter().all(|policy| against("32MiB", policy.name).events == own.events));
        assert!(against("160MiB", "buddy").events != against("160MiB", "first-fit").events);
        let default = parse("robson:unit_bytes=32MiB,live_units=64,largest_units=8").unwrap();
        assert!(default.events == own.events && default.says == own.says);
        let outcome = run(&own, (named("first-fit").unwrap().make)(), &RunOptions::plenty());
        let forced = powers_of_two(64, 8).unwrap() * numbers.unit_bytes;
        assert!(outcome.peak_reserved_bytes >= forced, "{} of {forced}", outcome.peak_reserved_bytes);
    }

    #[test]
    fn the_other_adversaries_are_made_of_their_numbers() {
        for (text, workload) in [
            ("best-fit-attack:gaps=9,largest_units=8,unit_bytes=2MiB", best_fit_attack(9, 8, 2 * MIB)),
            ("best-fit-attack", best_fit_attack(120, 24, 160 * MIB)),
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
        assert!(said("robson:against=worst").starts_with("against is worst; it can be pytorch, "));
        assert_eq!(said("robson:largest_units=3"), "no such adversary: its largest size is no power of two");
        assert_eq!(said("best-fit-attack:gaps=5000"), "gaps is 5000; it can be 1 to 1700");
        assert_eq!(said("comb:teeth=0"), "teeth is 0; it can be 1 to 1048576");
        assert_eq!(said("stream-per-buffer:streams=70000"), "streams is 70000; it can be 1 to 65535");
        assert!(said("comb:teeth=1000000,tooth_bytes=9GiB").starts_with("all that lives at once would take more than"));
        assert!(said("fence:gaps=3").starts_with("fence has no option gaps; it has cycles, seed, prealloc"));
    }
}
