//! The objects that commands print, by their headings in docs/json.md.

use crate::commands::{advise, conform, diagnose, diff, export, info, pack, replay, report, stats, sweep, verify};
use crate::ranks;
use crate::terminal::json_struct::Sections;
use crate::terminal::shape::{Key, Object, Shape, Shaped};
use crate::terminal::{release, runner, self_check};

/// The objects that commands print, by their headings in docs/json.md.
const SECTIONS: [Sections; 15] = [
    runner::SECTIONS,
    release::SECTIONS,
    self_check::SECTIONS,
    advise::SECTIONS,
    conform::SECTIONS,
    diagnose::SECTIONS,
    diff::SECTIONS,
    export::SECTIONS,
    info::SECTIONS,
    pack::SECTIONS,
    replay::SECTIONS,
    report::SECTIONS,
    stats::SECTIONS,
    sweep::SECTIONS,
    verify::SECTIONS,
];

/// A heading of docs/json.md, and the keys of the object below it.
pub(super) struct Section {
    pub(super) heading: &'static str,
    pub(super) keys: Vec<Key>,
}

/// All of them.
pub(super) fn sections() -> Vec<Section> {
    let all = SECTIONS.iter().copied().flatten();
    let mut sections: Vec<Section> =
        all.map(|(heading, shape)| Section { heading, keys: shape().keys().expect("an object") }).collect();
    let ranks = ranks::SECTIONS.iter().map(|(heading, shape)| {
        let mut keys = shape().keys().expect("an object");
        let addition = advise::Addition::shape().keys().expect("an object");
        keys.extend(addition.into_iter().map(|key| Key { may_be_missing: true, ..key }));
        Section { heading, keys }
    });
    sections.extend(ranks);
    sections
}

/// What stands in objects of several commands and has a table of its own, by the heading of that.
pub(super) fn shared() -> Vec<(&'static str, Object)> {
    let of = |sections: Sections| {
        let (heading, shape) = sections[0];
        match shape() {
            Shape::Object(object) => (heading, object),
            shape => panic!("{heading} is {shape:?}"),
        }
    };
    vec![of(release::SECTIONS), of(self_check::SECTIONS)]
}
