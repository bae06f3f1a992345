//! `parkade frontier`: how large a batch fits, for each policy, device and way of training?

mod json;
mod model;
mod table;

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io::{IsTerminal, Write};

use anyhow::{Result, bail};
use clap::{Parser, ValueEnum};
use parkade_policies::{CATALOGUE, Named};
use parkade_research::study::largest_batch::{CARDS, CONTEXT_BYTES, Grid, MOST_BATCH, Numbers, Point, card};
use parkade_research::workload::generators::Optimizer;
use parkade_research::workload::generators::transformer::{Checkpointing, Transformer};

use crate::policy_names::policy;
use parkade_terminal::args::Json;
use parkade_terminal::runner::{Command, Form, Lines, Outcome};
use parkade_terminal::{output, progress, size};

/// Find the out-of-memory frontier of training a transformer: the largest batch that fits, per policy.
///
/// A transformer's training is generated from its sizes and run under each policy on simulated devices. For every combination of device,
/// sequence, checkpointing, precision, optimizer and accumulation the largest batch is found by bisection: it fits, and one more sample
/// does not. Whether a batch fits need not be monotone, so some larger batches are tried too, and how often one fits although a smaller
/// one does not is reported. Also shown are the largest batch whose live bytes fit at all, which no policy exceeds, and why the next one
/// fails.
///
/// Devices are cards by name, with the memory that a CUDA program sees in total: A100-40GB (42,298,834,944 bytes, 39.39 GiB, as reported),
/// H100-80GB (81,082 MiB, 79.18 GiB, as reported), H200-141GB (150,109,880,320 bytes, 139.80 GiB, measured); or sizes, which are exact:
/// 80GB are 80,000,000,000 bytes, 80GiB are 85,899,345,920. The driver's context is taken off each device first.
#[derive(Parser)]
#[command(after_help = "Examples:
  parkade frontier --model 7b --devices A100-40GB,H100-80GB,H200-141GB
  parkade frontier --model 7b --devices H100-80GB --checkpointing none,other,sqrt,layer --sequences 2048,8192
  parkade frontier --model layers=24,hidden=2048,heads=16 --devices 24GB --policies pytorch,pytorch-expandable --csv
  parkade frontier --model 7b --precision half,half-master,fp32 --optimizer sgd,adam --json

Exit code: 0 some batch fits somewhere, 1 none does, 2 could not run.")]
pub struct Args {
    /// A preset (gpt2, gpt2-medium, gpt2-large, gpt2-xl, 3b, 7b, 13b), sizes, or both: 7b,layers=16,tied=false. The sizes are layers, hidden,
    /// heads, vocabulary, sequence, ratio, attention (fused, materialized), tied. May be repeated.
    #[arg(long, value_name = "MODEL", default_value = "7b")]
    model: Vec<String>,
    /// The devices' memory: cards by name, or sizes.
    #[arg(long, value_name = "DEVICES", value_delimiter = ',', value_parser = Device::parse, default_value = "A100-40GB,H100-80GB,H200-141GB")]
    devices: Vec<Device>,
    /// Policies by name, or `all`, which leaves out floating-handles and breaking-handles. parkade sweep --list has them.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "all")]
    policies: Vec<String>,
    /// What is recomputed: none, layer, other (every other layer), sqrt, or a number of layers that are recomputed together.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = model::checkpointing, default_value = "none")]
    checkpointing: Vec<Checkpointing>,
    /// Tokens of a sample [default: the model's own].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    sequences: Vec<u64>,
    /// How numbers are stored: half (2 bytes), half-master (plus a 4-byte copy of the weights and states), fp32.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = model::numbers, default_value = "half")]
    precision: Vec<Numbers>,
    /// What updates the weights.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum, default_value = "adam")]
    optimizer: Vec<OptimizerName>,
    /// Micro-batches of a step, over which the batch is split.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1")]
    accumulation: Vec<u64>,
    /// Training steps; the optimizer's states are allocated at the end of the first.
    #[arg(long, value_name = "N", default_value_t = 3)]
    steps: u64,
    /// The largest batch to try.
    #[arg(long, value_name = "N", default_value_t = 4096)]
    most_batch: u64,
    /// What the driver's context takes of each device.
    #[arg(long, value_name = "SIZE", value_parser = size::parse_or_none, allow_hyphen_values = true, default_value_t = CONTEXT_BYTES)]
    context: u64,
    /// Leave out scratch memory and libraries' workspaces, whose lifetimes overlap with those of other memory.
    #[arg(long)]
    no_scratch: bool,
    /// The seed of the sizes of scratch memory.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    json: Json,
    /// Print comma-separated values, one row for each combination.
    #[arg(long, conflicts_with = "json")]
    csv: bool,
}

/// A device's memory, as given and in bytes.
#[derive(Clone)]
struct Device {
    text: String,
    bytes: u64,
}

impl Device {
    fn parse(text: &str) -> Result<Device, String> {
        let text = text.trim();
        let known = || CARDS.map(|card| card.name).join(", ");
        let bytes = match card(text) {
            Some(card) => card.total_bytes,
            None => size::parse(text).map_err(|error| format!("{error}; cards by name: {}", known()))?,
        };
        Ok(Device { text: text.to_owned(), bytes })
    }
}

/// An optimizer by name.
#[derive(Clone, Copy, ValueEnum)]
enum OptimizerName {
    /// Gradient descent: no states.
    Sgd,
    /// One state a parameter.
    Momentum,
    /// Two states a parameter.
    Adam,
}

impl From<OptimizerName> for Optimizer {
    fn from(name: OptimizerName) -> Optimizer {
        match name {
            OptimizerName::Sgd => Optimizer::Sgd,
            OptimizerName::Momentum => Optimizer::Momentum,
            OptimizerName::Adam => Optimizer::Adam,
        }
    }
}

impl Command for Args {
    type Answer = Vec<Point>;

    fn compute(&self) -> Result<Vec<Point>> {
        let grid = grid(self)?;
        let bar = progress_bar(self, &grid);
        let points = grid.walk(&|| bar.inc(1));
        bar.finish_and_clear();
        Ok(points?)
    }

    fn outcome(&self, points: &Vec<Point>) -> Outcome {
        if points.iter().any(|point| point.batch > 0) { Outcome::Good } else { Outcome::CheckFailed }
    }

    fn form(&self) -> Form {
        if self.csv { Form::Data } else { self.json.form() }
    }

    fn text(&self, points: &Vec<Point>, out: &mut dyn Write) -> Result<()> {
        if self.csv { json::csv(out, points) } else { Ok(table::print(out, self, points)?) }
    }

    fn json(&self, points: &Vec<Point>, lines: &mut Lines) -> Result<()> {
        lines.add(&json::Object::of(self, points))
    }
}

fn progress_bar(args: &Args, grid: &Grid) -> progress::Bar {
    let bar = progress::of("combinations", args.json.json || args.csv || !std::io::stderr().is_terminal());
    bar.set_length(grid.points() as u64);
    bar
}

fn grid(args: &Args) -> Result<Grid> {
    let with_scratch = |(name, transformer): (String, Transformer)| {
        (name, Transformer { mixed: !args.no_scratch, seed: args.seed, ..transformer })
    };
    batches(args)?;
    lists(args)?;
    Ok(Grid {
        models: args.model.iter().map(|text| model::model(text).map(with_scratch)).collect::<Result<_>>()?,
        numbers: args.precision.clone(),
        optimizers: args.optimizer.iter().map(|&name| name.into()).collect(),
        checkpointings: args.checkpointing.clone(),
        accumulations: args.accumulation.clone(),
        sequences: args.sequences.clone(),
        devices_bytes: args.devices.iter().map(|device| device.bytes).collect(),
        context_bytes: args.context,
        policies: policies(&args.policies)?,
        steps: args.steps,
        most_batch: args.most_batch,
    })
}

/// Refuses batches and micro-batches that cannot be searched.
fn batches(args: &Args) -> Result<()> {
    let most_micro = args.accumulation.iter().copied().max().unwrap_or(1);
    if args.accumulation.contains(&0) {
        bail!("--accumulation is 0; a step has at least one micro-batch");
    }
    if args.most_batch == 0 || args.most_batch > MOST_BATCH {
        bail!("--most-batch is {}: it can be 1 to {MOST_BATCH}", args.most_batch);
    }
    if args.most_batch < most_micro {
        bail!("--most-batch is {}, below --accumulation {most_micro}: each micro-batch needs a sample", args.most_batch);
    }
    Ok(())
}

/// Refuses duplicates in a list, which would duplicate rows.
fn lists(args: &Args) -> Result<()> {
    once("--model", args.model.iter().map(|model| model.trim()))?;
    once("--devices", args.devices.iter().map(|device| format!("{} bytes", device.bytes)))?;
    once("--checkpointing", args.checkpointing.iter().map(|&way| model::checkpointing_name(way)))?;
    once("--sequences", &args.sequences)?;
    once("--precision", args.precision.iter().map(|numbers| numbers.name()))?;
    once("--optimizer", args.optimizer.iter().map(|&name| format!("{:?}", Optimizer::from(name)).to_lowercase()))?;
    once("--accumulation", &args.accumulation)
}

fn once<T: Display>(option: &str, values: impl IntoIterator<Item = T>) -> Result<()> {
    let mut seen = BTreeSet::new();
    for value in values {
        let value = value.to_string();
        if seen.contains(&value) {
            bail!("{option} has {} twice", output::shorten(&value, 60));
        }
        seen.insert(value);
    }
    Ok(())
}

/// The policies of these names in order, each once.
fn policies(names: &[String]) -> Result<Vec<&'static Named>> {
    let mut policies: Vec<&'static Named> = Vec::new();
    for name in names {
        let meant: Vec<&'static Named> = match name.as_str() {
            "all" => CATALOGUE.iter().collect(),
            name => vec![policy(name)?],
        };
        for policy in meant {
            if policies.iter().all(|known| known.name != policy.name) {
                policies.push(policy);
            }
        }
    }
    Ok(policies)
}
