//! Graphs captured for many batch sizes, as an inference server does before it starts serving.
//!
//! For each batch size, the model (a [`Transformer`], one token per sample) runs a few times to warm up, and then once while
//! its requests go to a private pool. Its output lives as long as the graph. Graphs may share a pool; the *order* of the
//! captures then determines whether a later graph fits in the memory that an earlier one has left free. Replaying a graph
//! allocates nothing.

use super::options::{self, Done, Generator, Key, WorkloadError, bytes_of, within};
use super::transformer::{Transformer, set_model, with_model};
use crate::packing::random::Random;
use crate::workload::{Event, Workload};

/// The order of captures.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Order {
    /// The smallest batch first.
    Ascending,
    /// The largest first, as servers do.
    #[default]
    Descending,
    /// In random order.
    Shuffled,
}

/// A model, and its graphs.
#[derive(Clone, PartialEq, Debug)]
pub struct Graphs {
    /// The model. Only its sizes and its precision matter here.
    pub model: Transformer,
    /// The batch sizes.
    pub batches: Vec<u64>,
    /// The order in which they are captured.
    pub order: Order,
    /// Whether all graphs in a round share a pool; if not, each has its own.
    pub shared: bool,
    /// The number of warm-up runs before each capture.
    pub warm_ups: u64,
    /// The number of replays per graph.
    pub replays: u64,
    /// The number of runs without a graph after each round, on more tokens than any graph: a prompt.
    pub eager_runs: u64,
    /// The number of times that all graphs are captured; after each round, they are all destroyed.
    pub rounds: u64,
    /// The seed of a random order.
    pub seed: u64,
}

impl Default for Graphs {
    fn default() -> Graphs {
        Graphs {
            model: Transformer { layers: 24, hidden: 2048, heads: 16, ..Transformer::default() },
            batches: [1, 2, 4].into_iter().chain((8..=256).step_by(8)).collect(),
            order: Order::default(),
            shared: true,
            warm_ups: 1,
            replays: 3,
            eager_runs: 1,
            rounds: 1,
            seed: 0,
        }
    }
}

impl Graphs {
    /// The requests of all rounds.
    ///
    /// # Errors
    /// [`WorkloadError`] if the value of an option is not allowed, if a size is too large, or if there are too many events.
    pub fn workload(&self) -> Result<Workload, WorkloadError> {
        self.check()?;
        let mut engine = self.model.engine();
        for bytes in self.model.plan(1, 1)?.parameters() {
            engine.program.allocate(bytes)?;
        }
        let largest = self.batches.iter().copied().max().unwrap_or(1);
        // Graphs read and write tensors that remain allocated.
        for bytes in [8, 8, self.model.hidden * self.model.precision.bytes()] {
            engine.program.allocate(bytes_of("the static inputs", &[largest, bytes])?)?;
        }
        let mut random = Random::new(self.seed);
        let mut pool = 0;
        for _ in 0..self.rounds {
            let first = pool + 1;
            let mut outputs = Vec::new();
            for (at, batch) in self.in_order(&mut random).into_iter().enumerate() {
                let plan = self.model.plan(batch, 1)?;
                let tokens = self.model.batch_bytes(batch, 1)?.input;
                engine.program.begin_step();
                for _ in 0..self.warm_ups {
                    let input = engine.allocate(tokens)?;
                    let output = plan.infer(&mut engine, input)?;
                    engine.release(output)?;
                }
                engine.wait()?;
                pool += u16::from(at == 0 || !self.shared);
                engine.program.push(Event::BeginPool { pool })?;
                let input = engine.allocate(tokens)?;
                outputs.push(plan.infer(&mut engine, input)?);
                engine.program.push(Event::EndPool { pool })?;
                for _ in 0..self.replays {
                    engine.launch(engine.work.forward / 1000)?;
                }
            }
            for _ in 0..self.eager_runs {
                engine.program.begin_step();
                let input = engine.allocate(self.model.batch_bytes(1, self.model.sequence)?.input)?;
                let output = self.model.plan(1, self.model.sequence)?.infer(&mut engine, input)?;
                engine.release(output)?;
            }
            engine.wait()?;
            outputs.into_iter().try_for_each(|output| engine.release(output))?;
            (first..=pool).try_for_each(|pool| engine.program.push(Event::DropPool { pool }))?;
        }
        let says = format!(
            "Graphs of a model with {} layers for {} batch sizes, {:?}, {}",
            self.model.layers,
            self.batches.len(),
            self.order,
            if self.shared { "in one pool" } else { "each in its own pool" }
        );
        Ok(engine.program.finish("graphs", says))
    }

    fn check(&self) -> Result<(), WorkloadError> {
        self.model.check()?;
        within("batches", self.batches.len() as u64, 1, 1 << 10)?;
        self.batches.iter().try_for_each(|&batch| within("batches", batch, 1, 1 << 20))?;
        within("warm_ups", self.warm_ups, 0, 1_000_000)?;
        within("replays", self.replays, 0, 1_000_000)?;
        within("eager_runs", self.eager_runs, 0, 1_000_000)?;
        let pools = if self.shared { 1 } else { self.batches.len() as u64 };
        within("rounds", self.rounds, 1, u64::from(u16::MAX) / pools)
    }

    fn in_order(&self, random: &mut Random) -> Vec<u64> {
        let mut batches = self.batches.clone();
        batches.sort_unstable();
        match self.order {
            Order::Ascending => {}
            Order::Descending => batches.reverse(),
            Order::Shuffled => {
                for last in (1..batches.len()).rev() {
                    batches.swap(last, random.below(last + 1));
                }
            }
        }
        batches
    }
}

impl Generator for Graphs {
    fn keys(&self) -> Vec<Key> {
        with_model(&["batches", "order", "shared", "warm_ups", "replays", "eager_runs", "rounds"])
    }

    fn set(&mut self, key: Key, value: &str) -> Done {
        match key {
            "batches" => self.batches = options::list(key, value)?,
            "order" => self.order = order(key, value)?,
            "shared" => self.shared = options::switch(key, value)?,
            "warm_ups" => self.warm_ups = options::number(key, value)?,
            "replays" => self.replays = options::number(key, value)?,
            "eager_runs" => self.eager_runs = options::number(key, value)?,
            "rounds" => self.rounds = options::number(key, value)?,
            _ => set_model(&mut self.model, key, value)?,
        }
        self.seed = self.model.seed;
        Ok(())
    }

    fn make(&self) -> Result<Workload, WorkloadError> {
        self.workload()
    }
}

fn order(option: Key, value: &str) -> Result<Order, WorkloadError> {
    let orders = [("ascending", Order::Ascending), ("descending", Order::Descending), ("shuffled", Order::Shuffled)];
    options::one_of(option, value, &orders)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Graphs {
        let model = Transformer { layers: 2, hidden: 64, heads: 2, sequence: 64, vocabulary: 1000, ..Transformer::default() };
        Graphs { model, batches: vec![1, 2, 4, 8, 16], rounds: 2, ..Graphs::default() }
    }

    /// The pool and the batch size of each capture: the first request in a capture is for 8 bytes per sample.
    fn captured(graphs: &Graphs) -> Vec<(u16, u64)> {
        let workload = graphs.workload().unwrap();
        assert_eq!(workload.check(), Ok(()));
        let mut captured = Vec::new();
        for pair in workload.events.windows(2) {
            if let [Event::BeginPool { pool }, Event::Allocate { bytes, .. }] = *pair {
                captured.push((pool, bytes / 8));
            }
        }
        captured
    }

    #[test]
    fn captures_come_in_the_order_that_was_asked_for() {
        let descending = captured(&small());
        assert_eq!(descending[..5], [(1, 16), (1, 8), (1, 4), (1, 2), (1, 1)]);
        assert_eq!(descending[5..], [(2, 16), (2, 8), (2, 4), (2, 2), (2, 1)]);
        let ascending = captured(&Graphs { order: Order::Ascending, shared: false, ..small() });
        assert_eq!(ascending[3..7], [(4, 8), (5, 16), (6, 1), (7, 2)]);
        let shuffled = captured(&Graphs { order: Order::Shuffled, ..small() });
        let mut sorted: Vec<u64> = shuffled[..5].iter().map(|capture| capture.1).collect();
        sorted.sort_unstable();
        assert_eq!(sorted, [1, 2, 4, 8, 16]);
        assert_ne!(shuffled[..5], descending[..5]);
    }

    #[test]
    fn what_a_graph_makes_stays_as_long_as_it() {
        let workload = Graphs { rounds: 1, eager_runs: 0, ..small() }.workload().unwrap();
        // After the last capture, the five outputs are freed before the pool is dropped.
        let last = workload.events.iter().rposition(|event| matches!(event, Event::EndPool { .. })).unwrap();
        let freed = workload.events[last..].iter().filter(|event| matches!(event, Event::Free { .. })).count();
        assert_eq!(freed, 5);
        assert_eq!(workload.events.last(), Some(&Event::DropPool { pool: 1 }));
    }

    #[test]
    fn bad_options_are_errors() {
        let refused = |graphs: Graphs| graphs.workload().unwrap_err().to_string();
        assert_eq!(refused(Graphs { rounds: 20_000, shared: false, ..small() }), "rounds is 20000; allowed: 1 to 13107");
        assert!(refused(Graphs { batches: vec![], ..small() }).starts_with("batches is 0"));
        assert!(refused(Graphs { batches: vec![0], ..small() }).starts_with("batches is 0"));
    }
}
