//! The memory fraction: what it allows, and what it reads back as.

use parkade::device::DeviceBackend;
use parkade::settings::Settings;
use parkade::units::{Bytes, StreamId};

use super::support::{Mode, ensure, fill, holds, once, same, twice};
use crate::backend::{AnyBackend, Needs};
use crate::scripted_allocator::{Request, Stage};
use crate::suite::{Effort, Entry, Evidence, Trouble, Verdict};

/// Tolerance for equal fractions: 2.11 rounds the limit down to whole bytes.
const CLOSE: f64 = 1e-7;
/// Fractions that single precision can represent, like those that the test draws.
const SOME: [f64; 3] = [0.496_256_589_889_526_37, 0.768_221_795_558_929_4, 0.088_477_432_727_813_72];

pub(super) fn entries() -> Vec<Entry> {
    let mut entries = Vec::new();
    let says = "only fractions from 0 to 1 are accepted; with one half, 0.499 of the memory fits and 0.5 does not";
    entries.extend(twice("test_set_per_process_memory_fraction", says, set));
    entries.push(once("test_get_per_process_memory_fraction", "a fraction reads back as it was set", get));
    let says = "the settings string sets the fraction of a new process, and only from 0 to 1";
    entries.push(once("test_allocator_memory_fraction_setting", says, from_the_environment));
    entries
}

fn set(backend: &AnyBackend, mode: Mode, _: &Effort) -> Verdict {
    let mut stage = Stage::new(backend, &Needs::default(), mode.settings(), None)?;
    let mut text = String::new();
    for fraction in [-0.1, 2.0] {
        let refused = stage.core().set_memory_fraction(fraction).err();
        let refused = refused.ok_or_else(|| Trouble::fail(format!("a fraction of {fraction} was accepted")))?;
        text += &format!("{refused}\n");
    }
    let total = stage.core().device().total_memory();
    let free = stage.device().steer().memory_info()?.free;
    if free.get() < total.get() / 2 {
        return Err(Trouble::Skip(format!("half of the device is needed, but only {free} of {total} bytes are free")));
    }
    let tensor = Bytes(4096);
    stage.alloc("tensor", tensor)?.served()?;
    stage.release_cached()?;
    fraction_of(&mut stage, 0.5)?;
    let reserved = stage.core().heap().reserved();
    stage.alloc("most", Bytes((total.get() as f64 * 0.499) as u64).saturating_sub(reserved))?.served()?;
    stage.free("most")?;
    stage.release_cached()?;
    let refusal = stage.alloc("half", Bytes((total.get() as f64 * 0.5) as u64))?.refusal()?;
    ensure(refusal.contains("out of memory"), || format!("the message is: {refusal}"))?;
    fill(&stage, "tensor", tensor, 1, StreamId::DEFAULT)?;
    let address = stage.address("tensor")?;
    ensure(holds(&stage, address, 4096, 1)?, || "the tensor is not what was written".to_owned())?;
    text += &stage.picture();
    stage.finish()?;
    Ok(Evidence { text, operations: 6, ..Evidence::default() })
}

fn get(backend: &AnyBackend) -> Verdict {
    let mut stage = Stage::new(backend, &Needs::default(), "", None)?;
    same("the initial fraction", stage.core().memory_fraction(), 1.0)?;
    let mut operations = 0;
    for fraction in [1.0, 0.0].into_iter().chain(SOME) {
        fraction_of(&mut stage, fraction)?;
        let found = stage.core().memory_fraction();
        let tolerance = if fraction == 0.0 || fraction == 1.0 { 0.0 } else { CLOSE };
        ensure((found - fraction).abs() <= tolerance, || format!("{fraction} reads back as {found}"))?;
        operations += 1;
    }
    stage.finish()?;
    Ok(Evidence::operations(operations))
}

fn fraction_of(stage: &mut Stage, fraction: f64) -> Result<(), Trouble> {
    stage.core().set_memory_fraction(fraction).map_err(|error| Trouble::fail(error.to_string()))
}

fn from_the_environment(backend: &AnyBackend) -> Verdict {
    let mut text = String::new();
    for (value, expected) in [("0.0", 0.0), ("0.5", 0.5), ("1.0", 1.0)] {
        let string = format!("per_process_memory_fraction:{value}");
        let settings = Settings::from_environment(&string).map_err(|error| Trouble::fail(error.to_string()))?;
        let mut stage = Stage::new(backend, &Needs::default(), &string, None)?;
        fraction_of(&mut stage, settings.per_process_memory_fraction)?;
        let found = stage.core().memory_fraction();
        ensure((found - expected).abs() <= CLOSE, || format!("{string} gives a fraction of {found}"))?;
        let served = stage.alloc("a", Bytes(1))? == Request::Served;
        same(&string, served, expected > 0.0)?;
        stage.finish()?;
    }
    for value in ["-0.1", "1.1"] {
        let refused = Settings::from_environment(&format!("per_process_memory_fraction:{value}"));
        let message = refused.err().map(|error| error.message().to_owned()).unwrap_or_default();
        let is_said = message.contains("per_process_memory_fraction is invalid");
        ensure(is_said, || format!("a fraction of {value} in the settings: {message:?}"))?;
        text += &format!("{value}: {message}\n");
    }
    Ok(Evidence { text, operations: 5, ..Evidence::default() })
}
