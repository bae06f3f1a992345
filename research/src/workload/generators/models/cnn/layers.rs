//! The operations of a residual network, for one batch size.

use super::options::Cnn;
use crate::workload::generators::WorkloadError;
use crate::workload::generators::checks::bytes_of;
use crate::workload::generators::models::autograd::{Backward, Block, Operation, Plan};
use crate::workload::generators::models::training::BatchBytes;

/// The bytes of a number.
pub(super) const ELEMENT_BYTES: u64 = 4;
/// The bytes of an index of max pooling.
pub(super) const INDEX_BYTES: u64 = 8;
/// The width of a bottleneck's output over its inner width.
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
    /// The sizes of a batch.
    pub(in crate::workload::generators::models) fn batch_bytes(&self, batch: u64) -> Result<BatchBytes, WorkloadError> {
        Ok(BatchBytes { input: Shape { batch, channels: 3, side: self.image }.bytes()?, targets: 0 })
    }

    /// The channels of each batch normalization.
    pub(super) fn normalized_channels(&self) -> Vec<u64> {
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
    pub(in crate::workload::generators::models) fn plan(&self, batch: u64) -> Result<Plan, WorkloadError> {
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
        // The gradient of a sum is one number, expanded to many.
        block.push(Operation::new(&[scores], ELEMENT_BYTES).backward(Backward::Passes));
        Ok(block)
    }
}

/// A convolution without bias: keeps its input. It needs at most as much scratch memory as its input and output
/// together.
fn convolve(block: &mut Block, input: usize, (from, to): (Shape, Shape), kernel: u64) -> Result<usize, WorkloadError> {
    let bytes = to.bytes()?;
    let weight = bytes_of("a weight", &[from.channels, to.channels, kernel, kernel, ELEMENT_BYTES])?;
    let work = [2, bytes / ELEMENT_BYTES, from.channels, kernel, kernel];
    let scratch = from.bytes()?.saturating_add(bytes);
    Ok(block.push(Operation::new(&[input], bytes).keeps_inputs().parameters(&[weight]).scratch(scratch).work(&work)))
}

/// Batch normalization, and optionally a rectifier after it that works in place.
fn normalize(block: &mut Block, input: usize, shape: Shape, is_rectified: bool) -> Result<usize, WorkloadError> {
    let statistic = shape.channels * ELEMENT_BYTES;
    let operation = Operation::new(&[input], shape.bytes()?).keeps_inputs().side(statistic).side(statistic);
    let normal = block.push(operation.parameters(&[statistic, statistic]));
    Ok(if is_rectified { block.push(Operation::in_place(normal).keeps_output()) } else { normal })
}
