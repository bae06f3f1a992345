//! A whole model: parts that run one after the other, some of them recomputed in the backward pass.

use super::block::Block;
use super::engine::{Engine, Pass, Storage, Tape};
use crate::workload::generators::WorkloadError;

/// Whether a part's results are kept for the backward pass.
#[derive(Clone, Debug)]
pub(in crate::workload::generators::models) enum Recompute {
    /// They are kept.
    No,
    /// Only the input is kept; backward runs the part forward again.
    Whole,
    /// Like `Whole`, in pieces: forward and backward run piece by piece, so that only one piece's results are live
    /// at a time. Holds the part's block for each piece of the batch.
    Pieces(Vec<Block>),
}

/// A number of equal blocks in a row, each with parameters of its own.
#[derive(Clone, Debug)]
pub(in crate::workload::generators::models) struct Part {
    /// The block, a place in [`Plan::blocks`].
    pub(in crate::workload::generators::models) block: usize,
    /// How many times it runs in a row.
    pub(in crate::workload::generators::models) repeats: usize,
    /// Which of its results are kept.
    pub(in crate::workload::generators::models) recompute: Recompute,
    /// It has no parameters of its own and uses those from this number on: a head that shares the embedding's
    /// weights.
    pub(in crate::workload::generators::models) shares: Option<usize>,
}

/// A model for one batch size. Parameters are numbered in the order of the parts.
#[derive(Clone, Debug, Default)]
pub(in crate::workload::generators::models) struct Plan {
    /// The kinds of blocks.
    pub(in crate::workload::generators::models) blocks: Vec<Block>,
    /// What runs, in order. The last part makes the loss.
    pub(in crate::workload::generators::models) parts: Vec<Part>,
}

/// What the forward pass of a part leaves behind.
enum Left {
    Tapes(Vec<Tape>),
    Input(Storage),
}

impl Plan {
    /// Appends a part with a block of its own.
    pub(in crate::workload::generators::models) fn push(&mut self, block: Block) {
        self.blocks.push(block);
        self.parts.push(Part { block: self.blocks.len() - 1, repeats: 1, recompute: Recompute::No, shares: None });
    }

    /// How many parameters of its own a part has.
    fn own_parameters(&self, part: &Part) -> usize {
        if part.shares.is_some() { 0 } else { part.repeats * self.blocks[part.block].parameter_count() }
    }

    /// The sizes of all parameters.
    pub(in crate::workload::generators::models) fn parameters(&self) -> impl Iterator<Item = u64> {
        let of_part = |part: &Part| (0..part.repeats).flat_map(|_| self.blocks[part.block].parameters()).collect::<Vec<_>>();
        self.parts.iter().filter(|part| part.shares.is_none()).flat_map(of_part)
    }

    /// Runs forward and backward. Takes over one reference to `input`; the loss is freed at the end.
    pub(in crate::workload::generators::models) fn train(
        &self,
        engine: &mut Engine,
        input: Storage,
    ) -> Result<(), WorkloadError> {
        let mut left = Vec::new();
        let mut value = input;
        for part in &self.parts {
            let (output, of_part) = self.part_forward(engine, part, value)?;
            value = output;
            left.push(of_part);
        }
        let last = &self.blocks[self.parts.last().map_or(0, |part| part.block)];
        // The caller of backward holds the first gradient until backward returns.
        let root = engine.allocate(last.output_bytes())?;
        let mut gradient = Some(engine.refer(root));
        let mut parameter = self.parts.iter().map(|part| self.own_parameters(part)).sum();
        for (at, (part, of_part)) in self.parts.iter().zip(left).enumerate().rev() {
            parameter -= self.own_parameters(part);
            let incoming = gradient.take().expect("only the first part may stop the gradient");
            let first = part.shares.unwrap_or(parameter);
            gradient = self.part_backward(engine, part, of_part, incoming, first, at > 0)?;
        }
        if let Some(unused) = gradient {
            engine.release(unused)?;
        }
        engine.release(root)?;
        engine.release(value)
    }

    /// Runs forward only, keeping nothing. Takes over one reference to `input` and returns one to the output.
    pub(in crate::workload::generators::models) fn infer(
        &self,
        engine: &mut Engine,
        input: Storage,
    ) -> Result<Storage, WorkloadError> {
        let mut value = input;
        for part in &self.parts {
            for _ in 0..part.repeats {
                value = engine.forward(&self.blocks[part.block], value, Pass::Forget)?.0;
            }
        }
        Ok(value)
    }

    fn part_forward(&self, engine: &mut Engine, part: &Part, input: Storage) -> Result<(Storage, Left), WorkloadError> {
        let block = &self.blocks[part.block];
        let mut value = input;
        match &part.recompute {
            Recompute::No => {
                let mut tapes = Vec::new();
                for _ in 0..part.repeats {
                    let (output, tape) = engine.forward(block, value, Pass::Keep)?;
                    value = output;
                    tapes.push(tape);
                }
                Ok((value, Left::Tapes(tapes)))
            }
            Recompute::Whole => {
                let kept = engine.refer(input);
                for _ in 0..part.repeats {
                    value = engine.forward(block, value, Pass::Forget)?.0;
                }
                Ok((value, Left::Input(kept)))
            }
            Recompute::Pieces(pieces) => {
                let whole = engine.allocate(block.output_bytes())?;
                for piece in pieces {
                    // A piece of the input is a view of it; its output is copied into the whole.
                    let view = engine.refer(input);
                    let output = engine.forward(piece, view, Pass::Forget)?.0;
                    engine.release(output)?;
                }
                Ok((whole, Left::Input(input)))
            }
        }
    }

    fn part_backward(
        &self,
        engine: &mut Engine,
        part: &Part,
        left: Left,
        gradient: Storage,
        first_parameter: usize,
        wants_input: bool,
    ) -> Result<Option<Storage>, WorkloadError> {
        let block = &self.blocks[part.block];
        let tapes = match (left, &part.recompute) {
            (Left::Tapes(tapes), _) => tapes,
            (Left::Input(input), Recompute::Pieces(pieces)) => {
                return pieces_backward(engine, (block, pieces), input, gradient, first_parameter);
            }
            (Left::Input(input), _) => {
                let mut tapes = Vec::new();
                let mut value = input;
                for _ in 0..part.repeats {
                    let (output, tape) = engine.forward(block, value, Pass::Again)?;
                    value = output;
                    tapes.push(tape);
                }
                // Nothing needs the output a second time.
                engine.release(value)?;
                tapes
            }
        };
        let mut gradient = Some(gradient);
        for (at, tape) in tapes.into_iter().enumerate().rev() {
            let incoming = gradient.take().expect("a block in the middle passes its gradient on");
            let first = first_parameter + at * block.parameter_count();
            gradient = engine.backward(block, tape, incoming, first, wants_input || at > 0)?;
        }
        Ok(gradient)
    }
}

/// Backward in pieces: each piece runs forward and backward before the next, and its gradient is copied into that
/// of the whole input.
fn pieces_backward(
    engine: &mut Engine,
    (block, pieces): (&Block, &[Block]),
    input: Storage,
    gradient: Storage,
    first_parameter: usize,
) -> Result<Option<Storage>, WorkloadError> {
    let whole = engine.allocate(block.input_bytes())?;
    for piece in pieces {
        let view = engine.refer(input);
        let (output, tape) = engine.forward(piece, view, Pass::Again)?;
        engine.release(output)?;
        let incoming = engine.refer(gradient);
        if let Some(of_piece) = engine.backward(piece, tape, incoming, first_parameter, true)? {
            engine.release(of_piece)?;
        }
    }
    engine.release(input)?;
    engine.release(gradient)?;
    Ok(Some(whole))
}
