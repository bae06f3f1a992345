//! Random lengths and times: statrs' inverse distribution functions, applied to our seeded random numbers.
//!
//! On one machine, the same seed produces the same numbers. Between machines, the last bit of a logarithm may differ, in
//! which case a length may differ by one.

use statrs::distribution::{ContinuousCDF, Exp, LogNormal};

use super::options::{self, Key, WorkloadError, within, within_real};
use crate::packing::random::Random;

/// A distribution of lengths. A drawn length is limited to the range from 1 to the maximum that is allowed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Lengths {
    /// All lengths are the same.
    Fixed(u64),
    /// All lengths in a range, with equal probability.
    Uniform {
        /// The shortest.
        least: u64,
        /// The longest.
        most: u64,
    },
    /// The logarithm is normally distributed, as is roughly true of sentences and prompts.
    LogNormal {
        /// The median: half of the lengths are below it.
        median: f64,
        /// The standard deviation of the logarithm.
        sigma: f64,
    },
    /// Exponentially distributed: short lengths are more likely.
    Exponential {
        /// The mean.
        mean: f64,
    },
}

impl Lengths {
    /// Creates a sampler that draws lengths up to `most`.
    pub(super) fn sampler(self, option: &'static str, most: u64) -> Result<Sampler, WorkloadError> {
        within(option, most, 1, 1 << 40)?;
        let kind = match self {
            Lengths::Fixed(length) => {
                within(option, length, 1, most)?;
                Kind::Uniform(length, length)
            }
            Lengths::Uniform { least, most: highest } => {
                within(option, least, 1, most)?;
                within(option, highest, least, most)?;
                Kind::Uniform(least, highest)
            }
            Lengths::LogNormal { median, sigma } => {
                within_real(option, median, 1.0, most as f64)?;
                within_real(option, sigma, 1e-6, 10.0)?;
                let refused = |_| WorkloadError::Option { option, value: format!("{self:?}"), allowed: "a distribution".into() };
                Kind::LogNormal(LogNormal::new(median.ln(), sigma).map_err(refused)?)
            }
            Lengths::Exponential { mean } => Kind::Exponential(exponential(option, mean)?),
        };
        Ok(Sampler { kind, most })
    }
}

/// Reads a distribution from the value of an option.
pub(super) fn read(option: Key, value: &str) -> Result<Lengths, WorkloadError> {
    let parts: Vec<&str> = value.split('/').collect();
    let (number, real) = (options::number, options::real);
    match parts[..] {
        ["fixed", length] => Ok(Lengths::Fixed(number(option, length)?)),
        ["uniform", least, most] => Ok(Lengths::Uniform { least: number(option, least)?, most: number(option, most)? }),
        ["lognormal", median, sigma] => Ok(Lengths::LogNormal { median: real(option, median)?, sigma: real(option, sigma)? }),
        ["exponential", mean] => Ok(Lengths::Exponential { mean: real(option, mean)? }),
        _ => options::refused(option, value, "fixed/LENGTH, uniform/LEAST/MOST, lognormal/MEDIAN/SIGMA or exponential/MEAN"),
    }
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Uniform(u64, u64),
    LogNormal(LogNormal),
    Exponential(Exp),
}

/// Draws lengths.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sampler {
    kind: Kind,
    most: u64,
}

impl Sampler {
    pub(super) fn draw(&self, random: &mut Random) -> u64 {
        let length = match self.kind {
            Kind::Uniform(least, most) => least + ((u128::from(random.bits()) * u128::from(most - least + 1)) >> 64) as u64,
            Kind::LogNormal(distribution) => distribution.inverse_cdf(random.unit()) as u64,
            Kind::Exponential(distribution) => distribution.inverse_cdf(random.unit()) as u64,
        };
        length.clamp(1, self.most)
    }
}

/// Returns the exponential distribution, for the time between arrivals in a Poisson process or for a length.
pub(super) fn exponential(option: &'static str, mean: f64) -> Result<Exp, WorkloadError> {
    within_real(option, mean, 1e-6, 1e12)?;
    Exp::new(1.0 / mean).map_err(|_| WorkloadError::Option { option, value: mean.to_string(), allowed: "a positive mean".into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(lengths: Lengths, most: u64) -> Vec<u64> {
        let sampler = lengths.sampler("lengths", most).unwrap();
        let mut random = Random::new(7);
        let mut drawn: Vec<u64> = (0..10_000).map(|_| sampler.draw(&mut random)).collect();
        drawn.sort_unstable();
        drawn
    }

    #[test]
    fn lengths_are_distributed_as_they_say() {
        assert_eq!(drawn(Lengths::Fixed(5), 9), [5; 10_000]);
        let uniform = drawn(Lengths::Uniform { least: 3, most: 6 }, 9);
        assert_eq!((uniform[0], uniform[2400], uniform[2600], uniform[9999]), (3, 3, 4, 6));
        let log_normal = drawn(Lengths::LogNormal { median: 200.0, sigma: 1.0 }, 2000);
        assert!(
            log_normal[5000].abs_diff(200) < 10 && log_normal[8413].abs_diff(544) < 40,
            "{} {}",
            log_normal[5000],
            log_normal[8413]
        );
        assert_eq!((log_normal[0].max(1), log_normal[9999]), (log_normal[0], 2000));
        let exponential = drawn(Lengths::Exponential { mean: 100.0 }, 1 << 20);
        assert!((exponential.iter().sum::<u64>() / 10_000).abs_diff(100) < 5);
    }

    #[test]
    fn bad_parameters_are_errors() {
        for (lengths, most) in [
            (Lengths::Fixed(0), 9),
            (Lengths::Fixed(10), 9),
            (Lengths::Uniform { least: 4, most: 3 }, 9),
            (Lengths::LogNormal { median: f64::NAN, sigma: 1.0 }, 9),
            (Lengths::LogNormal { median: 3.0, sigma: -1.0 }, 9),
            (Lengths::Exponential { mean: 0.0 }, 9),
            (Lengths::Fixed(1), 1 << 60),
        ] {
            let error = lengths.sampler("lengths", most).unwrap_err();
            assert!(matches!(error, WorkloadError::Option { option: "lengths", .. }), "{error}");
        }
    }
}
