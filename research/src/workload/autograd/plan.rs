//! A whole model: parts one after the other, some of which are recomputed, and one pass through all of them.

use super::block::Block;
use super::engine::{Engine, Pass, Storage, Tape};
use crate::workload::WorkloadError;

/// Whether a part's results are kept for backward.
#[derive(Clone, Debug)]
pub(in crate::workload) enum Recompute {
    /// They are kept.
    No,
    /// Only what goes in is kept; backward runs the part forward again.
    Whole,
    /// As `Whole`, in pieces: forward and backward run piece by piece, so that only one piece's results are there at a time. The part's
    /// block for each piece of the batch.
    Pieces(Vec<Block>),
}

/// A row of equal blocks, each with parameters of its own.
#[derive(Clone, Debug)]
pub(in crate::workload) struct Part {
    /// The block.
    pub(in crate::workload) block: usize,
    /// How often it comes, one after the other.
    pub(in crate::workload) repeats: usize,
    /// What is kept of them.
    pub(in crate::workload) recompute: Recompute,
    /// It has no parameters of its own but uses those from this number on: a head that shares the embedding's weights.
    pub(in crate::workload) shares: Option<usize>,
}

/// A model for one size of the batch. Parameters are numbered in the order of the parts.
#[derive(Clone, Debug, Default)]
pub(in crate::workload) struct Plan {
    /// The kinds of blocks.
    pub(in crate::workload) blocks: Vec<Block>,
    /// What runs, in order. The last one makes the loss.
    pub(in crate::workload) parts: Vec<Part>,
}

/// What forward leaves of a part.
enum Left {
    Tapes(Vec<Tape>),
    Input(Storage),
}

impl Plan {
    /// Appends a part with a block of its own.
    pub(in crate::workload) fn push(&mut self, block: Block) {
        self.blocks.push(block);
        self.parts.push(Part { block: self.blocks.len() - 1, repeats: 1, recompute: Recompute::No, shares: None });
    }

    /// How many parameters a part has of its own.
    fn own_parameters(&self, part: &Part) -> usize {
        if part.shares.is_some() { 0 } else { part.repeats * self.blocks[part.block].parameter_count() }
    }

    /// The sizes of all parameters.
    pub(in crate::workload) fn parameters(&self) -> impl Iterator<Item = u64> {
        let of_part = |part: &Part| (0..part.repeats).flat_map(|_| self.blocks[part.block].parameters()).collect::<Vec<_>>();
        self.parts.iter().filter(|part| part.shares.is_none()).flat_map(of_part)
    }

    /// Forward and backward. One reference to `input` goes in. The loss is given back at the end.
    pub(in crate::workload) fn train(&self, engine: &mut Engine, input: Storage) -> Result<(), WorkloadError> {
        let mut left = Vec::new();
        let mut value = input;
        for part in &self.parts {
            let (output, of_part) = self.part_forward(engine, part, value)?;
            value = output;
            left.push(of_part);
        }
        let last = &self.blocks[self.parts.last().map_or(0, |part| part.block)];
        // The caller of backward holds the first gradient until it returns.
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

    /// Forward only, keeping nothing. One reference to `input` goes in, one to the output comes out.
    pub(in crate::workload) fn infer(&self, engine: &mut Engine, input: Storage) -> Result<Storage, WorkloadError> {
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
                    // A piece of the input is a view of it; what comes out is copied into the whole.
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
                // What comes out a second time is needed by nobody.
                engine.release(value)?;
                tapes
            }
        };
        let mut gradient = Some(gradient);
        for (at, tape) in tapes.into_iter().enumerate().rev() {
            let incoming = gradient.take().expect("a block in the middle hands its gradient on");
            let first = first_parameter + at * block.parameter_count();
            gradient = engine.backward(block, tape, incoming, first, wants_input || at > 0)?;
        }
        Ok(gradient)
    }
}

/// Backward in pieces: each runs forward and backward before the next, and its gradient is copied into that of the whole input.
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
