//! E9: how long autograd keeps tensors: each rule on the requests that the generator makes of a few operations.

use crate::backend::AnyBackend;
use crate::suite::{Entry, Evidence, Trouble, Verdict};
use parkade_research::workload::generators::autograd::{Backward, Block, Operation};
use parkade_research::workload::generators::chain::{Chain, Keeping};
use parkade_research::workload::{Event, Workload};

use crate::scenarios::story::{claim, failed, scenario};

pub(super) fn entries() -> Vec<Entry> {
    vec![
        scenario(
            "E9/rules",
            "what an operation saves, softmax, detach and gradients: the requests of each, in order",
            |_: &AnyBackend| rules(),
        ),
        scenario(
            "E9/patterns",
            "up up up, down down down; up and down; up (up down) with checkpointing: drawn",
            |_: &AnyBackend| patterns(),
        ),
    ]
}

/// What a program does: `+size` and `-size`, in order. Sizes tell its tensors apart.
fn requests(workload: &Workload) -> String {
    let mut sizes = Vec::new();
    let mut all = Vec::new();
    for event in &workload.events {
        match *event {
            Event::Allocate { bytes, .. } => {
                sizes.push(bytes);
                all.push(format!("+{bytes}"));
            }
            Event::Free { buffer } => all.push(format!("-{}", sizes.get(buffer as usize).copied().unwrap_or(0))),
            _ => {}
        }
    }
    all.join(" ")
}

/// Operations one after the other, behind an input of 1 byte.
fn block(operations: Vec<Operation>) -> Block {
    let mut block = Block::new(1);
    for operation in operations {
        block.push(operation);
    }
    block
}

/// A rule, operations that show it, how often they are run forward and backward, and the requests that follow from it.
struct Rule {
    says: &'static str,
    operations: Vec<Operation>,
    passes: usize,
    forward: &'static str,
    backward: &'static str,
}

fn all_rules() -> Vec<Rule> {
    vec![
        Rule {
            says: "what an operation saves for backward lives until its backward ran (the first saves 1, the third 20)",
            operations: vec![
                Operation::new(&[0], 10).keeps_inputs(),
                Operation::new(&[1], 20),
                Operation::new(&[2], 30).keeps_inputs(),
            ],
            passes: 1,
            forward: "+1 +10 +20 -10 +30 -30",
            backward: "+30 +20 -30 -20 +10 -20 +1 -10 -1 -1",
        },
        Rule {
            says: "softmax (11) saves its output, not its input (10), which goes as soon as the output is there",
            operations: vec![Operation::new(&[0], 10), Operation::new(&[1], 11).keeps_output(), Operation::new(&[2], 5)],
            passes: 1,
            forward: "+1 +10 -1 +11 -10 +5 -5",
            backward: "+5 +11 -5 +10 -11 -11 +1 -10 -1",
        },
        Rule {
            says: "detach, after the first operation, shares its memory: nothing is allocated, and no gradient goes beyond it",
            operations: vec![
                Operation::new(&[0], 10).keeps_inputs(),
                Operation::in_place(1).backward(Backward::Stops),
                Operation::new(&[2], 30).keeps_inputs(),
            ],
            passes: 1,
            forward: "+1 +10 +30 -30",
            backward: "+30 +10 -30 -10 -10 -1",
        },
        Rule {
            says: "the first gradient of a parameter (7) is assigned, the second added in place and given back at once",
            operations: vec![Operation::new(&[0], 10).keeps_inputs().parameters(&[7])],
            passes: 2,
            forward: "+1 +10 -10",
            backward: "+10 +1 +7 -10 -1 -1 +1 +10 -10 +10 +1 +7 -10 -1 -7 -1 -7",
        },
    ]
}

fn rules() -> Verdict {
    let mut text = String::new();
    for Rule { says, operations, passes, forward, backward } in all_rules() {
        let found = requests(&block(operations).trained(passes).map_err(failed)?);
        claim(found == format!("{forward} {backward}"), || format!("{says}: expected {forward} {backward}, found {found}"))?;
        text += &format!("{says}\n  forward   {forward}\n  backward  {backward}\n");
    }
    let forward_only = block(vec![Operation::new(&[0], 1).keeps_inputs().keeps_output()]).forward_only(10).map_err(failed)?;
    let most = forward_only.load_bytes(1);
    claim(most == 2 && forward_only.buffers() == 11, || format!("{most} bytes live at once"))?;
    text +=
        &format!("forward only, 10 operations of 1 byte: at most 2 activations live\n  forward   {}\n", requests(&forward_only));
    Ok(Evidence::text(text))
}

fn patterns() -> Verdict {
    let chain = |layers, inner_bytes, keeping| Chain { layers, checkpoint_bytes: 10, inner_bytes, fixed_bytes: 0, keeping };
    let drawings = [
        (
            "forward up up up, backward down down down",
            chain(5, 0, Keeping::All),
            vec!["    #", "   ###", "  #####", " #######", "#########"],
        ),
        ("forward only: up and down", chain(5, 10, Keeping::Nothing), vec![" # # # # # # # # # #", "#####################"]),
        (
            "checkpointing: up (up down), then down (up down)",
            chain(4, 20, Keeping::Groups(1)),
            vec![
                "          # #",
                "       #  # #  #",
                "    #  # ##### #  #",
                " #  # ########### #  #",
                " # ################# #",
                "#######################",
            ],
        ),
    ];
    let mut text = String::new();
    for (says, chain, rows) in drawings {
        let workload = chain.workload().map_err(failed)?;
        let found = workload.drawn(100, rows.len());
        if found.lines().ne(rows.iter().copied()) {
            return Err(Trouble::fail(format!("{says}: expected {rows:#?}, found\n{found}")));
        }
        text += &format!("{says}\n{found}\n");
    }
    Ok(Evidence::text(text))
}
