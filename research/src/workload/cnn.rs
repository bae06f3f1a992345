//! A residual convolutional network over batch sizes, as torchvision's ResNet-50 in the program of the recording `resnet50_sweep`
//! (scenario C5).
//!
//! Stem, four stages of bottleneck blocks, pooling and a linear layer; batch normalization keeps its input and two statistics a
//! channel, rectifiers and residual sums work in place. For each batch size the program empties the cache, goes forward and
//! backward once, and adds to the gradients that are there. Scratch memory of convolutions is cuDNN's choice, which depends on the
//! GPU: it is left out unless [`Cnn::mixed`].
//!
//! The generated peaks, rounded to 512 bytes, beside `allocated_bytes.all.peak` of `resnet50_sweep.expandable` (where a block is no larger than
//! its rounded request), from the recordings' steps.jsonl; made by the test `the_peaks_are_nearly_the_recorded_ones`:
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
//! What is missing in small batches is a convolution's scratch memory at the peak.

use super::autograd::{Backward, Block, Engine, Operation, Plan, Surroundings};
use super::error::{bytes_of, within};
use super::training::{BatchBytes, Training, Updating};
use super::{Event, Optimizer, Workload, WorkloadError};

/// The network and the batch sizes. The default is the recorded program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cnn {
    /// Blocks in each of the four stages.
    pub stages: [u64; 4],
    /// Channels behind the stem.
    pub width: u64,
    /// Height and width of an image.
    pub image: u64,
    /// Classes.
    pub classes: u64,
    /// The batch sizes, in order.
    pub batches: Vec<u64>,
    /// Steps of each batch size.
    pub repeats: u64,
    /// The cache is emptied before each batch size.
    pub empties_cache: bool,
    /// What updates the weights. With an optimizer that keeps states gradients go back after each step.
    pub optimizer: Optimizer,
    /// Convolutions need scratch memory, and batches arrive early.
    pub mixed: bool,
    /// For the sizes of scratch memory.
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

/// Bytes of a number, and of an index of max pooling.
const ELEMENT_BYTES: u64 = 4;
const INDEX_BYTES: u64 = 8;
/// A bottleneck's output over its inner width.
const EXPANSION: u64 = 4;

/// An image in the middle of the network.
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
    /// `resnet50`, `resnet101` or `resnet152` (He et al. 2015, table 1).
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

    /// The requests.
    ///
    /// # Errors
    /// [`WorkloadError`] if an option cannot have its value, a size is too large, or there are too many events.
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
                training.step(&[(&plan, self.batch_bytes(batch)?)], next)?;
            }
        }
        let says =
            format!("A residual network of {:?} blocks, batches of {:?}, each {} times", self.stages, self.batches, self.repeats);
        Ok(training.finish("cnn", says))
    }

    /// A program with the weights of this network.
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

    fn check(&self) -> Result<(), WorkloadError> {
        self.stages.iter().try_for_each(|&blocks| within("stages", blocks, 1, 1 << 10))?;
        within("width", self.width, 1, 1 << 16)?;
        within("image", self.image, 32, 1 << 16)?;
        within("classes", self.classes, 1, 1 << 32)?;
        within("batches", self.batches.len() as u64, 1, 1 << 20)?;
        self.batches.iter().try_for_each(|&batch| within("batches", batch, 1, 1 << 32))?;
        within("repeats", self.repeats, 1, 1_000_000)
    }

    pub(super) fn batch_bytes(&self, batch: u64) -> Result<BatchBytes, WorkloadError> {
        Ok(BatchBytes { input: Shape { batch, channels: 3, side: self.image }.bytes()?, targets: 0 })
    }

    /// What batch normalizations keep beside their parameters: running mean, variance and the number of batches.
    fn running_statistics(&self, training: &mut Training) -> Result<(), WorkloadError> {
        for channels in self.normalized_channels() {
            for bytes in [channels * ELEMENT_BYTES, channels * ELEMENT_BYTES, INDEX_BYTES] {
                training.engine.program.allocate(bytes)?;
            }
        }
        Ok(())
    }

    /// The channels of each batch normalization.
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

    /// The network for one batch size.
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
        // The gradient of a sum is one number, seen as many.
        block.push(Operation::new(&[scores], ELEMENT_BYTES).backward(Backward::Passes));
        Ok(block)
    }
}

/// A convolution without bias: keeps its input. Scratch memory is of the size of what it reads and writes, at most.
fn convolve(block: &mut Block, input: usize, (from, to): (Shape, Shape), kernel: u64) -> Result<usize, WorkloadError> {
    let bytes = to.bytes()?;
    let weight = bytes_of("a weight", &[from.channels, to.channels, kernel, kernel, ELEMENT_BYTES])?;
    let work = [2, bytes / ELEMENT_BYTES, from.channels, kernel, kernel];
    let scratch = from.bytes()?.saturating_add(bytes);
    Ok(block.push(Operation::new(&[input], bytes).keeps_inputs().parameters(&[weight]).scratch(scratch).work(&work)))
}

/// Batch normalization, and a rectifier that works in place behind it.
fn normalize(block: &mut Block, input: usize, shape: Shape, is_rectified: bool) -> Result<usize, WorkloadError> {
    let statistic = shape.channels * ELEMENT_BYTES;
    let operation = Operation::new(&[input], shape.bytes()?).keeps_inputs().side(statistic).side(statistic);
    let normal = block.push(operation.parameters(&[statistic, statistic]));
    Ok(if is_rectified { block.push(Operation::in_place(normal).keeps_output()) } else { normal })
}

#[cfg(test)]
mod tests;
