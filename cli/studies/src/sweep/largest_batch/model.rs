//! Models and training options on the command line.

use std::collections::BTreeSet;

use anyhow::{Result, anyhow, bail};
use parkade_research::study::largest_batch::Numbers;
use parkade_research::workload::generators::transformer::{Attention, Checkpointing, Transformer};

/// Reads a model: a preset, sizes, or a preset whose sizes are changed.
///
/// # Errors
/// A line that names the mistake and the choices.
pub(super) fn model(text: &str) -> Result<(String, Transformer)> {
    let mut transformer = Transformer::default();
    let mut keys = BTreeSet::new();
    for (place, part) in text.split(',').map(str::trim).enumerate() {
        match part.split_once('=') {
            Some((key, _)) if !keys.insert(key.trim()) => bail!("{} is given twice", key.trim()),
            Some((key, value)) => set(&mut transformer, key.trim(), value.trim())?,
            None if place == 0 => {
                transformer = Transformer::preset(part).ok_or_else(|| {
                    let presets: Vec<_> = Transformer::presets().collect();
                    anyhow!("there is no model {part:?}; there are {}, and sizes as layers=24,hidden=2048", presets.join(", "))
                })?;
            }
            None => bail!("{part:?} is not of the form key=value"),
        }
    }
    Ok((text.trim().to_owned(), transformer))
}

fn set(transformer: &mut Transformer, key: &str, value: &str) -> Result<()> {
    let number = || value.parse::<u64>().map_err(|_| anyhow!("{key} is {value:?}, which is not a whole number"));
    let one_of = |allowed: &str| anyhow!("{key} is {value:?}; it can be {allowed}");
    match key {
        "layers" => transformer.layers = number()?,
        "hidden" => transformer.hidden = number()?,
        "heads" => transformer.heads = number()?,
        "vocabulary" => transformer.vocabulary = number()?,
        "sequence" => transformer.sequence = number()?,
        "ratio" => transformer.mlp_ratio = number()?,
        "tied" => transformer.tied = value.parse().map_err(|_| one_of("true, false"))?,
        "attention" => {
            transformer.attention = match value {
                "fused" => Attention::Fused,
                "materialized" => Attention::Materialized,
                _ => return Err(one_of("fused, materialized")),
            }
        }
        _ => bail!("a model has no {key:?}; it has layers, hidden, heads, vocabulary, sequence, ratio, attention, tied"),
    }
    Ok(())
}

/// Reads a way of checkpointing.
pub(super) fn checkpointing(text: &str) -> Result<Checkpointing, String> {
    match text.trim() {
        "none" => Ok(Checkpointing::None),
        "layer" => Ok(Checkpointing::EveryLayer),
        "other" => Ok(Checkpointing::EveryOther),
        "sqrt" => Ok(Checkpointing::Sqrt),
        group => group
            .parse()
            .map(Checkpointing::Every)
            .map_err(|_| format!("{text:?} is not a way of checkpointing: write none, layer, other, sqrt or a number of layers")),
    }
}

/// The word for a way of checkpointing.
pub(super) fn checkpointing_name(checkpointing: Checkpointing) -> String {
    match checkpointing {
        Checkpointing::None => "none".to_owned(),
        Checkpointing::EveryLayer => "layer".to_owned(),
        Checkpointing::EveryOther => "other".to_owned(),
        Checkpointing::Sqrt => "sqrt".to_owned(),
        Checkpointing::Every(group) => group.to_string(),
    }
}

/// Reads a way of keeping numbers.
pub(super) fn numbers(text: &str) -> Result<Numbers, String> {
    let found = Numbers::ALL.into_iter().find(|numbers| numbers.name() == text.trim());
    found.ok_or_else(|| format!("{text:?} is not a precision: write one of {}", Numbers::ALL.map(Numbers::name).join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_a_preset_sizes_or_both() {
        let seven = Transformer::preset("7b").expect("a preset");
        assert_eq!(model("7b").expect("a model"), ("7b".to_owned(), seven.clone()));
        let changed = Transformer { layers: 16, tied: false, ..seven };
        assert_eq!(model("7b, layers=16,tied=false").expect("a model").1, changed);
        let sizes = model("hidden=64,heads=2,vocabulary=7,sequence=9,ratio=3,attention=materialized").expect("a model").1;
        assert_eq!((sizes.hidden, sizes.heads, sizes.vocabulary, sizes.sequence, sizes.mlp_ratio), (64, 2, 7, 9, 3));
        assert_eq!((sizes.attention, sizes.layers), (Attention::Materialized, Transformer::default().layers));
    }

    #[test]
    fn what_is_no_model_is_said() {
        for (text, why) in [
            ("8b", "there is no model \"8b\""),
            ("", "there is no model \"\""),
            ("7b,13b", "\"13b\" is not of the form"),
            ("layers=many", "layers is \"many\", which is not a whole number"),
            ("tied=maybe", "it can be true, false"),
            ("attention=flash", "it can be fused, materialized"),
            ("7b,layers=5,layers=5", "layers is given twice"),
            ("width=5", "a model has no \"width\""),
        ] {
            let error = model(text).expect_err(text).to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn words_of_checkpointing_are_read_back() {
        for text in ["none", "layer", "other", "sqrt", "4"] {
            assert_eq!(checkpointing(text).map(checkpointing_name).as_deref(), Ok(text));
        }
        assert!(checkpointing("every").is_err() && checkpointing("-1").is_err() && numbers("fp8").is_err());
        assert!(Numbers::ALL.into_iter().all(|one| numbers(one.name()) == Ok(one)));
    }
}
