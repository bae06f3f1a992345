//! A residual convolutional network trained with growing batch sizes, like torchvision's ResNet-50 in the program
//! of the recording `resnet50_sweep` (scenario C5).
//!
//! A stem, four stages of bottleneck blocks, pooling and a linear layer. Batch normalization keeps its input and
//! two statistics per channel; rectifiers and residual sums work in place. For each batch size the program empties
//! the cache, goes forward and backward once, and adds to the gradients that exist. The scratch memory of
//! convolutions is cuDNN's choice and depends on the GPU: it is left out unless [`Cnn::mixed`] is set.
//!
//! The generated peaks, rounded to 512 bytes, beside `allocated_bytes.all.peak` of `resnet50_sweep.expandable`
//! (where a block is no larger than its rounded request), from the recordings' steps.jsonl; made by the test
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
//! At small batch sizes, what is missing is a convolution's scratch memory at the peak.

mod layers;
mod options;
#[cfg(test)]
mod tests;
mod train;

pub use options::Cnn;
