//! Fractions of every kind: none, all, one bit less than all, halves of a byte, and what is no fraction.

use parkade::Allocator;
use parkade::policy::PyTorch;
use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::units::Bytes;
use proptest::prelude::*;

use crate::core_laws::paper::Paper;
use crate::core_laws::run::{Draws, Outcome, run};
use crate::law::{Broken, Law, ensure};
use crate::reference_model::Reference;

/// Fractions for each device.
const FRACTIONS: usize = 12;

pub(crate) fn check(draws: &Draws) -> Outcome {
    let total = prop_oneof![
        prop::sample::select(vec![
            1,
            2,
            3,
            511,
            512,
            513,
            1 << 20,
            (1 << 36) + 1,
            150_110_011_392,
            1 << 53,
            (1 << 53) + 1,
            1 << 62
        ]),
        (0_u32..63, any::<u64>()).prop_map(|(bits, number)| (number >> bits >> 1).max(1)),
    ];
    let strategy = (any::<bool>(), total, prop::collection::vec(fraction(), FRACTIONS));
    run(draws, 351, &strategy, |(is_newer, total, fractions)| {
        one(*is_newer, *total, fractions)?;
        Ok(fractions.len() as u64)
    })
}

fn fraction() -> impl Strategy<Value = f64> {
    let borders = vec![
        0.0,
        -0.0,
        0.5,
        1.0,
        1.0 - f64::EPSILON / 2.0,
        1.0 - f64::EPSILON,
        1.0 + f64::EPSILON,
        0.999_999_999_999,
        f64::MIN_POSITIVE,
        -f64::MIN_POSITIVE,
        5e-324,
        -5e-324,
        1.5,
        2.0,
        -1.0,
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
    ];
    prop_oneof![
        3 => prop::sample::select(borders),
        3 => 0.0..1.0_f64,
        2 => (0_u64..1 << 20, 1_u64..1 << 20).prop_map(|(part, whole)| part as f64 / whole as f64),
        1 => any::<f64>(),
    ]
}

fn one(is_newer: bool, total: u64, fractions: &[f64]) -> Result<(), Broken> {
    let profile = if is_newer { &Profile::PYTORCH_2_15 } else { &Profile::PYTORCH_2_11 };
    let mut core = Allocator::new(Paper::new(total), PyTorch::of(profile, Settings::default()), Vec::new());
    let mut reference = Reference::new(profile, Settings::default(), total, 0);
    for &fraction in fractions {
        let (answer, is_legal) = (core.set_memory_fraction(fraction), reference.set_fraction(fraction));
        let same = answer.is_ok() == is_legal && core.heap().limit().map(Bytes::get) == reference.limit();
        ensure(Law::Limit, same, || {
            let limit = core.heap().limit();
            format!(
                "{fraction} of {total} bytes is answered {answer:?}, the limit is {limit:?}, expected {:?}",
                reference.limit()
            )
        })?;
        let told = reference.limit().map_or(1.0, |limit| limit as f64 / total as f64);
        let seen = core.memory_fraction();
        ensure(Law::Limit, seen == told, || {
            format!("after {fraction} of {total} bytes the fraction is {seen}, expected {told}")
        })?;
        if let Err(error) = answer {
            let begins = error.to_string().starts_with("invalid fraction:");
            ensure(Law::Limit, begins && error.0.to_bits() == fraction.to_bits(), || {
                format!("{fraction} is refused as {error:?}")
            })?;
        }
    }
    Ok(())
}
