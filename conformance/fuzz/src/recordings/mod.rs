//! Recordings as values: sound ones, made by the allocator itself, then changed in plausible ways, then written as pickles.
//!
//! Of pickles whose bytes are damaged, one in five gets past the reader. Of these, nearly all do, so the commands see them.
//!
//! | file | what it does |
//! |---|---|
//! | `bases` | makes the sound ones: random programs under random settings |
//! | `changes` | changes a recording: its entries, settings, devices, annotations |
//! | `heap_changes` | changes its segments and blocks |
//! | `spell` | writes it, in any spelling, perhaps with fields that are missing or wrong |

mod bases;
mod changes;
mod heap_changes;
mod spell;

pub(crate) use bases::bases;

use parkade_recording::{Recording, Style, write};

use crate::choices::Choices;
use crate::pickle::Spelling;

/// A recording for the commands: written soundly, whatever it says.
pub(crate) fn plausible(choices: &mut Choices<'_>) -> Vec<u8> {
    let recording = changed(choices);
    write(&recording, Style::Python)
}

/// A recording for the reader: in any spelling, with up to three spoiled fields.
pub(crate) fn spelled(choices: &mut Choices<'_>) -> Vec<u8> {
    let recording = changed(choices);
    let spelling = Spelling::any(choices);
    let spoils = if choices.once_in(3) { 1 + choices.below(3) } else { 0 };
    spell::spell(&recording, spelling, spoils, choices)
}

/// A sound recording, written by parkade.
pub(crate) fn sound(choices: &mut Choices<'_>) -> Vec<u8> {
    let style = if choices.once_in(2) { Style::Cpp } else { Style::Python };
    write(&bases()[choices.below(bases().len())], style)
}

fn changed(choices: &mut Choices<'_>) -> Recording {
    let mut recording = bases()[choices.below(bases().len())].clone();
    let most = if choices.once_in(4) { 24 } else { 5 };
    for _ in 0..choices.below(most) {
        changes::change(&mut recording, choices);
    }
    recording
}
