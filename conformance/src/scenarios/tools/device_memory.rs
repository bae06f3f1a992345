//! D8 and D9: what the driver has given out, and what it costs to give it back on a schedule.

use parkade::device::DeviceBackend as _;
use std::time::Instant;

use crate::backend::{AnyBackend, TestDevice};
use crate::suite::{Entry, Evidence, Trouble, Verdict};
use parkade::policy::PyTorch;
use parkade::settings::Settings;
use parkade_research::study::{Outcome, RunOptions, run};
use parkade_research::workload::generators::Optimizer;
use parkade_research::workload::generators::cnn::Cnn;
use parkade_research::workload::{Event, Workload};

use crate::scenarios::story::{Story, claim, failed, format_bytes, mib, scenario};

pub(super) fn entries(backend: &AnyBackend) -> Vec<Entry> {
    let mut entries = vec![
        scenario(
            "D8",
            "what the driver has given out is reserved plus the CUDA context: it follows reserved, not allocated",
            used,
        ),
        scenario(
            "D9",
            "emptying the cache after each step: many driver calls that wait for the device, for the same peak",
            schedule,
        ),
    ];
    if backend.is_simulated() {
        let says =
            "ResNet-50 trained with the cache emptied never, every fifth step and every step: calls, and time in the driver";
        entries.push(scenario("D9/training", says, |_: &AnyBackend| training()));
    }
    entries
}

/// What the driver has given out, as nvidia-smi shows it.
fn given_out(story: &mut Story) -> Result<i128, Trouble> {
    let memory = story.stage.device().steer().memory_info()?;
    Ok(i128::from(memory.total.get()) - i128::from(memory.free.get()))
}

fn used(backend: &AnyBackend) -> Verdict {
    let mut story = Story::new(backend, "", None)?;
    let context = given_out(&mut story)?;
    story.measure(&format!("used before the first allocation: {}", format_bytes(context.unsigned_abs() as u64)));
    story.say(&format!("{:<24} {:>12} {:>12} {:>22}", "", "allocated", "reserved", "used by the driver"));
    for (what, allocated, reserved) in
        [("before", 0, 0), ("3 tensors of 200 MiB", 600, 600), ("two of them freed", 200, 600), ("empty_cache", 200, 200)]
    {
        match what {
            "before" => {}
            "empty_cache" => story.stage.release_cached()?,
            "two of them freed" => ["one", "three"].into_iter().try_for_each(|name| story.free(name))?,
            _ => ["one", "two", "three"].into_iter().try_for_each(|name| story.alloc(name, mib(200)))?,
        }
        let figures = story.figures();
        claim((figures.allocated, figures.reserved) == (allocated << 20, reserved << 20), || format!("{what}: {figures:?}"))?;
        let more = given_out(&mut story)? - context;
        claim(more == i128::from(figures.reserved), || format!("{what}: the driver has given out {more} bytes more"))?;
        story.say(&format!("{what:<24} {allocated:>8} MiB {reserved:>8} MiB {:>22}", format!("context + {reserved} MiB")));
    }
    story.finish()
}

/// Steps of the program, and tensors of a step.
const STEPS: u64 = 20;
const TENSORS: [u64; 4] = [256, 128, 64, 32];
/// How long the kernels of a step run.
const STEP_NS: u64 = 2_000_000;

/// Runs the program. Gives the calls of the driver for memory, and the time in microseconds.
fn run_steps(backend: &AnyBackend, empties: bool) -> Result<(usize, usize, f64, Evidence), Trouble> {
    let mut story = Story::new(backend, "", None)?;
    let stream = story.stage.streams()[1];
    story.alloc("weights", mib(512))?;
    let _ = story.stage.calls();
    let clock = |story: &Story| story.stage.device().steer().insight().map(|device| device.now_ns());
    let (start, start_ns) = (Instant::now(), clock(&story));
    for _ in 0..STEPS {
        for size in TENSORS {
            story.alloc(&format!("{size} MiB"), mib(size))?;
        }
        story.stage.device().steer().spin(stream, STEP_NS)?;
        for size in TENSORS {
            story.free(&format!("{size} MiB"))?;
        }
        if empties {
            story.stage.release_cached()?;
        }
    }
    story.stage.device().steer().settle();
    let took_ns = match (start_ns, clock(&story)) {
        (Some(start), Some(end)) => (end - start) as f64,
        _ => start.elapsed().as_nanos() as f64,
    };
    let calls = story.stage.calls();
    let count = |name: &str| calls.iter().filter(|call| call.split(' ').next() == Some(name)).count();
    let (mallocs, frees) = (count("cudaMalloc"), count("cudaFree"));
    let peak = story.stage.stats().family(parkade::stats::Family::ReservedBytes).all.peak;
    claim(peak == 992 << 20, || format!("{peak} bytes were reserved at most"))?;
    Ok((mallocs, frees, took_ns / 1000.0, story.finish()?))
}

fn schedule(backend: &AnyBackend) -> Verdict {
    let (mallocs, frees, plain_us, plain) = run_steps(backend, false)?;
    let (more_mallocs, more_frees, emptied_us, emptied) = run_steps(backend, true)?;
    let tensors = TENSORS.len();
    claim((mallocs, frees) == (tensors, 0), || format!("{mallocs} mallocs and {frees} frees with the cache"))?;
    let each = STEPS as usize * tensors;
    claim((more_mallocs, more_frees) == (each, each), || format!("{more_mallocs} mallocs and {more_frees} frees without it"))?;
    let text = format!(
        "{STEPS} steps of {tensors} tensors beside 512 MiB of weights, 992.00 MiB reserved at most either way\n\
         never emptied:          {mallocs:>3} cudaMalloc, {frees:>3} cudaFree\n\
         emptied after each step:{more_mallocs:>4} cudaMalloc, {more_frees:>3} cudaFree, each of which waits for the device\n"
    );
    let measured = format!(
        "kernels of 2 ms a step, in microseconds a step: {:.0} never emptied, {:.0} emptied after each step\n",
        plain_us / STEPS as f64,
        emptied_us / STEPS as f64
    );
    Ok(Evidence { text, measured, operations: plain.operations + emptied.operations })
}

/// ResNet-50 on 32 images a step, with the cache emptied after each step whose number is a multiple of `every`.
fn resnet(every: Option<usize>) -> Result<Workload, Trouble> {
    // The generator empties the cache before each batch size, so each step is one.
    let cnn = Cnn { batches: vec![32; 10], empties_cache: true, optimizer: Optimizer::Momentum, ..Cnn::default() };
    let mut workload = cnn.workload().map_err(failed)?;
    let mut step = 0;
    workload.events.retain(|event| {
        let is_emptying = *event == Event::EmptyCache;
        step += usize::from(is_emptying);
        // The first one comes before the first step, when there is nothing to release.
        !is_emptying || every.is_some_and(|every| step > 1 && (step - 1) % every == 0)
    });
    Ok(workload)
}

fn training() -> Verdict {
    let mut text = format!(
        "ResNet-50, 10 steps of 32 images\n{:<16} {:>14} {:>10} {:>16} {:>16}\n",
        "cache emptied", "peak reserved", "calls", "in the driver", "waiting"
    );
    let mut outcomes: Vec<Outcome> = Vec::new();
    for (name, every) in [("never", None), ("every 5 steps", Some(5)), ("every step", Some(1))] {
        let policy = Box::new(PyTorch::new(Settings::default()));
        let outcome = run(&resnet(every)?, policy, &RunOptions::new(140 << 30));
        claim(outcome.fits(), || format!("{name}: {:?}", outcome.ending))?;
        let ms = |ns: u64| format!("{:.1} ms", ns as f64 / 1e6);
        let (reserved, calls) = (format_bytes(outcome.peak_reserved_bytes), outcome.driver_calls);
        let (driver, waited) = (ms(outcome.driver_ns), ms(outcome.waited_ns));
        text += &format!("{name:<16} {reserved:>14} {calls:>10} {driver:>16} {waited:>16}\n");
        outcomes.push(outcome);
    }
    let grows = |get: fn(&Outcome) -> u64| outcomes.windows(2).all(|pair| get(&pair[0]) < get(&pair[1]));
    claim(grows(|outcome| outcome.driver_calls) && grows(|outcome| outcome.driver_ns), || text.clone())?;
    Ok(Evidence::text(text))
}
