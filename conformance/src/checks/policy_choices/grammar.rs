//! Compares the reader of policies' names with a [second one](crate::reference_policies::names): for names and grids that are drawn
//! from the grammar and sometimes corrupted in one place, for every parameter at and around its borders and those of 64 bits, and
//! for the declarations of a program.

use std::rc::Rc;
use std::sync::LazyLock;

use parkade::policy::PyTorch;
use parkade::settings::Settings;
use parkade::units::Bytes;
use parkade_policies::{BESIDE, CATALOGUE, Entry, Named, Parameter, Policies, Unknown, base, items, named, needs_serial_work};
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::core_laws::settings::{Spoil, spoil, spoiled};
use crate::drawn::{Draws, one_of, run_law};
use crate::law::{Broken, Law, ensure};
use crate::program::step::profiles;
use crate::reference_model::settings::keys_of;
use crate::reference_policies::names::{
    DECLARED, Declared, EXPANDABLE, Found, Key, Kind, REMOVED, RENAMED, Refusal, pieces, read, read_grid,
};

/// The number of names in each drawn case.
const NAMES_PER_CASE: usize = 4;

const fn own(name: &'static str, parameters: &'static [Parameter]) -> Entry {
    Entry::new(name, "says", "our own", |_| Box::new(PyTorch::new(Settings::default())))
        .with_parameters(parameters)
        .keeping_memory_if(|values| values.number("count") > 7)
        .checked_by(|values| if values.text("note") == "never" { Err("a note must not be never".to_owned()) } else { Ok(()) })
}

const COUNT: Parameter = Parameter::number("count", "", "7", 0, u64::MAX);
const WHOLE: Parameter = Parameter::size("whole", "", "1TiB", Bytes::ZERO, Bytes(u64::MAX));
const PART: Parameter = Parameter::size("part", "", "none", Bytes(3), Bytes(1 << 63)).or_unlimited("none");
const WORD: Parameter = Parameter::choice("word_1", "", "a", &["a", "b", "a.b"]).or_unlimited("none");
const NOTE: Parameter = Parameter::text("note", "", "x", "any text");

/// A policy that a program declares itself.
static OWN: [Entry; 1] = [own("own.policy", &[COUNT, WHOLE, PART, WORD, NOTE])];

/// The same for the second reader.
const OWN_DECLARED: Declared = Declared(
    "own.policy",
    &[
        Key("count", "7", Kind::Number(0, u64::MAX)),
        Key("whole", "1TiB", Kind::Size(0, u64::MAX, "")),
        Key("part", "none", Kind::Size(3, 1 << 63, "none")),
        Key("word_1", "a", Kind::Word(&["a", "b", "a.b"])),
        Key("note", "x", Kind::Text),
    ],
);

fn holds(holds: bool, says: impl FnOnce() -> String) -> Result<(), Broken> {
    ensure(Law::Choices, holds, says)
}

/// Both readers, with the program's own policy.
struct Readers {
    policies: Policies,
    declared: Vec<Declared>,
}

pub(super) fn check(draws: &Draws, salt: u64) -> Result<(), Broken> {
    check_names_of_declarations()?;
    check_parameters_of_declarations()?;
    let policies = Policies::with(&OWN).map_err(|why| Broken::new(Law::Choices, why))?;
    let readers = Readers { policies, declared: DECLARED.into_iter().chain([OWN_DECLARED]).collect() };
    readers.check_lists()?;
    readers.check_every_parameter()?;
    readers.check_pairs()?;
    readers.check_settings_of_releases()?;
    readers.check_former()?;
    let strategy = prop::collection::vec(any_text(&readers.declared), NAMES_PER_CASE);
    let outcome = run_law(draws, salt, strategy, move |texts| {
        for text in texts {
            readers.name(text)?;
            readers.grid(text)?;
        }
        list(texts)?;
        Ok(texts.len() as u64)
    });
    outcome.map(drop).map_err(|failure| failure.broken.during(failure.script.trim_end()))
}

/// Compares how a list is cut into its names.
fn list(texts: &[String]) -> Result<(), Broken> {
    let list = texts.join(",");
    let seen: Vec<&str> = items(&list).collect();
    let pieces = pieces(&list, ',');
    let expected: Vec<&str> = pieces.iter().map(|piece| piece.trim()).filter(|piece| !piece.is_empty()).collect();
    holds(seen == expected, || format!("the list {list:?} has the items {seen:?}, expected {expected:?}"))
}

/// Returns whether an error has the right kind and mentions what it should.
fn is_same(error: &Unknown, expected: &Refusal) -> bool {
    let says = error.to_string();
    match (error, expected) {
        (Unknown::Name, Refusal::Unknown) => true,
        (Unknown::Renamed(seen), Refusal::Renamed(now)) => seen == now && says.contains(now),
        (Unknown::Removed(seen), Refusal::Removed(instead)) => seen == instead && says.contains(instead),
        (Unknown::Parameter(_), Refusal::Parameter(mentions)) => mentions.iter().all(|mention| says.contains(mention)),
        _ => false,
    }
}

impl Readers {
    /// Compares what a name leads to.
    fn name(&self, text: &str) -> Result<(), Broken> {
        let before: String = text.chars().take_while(|letter| *letter != ':').collect();
        holds(base(text) == before, || format!("the base of {text:?} is {:?}", base(text)))?;
        let (seen, expected) = (self.policies.named(text), read(&self.declared, text));
        match (&seen, &expected) {
            (Ok(seen), Ok(expected)) => self.policy(text, seen, expected),
            (Err(error), Err(refusal)) if is_same(error, refusal) => Ok(()),
            _ => {
                let seen = seen.map(|found| found.name);
                Err(Broken::new(Law::Choices, format!("{text:?} leads to {seen:?}, expected {expected:?}")))
            }
        }
    }

    /// Compares everything that is known of a policy.
    fn policy(&self, text: &str, seen: &Named, expected: &Found) -> Result<(), Broken> {
        let says = |what: &str, seen: &dyn std::fmt::Debug| format!("{text:?}: {what} is {seen:?}, expected {expected:?}");
        holds(seen.name == expected.name, || says("the name", &seen.name))?;
        holds(seen.entry.name == expected.stem, || says("the base", &seen.entry.name))?;
        let declared = self.declared.iter().find(|declared| declared.0 == expected.stem).map_or(&[][..], |declared| declared.1);
        let given = seen.values.given();
        let kept: Vec<&(&str, String, u64)> =
            expected.values.iter().zip(declared).filter(|((_, value, _), key)| value != key.1).map(|(value, _)| value).collect();
        let same = given.len() == kept.len() && given.iter().zip(&kept).all(|(a, b)| a.0 == b.0 && *a.1 == *b.1);
        holds(same, || says("what differs from the defaults", &given))?;
        for ((key, value, number), Key(.., kind)) in expected.values.iter().zip(declared) {
            let text = seen.values.text(key);
            let is_right = text == value
                && match kind {
                    Kind::Number(..) => seen.values.number(key) == *number,
                    Kind::Size(..) => seen.values.bytes(key) == Bytes(*number),
                    _ => true,
                };
            holds(is_right, || says(key, &text))?;
        }
        let listed = CATALOGUE.iter().chain(BESIDE).find(|listed| listed.name == expected.name);
        let described = listed.map_or_else(
            || {
                kept.is_empty()
                    || kept.iter().all(|(key, value, _)| seen.says.contains(key) && seen.says.contains(value.as_str()))
            },
            |listed| listed.says == seen.says,
        );
        holds(described && seen.source == listed.map_or(seen.entry.source, |listed| listed.source), || {
            says("the description", &(&seen.says, seen.source))
        })?;
        self.facts(text, seen, expected)
    }

    /// Compares what follows from a policy's name and parameters.
    fn facts(&self, text: &str, seen: &Named, expected: &Found) -> Result<(), Broken> {
        let is = |key: &str, wanted: &str| expected.values.iter().any(|(known, value, _)| *known == key && value == wanted);
        let is_plain = expected.name == expected.stem;
        let is_serial = expected.stem == "compaction" || is("reach", "breaks");
        let own_count = expected.values.iter().find(|(key, ..)| *key == "count").map_or(0, |(.., number)| *number);
        let keeps = expected.stem == "rmm-pool" || expected.stem == "bfc" && !is("kind", "growth") || own_count > 7;
        let facts = (seen.own_parameters().len(), needs_serial_work(text), seen.keeps_memory());
        let expected_facts = (if is_plain { expected.values.len() } else { 0 }, is_serial, keeps);
        holds(facts == expected_facts, || {
            format!(
                "{text:?}: the number of parameters, whether it needs serial work and keeps memory are {facts:?}, expected {expected_facts:?}"
            )
        })?;
        if !is_plain {
            let borders = self.policies.borders(seen).len();
            return holds(borders == 0, || format!("{text:?} has parameters already, but {borders} policies at borders"));
        }
        let declared = self.declared.iter().find(|declared| declared.0 == expected.stem).map_or(&[][..], |declared| declared.1);
        let texts = declared.iter().flat_map(|Key(key, _, kind)| {
            kind.borders().into_iter().map(move |value| format!("{}:{key}={value}", expected.stem))
        });
        let names = texts.filter_map(|text| read(&self.declared, &text).ok()).map(|found| found.name);
        let borders: Vec<String> = names.filter(|name| *name != expected.name).collect();
        let seen: Vec<String> = self.policies.borders(seen).into_iter().map(|border| border.name.into_owned()).collect();
        holds(seen == borders, || format!("the policies at the borders of {text:?} are {seen:?}, expected {borders:?}"))
    }

    /// Compares the policies of a grid.
    fn grid(&self, text: &str) -> Result<(), Broken> {
        let found = self.policies.grid(text);
        let expected = read_grid(&self.declared, text);
        let is_right = match (&found, &expected) {
            (Ok(found), Ok(names)) => found.iter().map(|found| &*found.name).eq(names.iter().map(String::as_str)),
            (Err(error), Err(refusal)) => is_same(error, refusal),
            _ => false,
        };
        holds(is_right, || {
            let found = found.map(|found| found.into_iter().map(|found| found.name).collect::<Vec<_>>());
            format!("the grid {text:?} leads to {found:?}, expected {expected:?}")
        })
    }

    /// Compares the lists of declarations.
    fn check_lists(&self) -> Result<(), Broken> {
        let seen: Vec<&str> = self.policies.entries().map(|entry| entry.name).collect();
        let expected: Vec<&str> = self.declared.iter().map(|declared| declared.0).collect();
        let (own, without) = (self.policies.own().map(|own| own.name).collect::<Vec<_>>(), Policies::default());
        holds(seen == expected && own == ["own.policy"] && without.own().count() == 0, || {
            format!("the declared policies are {seen:?} and {own:?}, expected {expected:?}")
        })?;
        let is_known = (without.named("own.policy").is_ok(), named("own.policy:count=8").is_ok());
        holds(is_known == (false, false), || "a program's own policy is known without its declaration".to_owned())?;
        for (entry, declared) in self.policies.entries().zip(&self.declared) {
            let keys: Vec<(&str, &str)> = entry.parameters.iter().map(|parameter| (parameter.key, parameter.usual)).collect();
            let expected: Vec<(&str, &str)> = declared.1.iter().map(|Key(key, usual, _)| (*key, *usual)).collect();
            holds(keys == expected, || format!("{} has the parameters {keys:?}, expected {expected:?}", entry.name))?;
        }
        Ok(())
    }

    /// Compares every parameter with every value at or around a border.
    fn check_every_parameter(&self) -> Result<(), Broken> {
        for (entry, Declared(stem, keys)) in self.policies.entries().zip(&self.declared) {
            for (parameter, Key(key, usual, kind)) in entry.parameters.iter().zip(*keys) {
                one_parameter(parameter, *kind)?;
                for value in written(*kind, usual) {
                    self.name(&format!("{stem}:{key}={value}"))?;
                    let (seen, expected) = (parameter.checked(&value), kind.form(&value));
                    let is_right = match (&seen, &expected) {
                        (Ok(seen), Some((form, _))) => seen == form,
                        (Err(says), None) => says.contains(key) && says.contains(&value) && says.contains(&kind.to_string()),
                        _ => false,
                    };
                    holds(is_right, || format!("{key}={value}: {seen:?}, expected {expected:?}"))?;
                }
            }
        }
        Ok(())
    }

    /// Compares the grids of every two parameters of a policy, in both orders.
    fn check_pairs(&self) -> Result<(), Broken> {
        for Declared(stem, keys) in &self.declared {
            let varied = |key: &Key| match key.2.borders() {
                values if values.len() > 1 => Some(format!("{}={}", key.0, values.join("/"))),
                _ => None,
            };
            let varied: Vec<String> = keys.iter().filter_map(varied).collect();
            for (one, other) in varied.iter().flat_map(|one| varied.iter().map(move |other| (one, other))) {
                self.grid(&format!("{stem}:{one};{other}"))?;
            }
        }
        Ok(())
    }

    /// Compares every setting of every release, in a name with that release.
    fn check_settings_of_releases(&self) -> Result<(), Broken> {
        for profile in profiles() {
            for key in keys_of(15) {
                for value in SETTING_VALUES {
                    self.name(&format!("pytorch:release={};settings=[{key}:{value}]", profile.name))?;
                }
                self.name(&format!("pytorch-rescue:settings=[{key}:True];release={}", profile.name))?;
            }
        }
        Ok(())
    }

    /// Compares former names, alone and with each parameter that their replacement may have.
    fn check_former(&self) -> Result<(), Broken> {
        for before in RENAMED.iter().chain(&REMOVED).map(|(before, _)| *before).chain(["nothing", EXPANDABLE, "all", ""]) {
            self.name(before)?;
            for key in self.declared.iter().flat_map(|declared| declared.1) {
                for value in key.2.borders().into_iter().chain([key.1.to_owned(), "x".to_owned()]) {
                    self.name(&format!("{before}:{}={value}", key.0))?;
                }
            }
        }
        Ok(())
    }
}

/// Values of settings of each type.
const SETTING_VALUES: [&str; 4] = ["True", "0.5", "64", "native"];

/// Compares what a declaration says about a parameter.
fn one_parameter(parameter: &Parameter, kind: Kind) -> Result<(), Broken> {
    let words = if let Kind::Word(words) = kind { words } else { &[] };
    let listed = (parameter.choices(), parameter.borders(), parameter.in_brackets());
    let expected = (words, kind.borders(), parameter.key == "settings");
    holds(listed == expected, || format!("{parameter:?} lists {listed:?}, expected {expected:?}"))?;
    let (accepts, written) = (parameter.accepts.to_string(), parameter.written("1"));
    holds(accepts.contains(&kind.to_string()) && written == if expected.2 { "[1]" } else { "1" }, || {
        format!("{parameter:?} accepts {accepts:?}, expected {:?}; 1 is written {written:?}", kind.to_string())
    })
}

/// Returns values at and around the borders of a parameter and of 64 bits, in every unit, and values that are almost right.
fn written(kind: Kind, usual: &str) -> Vec<String> {
    let around = |border: u128| [border.saturating_sub(1), border, border + 1];
    let over = 1_u128 << 64;
    let mut values: Vec<String> = match kind {
        Kind::Text => RELEASES_AND_SETTINGS.map(str::to_owned).to_vec(),
        Kind::Word(words) => words.iter().flat_map(|word| [word.to_string(), word.to_uppercase(), format!("{word}x")]).collect(),
        Kind::Number(least, most) => {
            let borders = [least.into(), most.into(), 1 << 32, 1 << 63, over, over + u128::from(least), over + u128::from(most)];
            borders.into_iter().flat_map(around).map(|number| number.to_string()).collect()
        }
        Kind::Size(least, most, _) => [("B", 0), ("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40), ("MB", 20), ("", 0)]
            .into_iter()
            .flat_map(|(unit, shift)| {
                let [least, most] = [least, most].map(|bytes| u128::from(bytes) >> shift);
                let borders = [least, most, over >> shift, (over >> shift) + least, (over >> shift) + most];
                borders.into_iter().flat_map(around).map(move |number| format!("{number}{unit}"))
            })
            .collect(),
    };
    let more: Vec<String> = values.iter().flat_map(|value| [format!("0{value}"), format!("+{value}")]).collect();
    values.extend(more);
    values.extend(kind.borders());
    values.extend(
        ["", "0", "00", "-0", "1e1", "1.0", "0x1", "_1", "[[1]]", "\u{661}", "99999999999999999999999999"].map(str::to_owned),
    );
    values.extend(["+", "-", "00", "[", " "].map(|before| format!("{before}{usual}")));
    values.extend(["", " ", ".0", "e0", "]", "s", "%"].map(|behind| format!("{usual}{behind}")));
    values
}

/// Texts for parameters that accept any text: releases, settings, and what is neither.
const RELEASES_AND_SETTINGS: [&str; 34] = [
    "2.1",
    "2.1.0",
    "2.1.2",
    "2.1.3",
    "2.10",
    "2.11",
    "2.11.0",
    "2.11.0+cu130",
    "2.15+",
    "2.15.0+a+b",
    "2.12.1",
    "2.16",
    "2",
    "1.13",
    "02.11",
    "2.11.",
    "no",
    "x",
    "[]",
    "[ ]",
    "[expandable_segments:False]",
    "[expandable_segments:True]",
    "[expandable_segments : True,]",
    "[expandable_segments:True,max_split_size_mb:32]",
    "[expandable_segments:False,expandable_segments:True]",
    "[max_split_size_mb:64]",
    "max_split_size_mb:64",
    "[roundup_power2_divisions:[256:1,512:2,>:4]]",
    "[garbage_collection_threshold:0.5]",
    "[max_non_split_rounding_mb:-1]",
    "[backend:cudaMallocAsync]",
    "[backend:native]",
    "[per_process_memory_fraction:0.5]",
    "[per_process_memory_fraction:1]",
];

/// A parameter of a policy: its key, the values that it accepts, and those that it may not.
type Texts = (&'static str, Vec<String>, Vec<String>);

/// Returns a name or a grid, sometimes corrupted in one place.
fn any_text(declared: &[Declared]) -> impl Strategy<Value = String> + use<> {
    let texts = |declared: &Declared| -> Vec<Texts> {
        let keys = declared.1.iter().map(|Key(key, usual, kind)| {
            let all = written(*kind, usual);
            (*key, all.iter().filter(|value| kind.form(value).is_some()).cloned().collect(), all)
        });
        keys.collect()
    };
    let known: Vec<(&str, Rc<Vec<Texts>>)> = declared.iter().map(|declared| (declared.0, Rc::new(texts(declared)))).collect();
    // Former names take the parameters of their replacements.
    let of = |name: &str| known.iter().find(|(stem, _)| *stem == base(name)).map(|(_, texts)| texts.clone()).unwrap_or_default();
    let former: Vec<_> = RENAMED.iter().chain(&REMOVED).map(|(before, now)| (*before, of(now))).collect();
    let odd = [(EXPANDABLE, of("pytorch")), ("", of("bfc"))].to_vec();
    let stems = one_of![8 => select(known), 1 => select(former), 1 => select(odd)];
    let part = (any::<Index>(), prop::collection::vec((any::<Index>(), prop::bool::weighted(0.85)), 1..4), 0..10_usize);
    let joint = select(vec![";", ";", ";", " ; ", ";;", ",", ":"]);
    let name = (stems, prop::collection::vec(part, 0..5), joint, select(vec!["", "", "", " ", ";"])).prop_map(
        |((stem, keys), parts, joint, end)| {
            let parts = parts.iter().filter(|_| !keys.is_empty()).map(|(key, values, form)| {
                let (key, good, all) = &keys[key.index(keys.len())];
                // Few parts have several values.
                let count = if *form < 2 { values.len() } else { 1 };
                let values = values.iter().take(count).map(|(value, is_good)| {
                    let from = if *is_good { good } else { all };
                    from[value.index(from.len())].as_str()
                });
                let values: Vec<&str> = values.collect();
                match form {
                    1 | 3 => format!("{key} = {}", values.join(" / ")),
                    4 => format!("{key}=[{}]", values.join("/")),
                    5 => (*key).to_owned(),
                    _ => format!("{key}={}", values.join("/")),
                }
            });
            let parts: Vec<String> = parts.collect();
            if parts.is_empty() { format!("{stem}{end}") } else { format!("{stem}:{}{end}", parts.join(joint)) }
        },
    );
    let corrupted = prop::option::weighted(
        0.2,
        (any::<usize>(), one_of![4 => spoil(), 1 => select(vec!['/', ';', '=']).prop_map(Spoil::Insert)]),
    );
    (name, corrupted).prop_map(|(name, spoil)| match spoil {
        Some((place, spoil)) => spoiled(&name, place, spoil),
        None => name,
    })
}

/// Names that a program may want for its own policy, each twice in a row.
static WANTED: LazyLock<Vec<Entry>> = LazyLock::new(|| {
    let odd = [
        "all", "al", "alls", "", " ", "a b", "Mine", "mine", "a:b", "a;b", "a=b", "a/b", "[a]", "a,b", "-", "_", ".", "0",
        "\u{e9}",
    ];
    let known = DECLARED.iter().map(|declared| declared.0).chain([EXPANDABLE]);
    let former = RENAMED.iter().chain(&REMOVED).map(|(before, _)| *before);
    known.chain(former).chain(odd).flat_map(|name| [own(name, &[COUNT, NOTE]); 2]).collect()
});

/// Checks which names a program may give to its own policies.
fn check_names_of_declarations() -> Result<(), Broken> {
    let is_letter = |letter: char| matches!(letter, 'a'..='z' | '0'..='9' | '-' | '_' | '.');
    for place in (0..WANTED.len()).step_by(2) {
        let name = WANTED[place].name;
        let is_free =
            !name.is_empty() && name.chars().all(is_letter) && name != "all" && read(&DECLARED, name) == Err(Refusal::Unknown);
        for (declarations, expected) in [(&WANTED[place..=place], is_free), (&WANTED[place..place + 2], false)] {
            let answer = Policies::with(declarations).map(|_| ());
            let says = answer.as_ref().err().is_none_or(|why| why.contains(&format!("{name:?}")));
            holds(answer.is_ok() == expected && says, || {
                format!("declaring {} policies called {name:?} returned {answer:?}", declarations.len())
            })?;
        }
    }
    Ok(())
}

/// Declarations of parameters, of which the first are right.
static DECLARATIONS: [Entry; 16] = [
    own("mine", &[COUNT, NOTE]),
    own("mine", &[COUNT, NOTE, WHOLE, PART, WORD]),
    own("mine", &[NOTE, Parameter::number("count", "", "7", 7, 7)]),
    own("mine", &[COUNT, NOTE, Parameter::size("a", "", "0B", Bytes(0), Bytes(0))]),
    own("mine", &[COUNT, NOTE, Parameter::text("a", "", "", "")]),
    own("mine", &[COUNT, NOTE, COUNT]),
    own("mine", &[NOTE, Parameter::number("count", "", "7", 8, 9)]),
    own("mine", &[NOTE, Parameter::number("count", "", "07", 0, 9)]),
    own("mine", &[NOTE, Parameter::number("count", "", "", 0, 9)]),
    own("mine", &[COUNT, NOTE, Parameter::size("a", "", "1024KiB", Bytes(0), Bytes::MAX)]),
    own("mine", &[COUNT, NOTE, Parameter::size("a", "", "none", Bytes(0), Bytes::MAX)]),
    own("mine", &[COUNT, NOTE, Parameter::size("a", "", "2KiB", Bytes(0), Bytes(2047))]),
    own("mine", &[COUNT, NOTE, Parameter::choice("a", "", "c", &["a", "b"])]),
    own("mine", &[COUNT, NOTE, Parameter::text("A", "", "", "")]),
    own("mine", &[COUNT, NOTE, Parameter::text("", "", "", "")]),
    own("mine", &[COUNT, Parameter::text("note", "", "never", "")]),
];

/// The number of declarations that are right.
const RIGHT: usize = 5;

/// Checks which parameters a program may declare.
fn check_parameters_of_declarations() -> Result<(), Broken> {
    for place in 0..DECLARATIONS.len() {
        let answer = Policies::with(&DECLARATIONS[place..=place]).map(|_| ());
        let says = answer.as_ref().err().is_none_or(|why| why.contains("\"mine\""));
        holds(answer.is_ok() == (place < RIGHT) && says, || {
            format!("declaring {:?} returned {answer:?}", DECLARATIONS[place].parameters)
        })?;
    }
    Ok(())
}
