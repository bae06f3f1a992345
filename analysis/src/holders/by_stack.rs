//! Classifies a block by the Python calls of its allocation and refines what its lifetime shows.
//!
//! Files are recognised by the ends of their paths, because everything before `torch/` depends on the machine.

use parkade_recording::{Frame, StackId, StackTable};
use rustc_hash::FxHashMap;

use super::kind::{How, Kind, Told};
use super::passes::{Pass, Run};
use crate::timeline::BlockLife;

/// A convolution's workspace is freed within this many entries.
const CONVOLUTION: u32 = 4;

/// The part of a program that made an allocation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Place {
    /// The file has no calls.
    NoStack,
    /// Code that creates, loads or moves a model.
    Model,
    /// An optimizer allocating its states.
    OptimizerStates,
    /// Another part of an optimizer's step.
    Optimizer,
    /// A data loader.
    Data,
    /// A cache of keys and values.
    Cache,
    /// A library's workspace, recognised by its C++ calls.
    Workspace,
    /// Autograd calls: the start of a backward pass, or Python code that it runs.
    Autograd,
    /// A convolution in a module's forward pass.
    Convolution,
    /// A module's forward pass.
    Forward,
    /// Any other code.
    Other,
}

/// The program parts of a recording's stacks, each looked up once.
pub(super) struct Places {
    known: FxHashMap<StackId, Place>,
}

impl Places {
    pub(super) fn of(stacks: &StackTable, used: impl Iterator<Item = StackId>) -> Places {
        let mut known = FxHashMap::default();
        for stack in used {
            known.entry(stack).or_insert_with(|| place(stacks, stack));
        }
        Places { known }
    }

    fn get(&self, stack: StackId) -> Place {
        self.known.get(&stack).copied().unwrap_or(Place::NoStack)
    }
}

/// Tests whether a call is of a kind.
type Rule = fn(&Frame) -> bool;

/// Returns the part of the program that a stack belongs to. The first rule that matches any of its calls decides.
fn place(stacks: &StackTable, stack: StackId) -> Place {
    let rules: [(Place, Rule); 9] = [
        (Place::Workspace, is_workspace),
        (Place::OptimizerStates, |frame| is_in_optimizer(frame) && makes_states(frame)),
        (Place::Optimizer, is_in_optimizer),
        (Place::Model, makes_a_model),
        (Place::Cache, is_cache),
        (Place::Data, is_loader),
        (Place::Autograd, is_autograd),
        (Place::Convolution, |frame| &*frame.name == "_conv_forward"),
        (Place::Forward, runs_a_module),
    ];
    if stacks.frames(stack).len() == 0 {
        return Place::NoStack;
    }
    rules.iter().find(|(_, is_it)| stacks.frames(stack).any(is_it)).map_or(Place::Other, |&(place, _)| place)
}

fn is_in(frame: &Frame, folders: &[&str]) -> bool {
    folders.iter().any(|folder| frame.filename.contains(folder))
}

/// Returns whether a call is a C++ call that allocates a library's workspace. Not every file has C++ calls.
fn is_workspace(frame: &Frame) -> bool {
    let is_library = |library: &&str| frame.name.contains(library);
    is_native(frame) && frame.name.contains("orkspace") && ["blas", "Blas", "cudnn", "Cudnn"].iter().any(is_library)
}

fn is_native(frame: &Frame) -> bool {
    !frame.filename.ends_with(".py")
}

fn is_in_optimizer(frame: &Frame) -> bool {
    is_in(frame, &["torch/optim/", "apex/optimizers/", "bitsandbytes/optim/", "deepspeed/ops/adam/"])
}

fn makes_states(frame: &Frame) -> bool {
    ["_init_group", "init_state", "_init_state", "initialize_state"].contains(&&*frame.name)
}

/// Returns whether a call creates, loads or moves a model: `Module.to` and `Module.cuda`, parameters created on the device,
/// and loaded weights.
fn makes_a_model(frame: &Frame) -> bool {
    let is_module = frame.filename.ends_with("torch/nn/modules/module.py");
    let moves = is_module && ["_apply", "to", "cuda", "load_state_dict", "_load_from_state_dict"].contains(&&*frame.name);
    let makes = &*frame.name == "__init__" && is_in(frame, &["torch/nn/modules/", "torch/nn/parameter.py"]);
    let loads = ["from_pretrained", "_load_pretrained_model", "set_module_tensor_to_device"].contains(&&*frame.name);
    moves || makes || loads || frame.filename.ends_with("torch/nn/init.py")
}

fn is_cache(frame: &Frame) -> bool {
    is_in(frame, &["transformers/cache_utils.py", "kv_cache", "cache_engine.py"])
}

fn is_loader(frame: &Frame) -> bool {
    is_in(frame, &["torch/utils/data/", "data_prefetcher", "torchdata/", "webdataset/"]) || &*frame.name == "pin_memory"
}

fn is_autograd(frame: &Frame) -> bool {
    // `Tensor.backward`, and the `backward` methods of a program's own autograd functions.
    is_in(frame, &["torch/autograd/__init__.py", "torch/autograd/graph.py"])
        || ["backward", "unpack_hook"].contains(&&*frame.name)
        || (is_native(frame) && frame.name.starts_with("torch::autograd::Engine::"))
}

fn runs_a_module(frame: &Frame) -> bool {
    let is_module = frame.filename.ends_with("torch/nn/modules/module.py");
    (is_module && ["_call_impl", "_wrapped_call_impl"].contains(&&*frame.name))
        || frame.filename.ends_with("torch/nn/functional.py")
}

/// The facts that a block's calls reveal beyond its lifetime.
pub(super) struct Calls {
    places: Places,
    /// The moments of allocations outside an optimizer's step, in order.
    elsewhere: Vec<u32>,
    /// The moments of allocations in modules' forward passes, in order.
    forward: Vec<u32>,
    passes: Vec<Pass>,
    /// The moment after which blocks may have been freed because of an error.
    until: u32,
}

impl Calls {
    pub(super) fn of(run: &Run<'_>, places: Places) -> Calls {
        let made_in = |of: &[Place]| -> Vec<u32> {
            run.blocks.iter().filter(|block| of.contains(&places.get(block.stack))).map(|block| block.born).collect()
        };
        let forward = made_in(&[Place::Forward, Place::Convolution, Place::Cache]);
        let elsewhere = made_in(&[Place::Forward, Place::Convolution, Place::Cache, Place::Data, Place::Model, Place::Other]);
        Calls { places, elsewhere, forward, passes: run.passes.clone(), until: run.until }
    }

    pub(super) fn tell(&self, block: &BlockLife, by_life: Told) -> Told {
        let by_stack = |kind| Told::new(kind, How::Stack);
        let lived = block.freed.saturating_sub(block.born);
        match self.places.get(block.stack) {
            Place::Model => by_stack(Kind::Parameters),
            Place::OptimizerStates => by_stack(Kind::OptimizerStates),
            Place::Optimizer => self.of_optimizer(block, by_life),
            Place::Data => by_stack(Kind::Inputs),
            Place::Workspace => by_stack(Kind::Workspaces),
            Place::Cache if by_life.kind != Kind::Temporaries => by_stack(Kind::Caches),
            Place::Convolution if by_life.kind == Kind::Temporaries && lived <= CONVOLUTION => by_stack(Kind::Workspaces),
            Place::Convolution | Place::Forward if by_life == Told::NOTHING && block.freed > self.until => {
                by_stack(Kind::Activations)
            }
            Place::Other if matches!(by_life.kind, Kind::Activations | Kind::Unknown) && self.is_input(block) => {
                by_stack(Kind::Inputs)
            }
            _ => by_life,
        }
    }

    /// Returns whether the program itself allocated a block before the first module of a pass and still held it then.
    fn is_input(&self, block: &BlockLife) -> bool {
        let place = self.passes.partition_point(|pass| pass.end < block.born);
        let last_end = place.checked_sub(1).map_or(0, |before| self.passes[before].end);
        let next = self.forward.partition_point(|&born| born <= block.born);
        let is_first = next.checked_sub(1).is_none_or(|last| self.forward[last] <= last_end);
        block.born > 0 && is_first && self.forward.get(next).is_some_and(|&born| born < block.freed)
    }

    /// Classifies a block that an optimizer allocated: it is a state if it is still live when the program continues
    /// elsewhere.
    fn of_optimizer(&self, block: &BlockLife, by_life: Told) -> Told {
        let next = self.elsewhere.partition_point(|&born| born <= block.born);
        let is_left = self.elsewhere.get(next).is_some_and(|&born| born < block.freed);
        match by_life.kind {
            Kind::OptimizerStates => Told::new(Kind::OptimizerStates, How::Stack),
            _ if is_left => Told::new(Kind::OptimizerStates, How::Stack),
            _ if block.freed <= self.until => Told::new(Kind::Temporaries, How::Stack),
            _ => by_life,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_say_what_is_made() {
        let cases: [(&[(&str, &str)], Place); 11] = [
            (&[], Place::NoStack),
            (&[("torch/nn/modules/module.py", "<lambda>"), ("torch/nn/modules/module.py", "_apply")], Place::Model),
            (&[("torch/optim/adam.py", "_init_group"), ("torch/optim/adam.py", "step")], Place::OptimizerStates),
            (&[("torch/optim/adam.py", "_multi_tensor_adam"), ("train.py", "main")], Place::Optimizer),
            (&[("transformers/cache_utils.py", "update"), ("torch/nn/modules/module.py", "_call_impl")], Place::Cache),
            (&[("torch/nn/modules/conv.py", "_conv_forward"), ("torch/nn/modules/module.py", "_call_impl")], Place::Convolution),
            (&[("torch/nn/functional.py", "relu"), ("torch/nn/modules/module.py", "_call_impl")], Place::Forward),
            (&[("torch/autograd/__init__.py", "_make_grads"), ("train.py", "main")], Place::Autograd),
            (&[("??", "at::cuda::blas::getCUDABlasLtWorkspace"), ("torch/nn/functional.py", "linear")], Place::Workspace),
            (&[("??", "at::_ops::mm::call"), ("??", "torch::autograd::Engine::thread_main(int)")], Place::Autograd),
            (&[("my_workspace_blas.py", "main")], Place::Other),
        ];
        for (calls, expected) in cases {
            let mut stacks = StackTable::default();
            let frames: Vec<u32> = calls
                .iter()
                .map(|&(file, name)| {
                    let filename = if file == "??" { file.into() } else { format!("/somewhere/{file}").into() };
                    stacks.intern_frame(Frame { filename, line: 1, name: name.into() })
                })
                .collect();
            let stack = stacks.intern_stack(&frames);
            assert_eq!(Places::of(&stacks, [stack].into_iter()).get(stack), expected, "{calls:?}");
        }
    }
}
