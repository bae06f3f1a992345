//! Training with batches that are copied to the device ahead of the computation, on a separate stream.
//!
//! A batch is allocated on the copy stream and used on the compute stream (`record_stream`). The host runs ahead and frees
//! batches long before the computation is done; their memory remains allocated until then. The computation is the network of
//! a [`Cnn`]. A batch is decoded on the copy stream from a smaller one, and the result is copied back on a third stream.
//! Times follow from sizes: 25 GB/s for copies, and the network's arithmetic. A workload has no event for the computation
//! waiting for its batch; the work on each stream is still in order, and the missing wait does not cause any memory to be
//! freed too early.

use super::cnn::Cnn;
use super::lengths::{self, Lengths};
use super::options::{self, Done, Generator, Key, WorkloadError, within};
use crate::packing::random::Random;
use crate::workload::{Event, Workload};

/// A network, and how batches reach it.
#[derive(Clone, PartialEq, Debug)]
pub struct Prefetch {
    /// The network. Its options `batches`, `repeats` and `empties_cache` are ignored.
    pub network: Cnn,
    /// The distribution of the batch sizes, in samples.
    pub batches: Lengths,
    /// The number of training steps.
    pub steps: u64,
    /// The number of batches that are copied ahead.
    pub depth: u64,
    /// The host waits for the computation each time this many steps have run.
    pub synchronize_every: u64,
    /// The seed of the batch sizes.
    pub seed: u64,
}

impl Default for Prefetch {
    fn default() -> Prefetch {
        let batches = Lengths::Uniform { least: 24, most: 64 };
        Prefetch { network: Cnn::default(), batches, steps: 40, depth: 3, synchronize_every: 10, seed: 0 }
    }
}

/// The streams.
const COMPUTE: u16 = 0;
const COPY_IN: u16 = 1;
const COPY_OUT: u16 = 2;
/// The number of bytes that a copy between host and device moves in a microsecond.
const COPIED_BYTES_PER_US: u64 = 25_000;
/// The size of a decoded image, with four-byte values, relative to that of the copied image.
const DECODED: u64 = 4;

impl Prefetch {
    /// The requests of all steps.
    ///
    /// # Errors
    /// [`WorkloadError`] if the value of an option is not allowed, if a size is too large, or if there are too many events.
    pub fn workload(&self) -> Result<Workload, WorkloadError> {
        within("steps", self.steps, 1, 1_000_000)?;
        within("depth", self.depth, 1, 1 << 10)?;
        within("synchronize_every", self.synchronize_every, 1, 1_000_000)?;
        let sampler = self.batches.sampler("batches", 1 << 20)?;
        let mut random = Random::new(self.seed);
        let mut training = self.network.training()?;
        let mut ahead = std::collections::VecDeque::new();
        for step in 1..=self.steps + self.depth {
            let program = &mut training.engine.program;
            if step <= self.steps {
                let samples = sampler.draw(&mut random);
                program.switch(COPY_IN);
                let bytes = self.network.batch_bytes(samples)?.input;
                let packed = program.allocate(bytes / DECODED)?;
                program.launch(bytes / DECODED / COPIED_BYTES_PER_US)?;
                let batch = program.allocate(bytes)?;
                program.free(packed)?;
                program.switch(COMPUTE);
                ahead.push_back((samples, batch));
            }
            if step <= self.depth {
                continue;
            }
            let Some((samples, batch)) = ahead.pop_front() else { break };
            program.begin_step();
            program.record(&batch, COMPUTE)?;
            let result = program.allocate(samples * 4)?;
            let input = training.engine.adopt(batch);
            self.network.plan(samples)?.train(&mut training.engine, input)?;
            training.update_only()?;
            let program = &mut training.engine.program;
            program.record(&result, COPY_OUT)?;
            program.switch(COPY_OUT);
            program.launch(samples * 4 / COPIED_BYTES_PER_US)?;
            program.switch(COMPUTE);
            program.free(result)?;
            if (step - self.depth).is_multiple_of(self.synchronize_every) {
                program.push(Event::Synchronize { stream: COMPUTE })?;
            }
        }
        let says =
            format!("A residual network trained for {} steps, {} batches copied ahead on another stream", self.steps, self.depth);
        Ok(training.finish("prefetch", says))
    }
}

impl Generator for Prefetch {
    fn keys(&self) -> Vec<Key> {
        vec![
            "preset",
            "stages",
            "width",
            "image",
            "classes",
            "optimizer",
            "mixed",
            "batches",
            "steps",
            "depth",
            "synchronize_every",
            "seed",
        ]
    }

    fn set(&mut self, key: Key, value: &str) -> Done {
        match key {
            "batches" => self.batches = lengths::read(key, value)?,
            "steps" => self.steps = options::number(key, value)?,
            "depth" => self.depth = options::number(key, value)?,
            "synchronize_every" => self.synchronize_every = options::number(key, value)?,
            _ => self.network.set(key, value)?,
        }
        self.seed = self.network.seed;
        Ok(())
    }

    fn make(&self) -> Result<Workload, WorkloadError> {
        self.workload()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::generators::Optimizer;

    fn small() -> Prefetch {
        let network = Cnn { width: 8, image: 32, optimizer: Optimizer::Momentum, ..Cnn::default() };
        Prefetch { network, steps: 9, batches: Lengths::Uniform { least: 2, most: 9 }, ..Prefetch::default() }
    }

    #[test]
    fn batches_are_ahead_and_used_on_the_other_stream() {
        let fixed = Prefetch { batches: Lengths::Fixed(5), ..small() };
        let workload = fixed.workload().unwrap();
        assert_eq!(workload.check(), Ok(()));
        let (mut ahead, mut most) = (0, 0);
        let mut is_batch = std::collections::BTreeSet::new();
        for event in &workload.events {
            match *event {
                Event::Allocate { buffer, bytes, stream: COPY_IN } if bytes == 5 * 3 * 32 * 32 * 4 => {
                    is_batch.insert(buffer);
                    ahead += 1;
                    most = most.max(ahead);
                }
                Event::Use { buffer, stream: COMPUTE } => {
                    assert!(is_batch.remove(&buffer), "only batches are used on the compute stream");
                    ahead -= 1;
                }
                _ => {}
            }
        }
        assert_eq!((most, is_batch.len()), (4, 0));
        let waits = workload.events.iter().filter(|event| matches!(event, Event::Synchronize { .. })).count();
        assert_eq!(waits, 0);
        let synchronized = Prefetch { synchronize_every: 3, ..fixed }.workload().unwrap();
        assert_eq!(synchronized.events.len(), workload.events.len() + 3);
    }

    #[test]
    fn a_deeper_queue_needs_more() {
        let load = |depth| Prefetch { depth, batches: Lengths::Fixed(64), ..small() }.workload().unwrap().load_bytes(1);
        assert_eq!(load(4) - load(2), 2 * 64 * 3 * 32 * 32 * 4);
    }

    #[test]
    fn bad_options_are_errors() {
        let refused = |prefetch: Prefetch| prefetch.workload().unwrap_err().to_string();
        assert!(refused(Prefetch { depth: 0, ..small() }).starts_with("depth is 0"));
        assert!(refused(Prefetch { batches: Lengths::Fixed(0), ..small() }).starts_with("batches is 0"));
        assert!(refused(Prefetch { network: Cnn { image: 1, ..Cnn::default() }, ..small() }).starts_with("image is 1"));
    }
}
