//! A residual convolutional network trained with growing batch sizes, like torchvision's ResNet-50 in the program behind the
//! recording `resnet50_sweep` (scenario C5).
//!
//! The network has a stem, four stages of bottleneck blocks, pooling and a linear layer. Batch normalization keeps its input
//! and two statistics per channel; rectifiers and residual sums work in place. For each batch size, the program empties the
//! cache, runs forward and backward once, and adds to the existing gradients. The scratch memory of convolutions is cuDNN's
//! choice and depends on the GPU: it is left out unless [`Cnn::mixed`] is set.
//!
//! The generated peaks, rounded to 512 bytes, next to `allocated_bytes.all.peak` of `resnet50_sweep.expandable` (where a
//! block is no larger than its rounded request), from the recordings' steps.jsonl; made by the test
//! `the_peaks_are_nearly_the_recorded_ones`:
//!
//! | batch | recorded | generated | error |
//! |---|---|---|---|
//! | 1 | 341513728 | 336246272 | -1.54 % |
//! | 2 | 463337472 | 453498368 | -2.12 % |
//! | 4 | 634738688 | 624948736 | -1.54 % |
//! | 8 | 977541120 | 968619520 | -0.91 % |
//! | 16 | 1664718848 | 1660347904 | -0.26 % |
//! | 32 | 3047613952 | 3047613952 | +0.00 % |
//! | 64 | 5822146048 | 5822146048 | +0.00 % |
//!
//! At small batch sizes, the missing part is a convolution's scratch memory at the peak.

use super::autograd::{Backward, Block, Engine, Operation, Plan, Surroundings};
use super::options::{self, Done, Generator, Key, WorkloadError, bytes_of, within};
use super::training::{BatchBytes, Optimizer, Training, Updating, optimizer};
use crate::workload::{Event, Workload};

/// A network and its batch sizes. The default is the recorded program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cnn {
    /// The number of blocks in each of the four stages.
    pub stages: [u64; 4],
    /// The number of channels after the stem.
    pub width: u64,
    /// The height and width of an image.
    pub image: u64,
    /// The number of classes.
    pub classes: u64,
    /// The batch sizes, in order.
    pub batches: Vec<u64>,
    /// The number of steps per batch size.
    pub repeats: u64,
    /// Whether the cache is emptied before each batch size.
    pub empties_cache: bool,
    /// The optimizer that updates the weights. With an optimizer that keeps states, gradients are freed after each step.
    pub optimizer: Optimizer,
    /// Mixed lifetimes: convolutions need scratch memory, and batches arrive early.
    pub mixed: bool,
    /// The seed of the sizes of scratch memory.
    pub seed: u64,
}

impl Default for Cnn {
    fn default() -> Cnn {
        Cnn {
            stages: [3, 4, 6, 3],
            width: 64,
            image: 224,
            classes: 1000,
            batches: vec![1, 2, 4, 8, 16, 32, 64],
            repeats: 1,
            empties_cache: true,
            optimizer: Optimizer::Sgd,
            mixed: false,
            seed: 0,
        }
    }
}

impl Cnn {
    /// Returns `resnet50`, `resnet101` or `resnet152` (He et al. 2015, table 1), or `None` for all other names.
    #[must_use]
    pub fn preset(name: &str) -> Option<Cnn> {
        let stages = match name {
            "resnet50" => [3, 4, 6, 3],
            "resnet101" => [3, 4, 23, 3],
            "resnet152" => [3, 8, 36, 3],
            _ => return None,
        };
        Some(Cnn { stages, ..Cnn::default() })
    }

    /// Checks every option.
    fn check(&self) -> Result<(), WorkloadError> {
        self.stages.iter().try_for_each(|&blocks| within("stages", blocks, 1, 1 << 10))?;
        within("width", self.width, 1, 1 << 16)?;
        within("image", self.image, 32, 1 << 16)?;
        within("classes", self.classes, 1, 1 << 32)?;
        within("batches", self.batches.len() as u64, 1, 1 << 20)?;
        self.batches.iter().try_for_each(|&batch| within("batches", batch, 1, 1 << 32))?;
        within("repeats", self.repeats, 1, 1_000_000)
    }
}

impl Generator for Cnn {
    fn keys(&self) -> Vec<Key> {
        vec!["preset", "stages", "width", "image", "classes", "batches", "repeats", "empties_cache", "optimizer", "mixed", "seed"]
    }

    fn set(&mut self, key: Key, value: &str) -> Done {
        match key {
            "preset" => {
                let refused = || options::refused(key, value, "resnet50, resnet101, resnet152");
                *self = Cnn::preset(value).map_or_else(refused, Ok)?;
            }
            "stages" => self.stages = options::numbers(key, value)?,
            "width" => self.width = options::number(key, value)?,
            "image" => self.image = options::number(key, value)?,
            "classes" => self.classes = options::number(key, value)?,
            "batches" => self.batches = options::list(key, value)?,
            "repeats" => self.repeats = options::number(key, value)?,
            "empties_cache" => self.empties_cache = options::switch(key, value)?,
            "optimizer" => self.optimizer = optimizer(key, value)?,
            "mixed" => self.mixed = options::switch(key, value)?,
            _ => self.seed = options::number(key, value)?,
        }
        Ok(())
    }

    fn make(&self) -> Result<Workload, WorkloadError> {
        self.workload()
    }
}

/// The size of a number, in bytes.
const ELEMENT_BYTES: u64 = 4;
/// The size of an index in max pooling, in bytes.
const INDEX_BYTES: u64 = 8;
/// The ratio of a bottleneck's output width to its inner width.
const EXPANSION: u64 = 4;

/// The shape of a batch of images anywhere in the network.
#[derive(Clone, Copy)]
struct Shape {
    batch: u64,
    channels: u64,
    side: u64,
}

impl Shape {
    fn bytes(self) -> Result<u64, WorkloadError> {
        bytes_of("an activation", &[self.batch, self.channels, self.side, self.side, ELEMENT_BYTES])
    }
}

impl Cnn {
    /// Returns the sizes of a batch.
    pub(super) fn batch_bytes(&self, batch: u64) -> Result<BatchBytes, WorkloadError> {
        Ok(BatchBytes { input: Shape { batch, channels: 3, side: self.image }.bytes()?, targets: 0 })
    }

    /// Returns the channels of each batch normalization.
    fn normalized_channels(&self) -> Vec<u64> {
        let mut channels = vec![self.width];
        for (stage, &blocks) in self.stages.iter().enumerate() {
            let inner = self.width << stage;
            for block in 0..blocks {
                channels.extend([inner, inner, inner * EXPANSION]);
                channels.extend((block == 0).then_some(inner * EXPANSION));
            }
        }
        channels
    }

    /// Returns the network for one batch size.
    pub(super) fn plan(&self, batch: u64) -> Result<Plan, WorkloadError> {
        let mut plan = Plan::default();
        let image = Shape { batch, channels: 3, side: self.image };
        let (stem, mut shape) = self.stem(image)?;
        plan.push(stem);
        for (stage, &blocks) in self.stages.iter().enumerate() {
            for block in 0..blocks {
                let stride = if block == 0 && stage > 0 { 2 } else { 1 };
                let (bottleneck, output) = self.bottleneck(shape, self.width << stage, stride)?;
                plan.push(bottleneck);
                shape = output;
            }
        }
        plan.push(self.head(shape)?);
        Ok(plan)
    }

    fn stem(&self, image: Shape) -> Result<(Block, Shape), WorkloadError> {
        let mut block = Block::new(image.bytes()?);
        let half = Shape { channels: self.width, side: image.side.div_ceil(2), ..image };
        let convolved = convolve(&mut block, 0, (image, half), 7)?;
        let active = normalize(&mut block, convolved, half, true)?;
        let quarter = Shape { side: half.side.div_ceil(2), ..half };
        let indices = quarter.bytes()? / ELEMENT_BYTES * INDEX_BYTES;
        block.push(Operation::new(&[active], quarter.bytes()?).keeps_inputs().side(indices));
        Ok((block, quarter))
    }

    fn bottleneck(&self, input: Shape, inner: u64, stride: u64) -> Result<(Block, Shape), WorkloadError> {
        let mut block = Block::new(input.bytes()?);
        let narrow = Shape { channels: inner, ..input };
        let strided = Shape { side: input.side.div_ceil(stride), ..narrow };
        let output = Shape { channels: inner * EXPANSION, ..strided };
        let convolved = convolve(&mut block, 0, (input, narrow), 1)?;
        let active = normalize(&mut block, convolved, narrow, true)?;
        let convolved = convolve(&mut block, active, (narrow, strided), 3)?;
        let active = normalize(&mut block, convolved, strided, true)?;
        let convolved = convolve(&mut block, active, (strided, output), 1)?;
        let normal = normalize(&mut block, convolved, output, false)?;
        let mut shortcut = 0;
        if input.channels != output.channels || stride > 1 {
            let convolved = convolve(&mut block, 0, (input, output), 1)?;
            shortcut = normalize(&mut block, convolved, output, false)?;
        }
        let sum = block.push(Operation::sum_in_place(normal, shortcut));
        block.push(Operation::in_place(sum).keeps_output());
        Ok((block, output))
    }

    fn head(&self, shape: Shape) -> Result<Block, WorkloadError> {
        let mut block = Block::new(shape.bytes()?);
        let pooled = bytes_of("an activation", &[shape.batch, shape.channels, ELEMENT_BYTES])?;
        let pooled = block.push(Operation::new(&[0], pooled).keeps_inputs());
        let scores = bytes_of("the scores", &[shape.batch, self.classes, ELEMENT_BYTES])?;
        let weight = bytes_of("a weight", &[shape.channels, self.classes, ELEMENT_BYTES])?;
        let parameters = [weight, self.classes * ELEMENT_BYTES];
        let work = [2, shape.batch, shape.channels, self.classes];
        let scores = block.push(Operation::linear(pooled, scores, &parameters, &work));
        // The gradient of a sum is one value, expanded to many.
        block.push(Operation::new(&[scores], ELEMENT_BYTES).backward(Backward::Passes));
        Ok(block)
    }
}

/// Appends a convolution without a bias, which keeps its input. It needs at most as much scratch memory as its input and
/// output together.
fn convolve(block: &mut Block, input: usize, (from, to): (Shape, Shape), kernel: u64) -> Result<usize, WorkloadError> {
    let bytes = to.bytes()?;
    let weight = bytes_of("a weight", &[from.channels, to.channels, kernel, kernel, ELEMENT_BYTES])?;
    let work = [2, bytes / ELEMENT_BYTES, from.channels, kernel, kernel];
    let scratch = from.bytes()?.saturating_add(bytes);
    Ok(block.push(Operation::new(&[input], bytes).keeps_inputs().parameters(&[weight]).scratch(scratch).work(&work)))
}

/// Appends batch normalization, optionally followed by a rectifier that works in place.
fn normalize(block: &mut Block, input: usize, shape: Shape, is_rectified: bool) -> Result<usize, WorkloadError> {
    let statistic = shape.channels * ELEMENT_BYTES;
    let operation = Operation::new(&[input], shape.bytes()?).keeps_inputs().side(statistic).side(statistic);
    let normal = block.push(operation.parameters(&[statistic, statistic]));
    Ok(if is_rectified { block.push(Operation::in_place(normal).keeps_output()) } else { normal })
}

impl Cnn {
    /// Returns the requests of all batch sizes.
    ///
    /// # Errors
    /// Returns [`WorkloadError`] if the value of an option is not allowed, if a size is too large, or if there are too many
    /// events.
    pub fn workload(&self) -> Result<Workload, WorkloadError> {
        let mut training = self.training()?;
        for (at, &batch) in self.batches.iter().enumerate() {
            if self.empties_cache {
                training.engine.program.push(Event::EmptyCache)?;
            }
            let plan = self.plan(batch)?;
            for step in 1..=self.repeats {
                let following = if step < self.repeats { Some(batch) } else { self.batches.get(at + 1).copied() };
                let next = following.map(|batch| self.batch_bytes(batch)).transpose()?;
                training.engine.program.begin_step();
                training.step(&[(&plan, self.batch_bytes(batch)?)], next)?;
            }
        }
        let says = format!(
            "A residual network with {:?} blocks, trained on batches of {:?}, each {} times",
            self.stages, self.batches, self.repeats
        );
        Ok(training.finish("cnn", says))
    }

    /// Returns a training loop that has allocated the weights of this network.
    pub(super) fn training(&self) -> Result<Training, WorkloadError> {
        let surroundings =
            Surroundings { scratch_seed: self.mixed.then_some(self.seed), libraries: true, flop_per_us: 50_000_000 };
        let updating = Updating {
            optimizer: self.optimizer,
            element_bytes: ELEMENT_BYTES,
            has_master_copy: false,
            copies_states: false,
            drops_gradients: self.optimizer != Optimizer::Sgd,
            is_mixed: self.mixed,
        };
        self.check()?;
        let plan = self.plan(1)?;
        let mut training = Training::new(Engine::new(surroundings), plan.parameters(), updating)?;
        self.running_statistics(&mut training)?;
        Ok(training)
    }

    /// Allocates the values that batch normalizations keep in addition to their parameters: the running mean, the running
    /// variance and the number of batches.
    fn running_statistics(&self, training: &mut Training) -> Result<(), WorkloadError> {
        for channels in self.normalized_channels() {
            for bytes in [channels * ELEMENT_BYTES, channels * ELEMENT_BYTES, INDEX_BYTES] {
                training.engine.program.allocate(bytes)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `allocated_bytes.all.peak` after each batch size of `resnet50_sweep.expandable`, in the recordings' steps.jsonl.
    const RECORDED: [(u64, u64); 7] = [
        (1, 341_513_728),
        (2, 463_337_472),
        (4, 634_738_688),
        (8, 977_541_120),
        (16, 1_664_718_848),
        (32, 3_047_613_952),
        (64, 5_822_146_048),
    ];

    #[test]
    fn the_peaks_are_nearly_the_recorded_ones() {
        for (at, &(batch, recorded)) in RECORDED.iter().enumerate() {
            // A recorded peak is measured from the end of the previous batch size; gradients exist from the first batch
            // onward.
            let batches = if at == 0 { vec![1] } else { vec![1, batch] };
            let load = Cnn { batches, ..Cnn::default() }.workload().unwrap().load_bytes(512);
            let error = load as f64 / recorded as f64 - 1.0;
            assert!(error.abs() < if batch < 32 { 0.022 } else { 1e-9 }, "{batch}: {load}, recorded {recorded}: {error}");
            let row = format!("//! | {batch} | {recorded} | {load} | {:+.2} % |", 100.0 * error);
            assert!(include_str!("cnn.rs").contains(&row), "the module's table lacks {row}");
        }
    }

    #[test]
    fn a_resnet_has_the_parameters_that_it_has() {
        let parameters = |name| Cnn::preset(name).unwrap().plan(1).unwrap().parameters().sum::<u64>() / ELEMENT_BYTES;
        assert_eq!(
            (parameters("resnet50"), parameters("resnet101"), parameters("resnet152")),
            (25_557_032, 44_549_160, 60_192_808)
        );
        assert_eq!(Cnn::preset("resnet51"), None);
        assert_eq!(Cnn::default().normalized_channels().iter().sum::<u64>(), 26_560);
    }

    #[test]
    fn the_peak_is_linear_in_the_batch() {
        let load = |batch| Cnn { batches: vec![1, batch], ..Cnn::default() }.workload().unwrap().load_bytes(1) as i64;
        let sample = load(32) - load(31);
        assert!((86_000_000..88_000_000).contains(&sample), "{sample}");
        assert_eq!(load(64) - load(32), 32 * sample);
    }

    #[test]
    fn programs_are_well_formed_with_every_option() {
        for (mixed, optimizer) in [(false, Optimizer::Sgd), (true, Optimizer::Adam), (true, Optimizer::Momentum)] {
            let cnn = Cnn { mixed, optimizer, batches: vec![2, 5, 1], repeats: 2, ..Cnn::preset("resnet101").unwrap() };
            let workload = cnn.workload().unwrap();
            assert_eq!(workload.check(), Ok(()));
            assert_eq!(Ok(workload), cnn.workload());
        }
    }

    #[test]
    fn bad_options_are_errors() {
        let refused = |cnn: Cnn| cnn.workload().unwrap_err().to_string();
        assert_eq!(refused(Cnn { batches: vec![], ..Cnn::default() }), "batches is 0; allowed: 1 to 1048576");
        assert_eq!(
            refused(Cnn { batches: vec![4, 0], ..Cnn::default() }),
            format!("batches is 0; allowed: 1 to {}", 1_u64 << 32)
        );
        assert_eq!(refused(Cnn { image: 7, ..Cnn::default() }), "image is 7; allowed: 32 to 65536");
        let large = Cnn { batches: vec![1 << 32], image: 1 << 16, ..Cnn::default() };
        assert_eq!(large.workload(), Err(WorkloadError::TooLarge { what: "an activation" }));
        let deep = Cnn { stages: [1 << 16; 4], ..Cnn::default() };
        assert_eq!(refused(deep), "stages is 65536; allowed: 1 to 1024");
    }
}
