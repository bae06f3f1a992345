//! What the Python calls of an allocation say of it.
//!
//! Files are told by the ends of their paths, because everything before `torch/` depends on the machine.

use parkade_recording::{Frame, StackId, StackTable};
use rustc_hash::FxHashMap;

/// The part of a program in which an allocation was made.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Place {
    /// The file has no calls.
    NoStack,
    /// A model is made, loaded or moved.
    Model,
    /// An optimizer makes its states.
    OptimizerStates,
    /// Another part of an optimizer's step.
    Optimizer,
    /// A loader of data.
    Data,
    /// A cache of keys and values.
    Cache,
    /// The workspace of a library, by calls in C++.
    Workspace,
    /// Calls of autograd: the start of a backward pass, or Python code that it runs.
    Autograd,
    /// A convolution in a module's forward pass.
    Convolution,
    /// A module's forward pass.
    Forward,
    /// None of these.
    Other,
}

/// The places of a recording's stacks, each looked up once.
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

    pub(super) fn get(&self, stack: StackId) -> Place {
        self.known.get(&stack).copied().unwrap_or(Place::NoStack)
    }
}

/// Whether a call is of a kind.
type Rule = fn(&Frame) -> bool;

/// The place of a stack. The first rule that holds for any of its calls decides.
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

/// C++ calls, which a file has if it was recorded with them.
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

/// `Module.to` and `Module.cuda`, parameters made on the device, and loaded weights.
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
    // `Tensor.backward`, and the methods of that name of a program's own functions.
    is_in(frame, &["torch/autograd/__init__.py", "torch/autograd/graph.py"])
        || ["backward", "unpack_hook"].contains(&&*frame.name)
}

fn runs_a_module(frame: &Frame) -> bool {
    let is_module = frame.filename.ends_with("torch/nn/modules/module.py");
    (is_module && ["_call_impl", "_wrapped_call_impl"].contains(&&*frame.name))
        || frame.filename.ends_with("torch/nn/functional.py")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_say_what_is_made() {
        let cases: [(&[(&str, &str)], Place); 10] = [
            (&[], Place::NoStack),
            (&[("torch/nn/modules/module.py", "<lambda>"), ("torch/nn/modules/module.py", "_apply")], Place::Model),
            (&[("torch/optim/adam.py", "_init_group"), ("torch/optim/adam.py", "step")], Place::OptimizerStates),
            (&[("torch/optim/adam.py", "_multi_tensor_adam"), ("train.py", "main")], Place::Optimizer),
            (&[("transformers/cache_utils.py", "update"), ("torch/nn/modules/module.py", "_call_impl")], Place::Cache),
            (&[("torch/nn/modules/conv.py", "_conv_forward"), ("torch/nn/modules/module.py", "_call_impl")], Place::Convolution),
            (&[("torch/nn/functional.py", "relu"), ("torch/nn/modules/module.py", "_call_impl")], Place::Forward),
            (&[("torch/autograd/__init__.py", "_make_grads"), ("train.py", "main")], Place::Autograd),
            (&[("??", "at::cuda::blas::getCUDABlasLtWorkspace"), ("torch/nn/functional.py", "linear")], Place::Workspace),
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
