//! `--list`: what there is to be named.

use std::io::Write;

use anyhow::Result;
use parkade_policies::CATALOGUE as POLICIES;
use parkade_research::study::Addresses;
use parkade_research::workload::{self, CATALOGUE};
use serde_json::{Value, json};

use crate::output;

pub(super) fn show(is_json: bool) -> Result<()> {
    let mut out = output::stdout();
    if is_json {
        writeln!(out, "{}", object())?;
    } else {
        lines(&mut out)?;
    }
    Ok(out.flush()?)
}

fn lines(out: &mut impl Write) -> std::io::Result<()> {
    writeln!(out, "workloads")?;
    for known in &CATALOGUE {
        writeln!(out, "  {:<26} {}", known.name, known.says)?;
    }
    writeln!(out, "  {:<26} the requests of a recorded program (a PyTorch memory snapshot)", "FILE")?;
    writeln!(out, "\ngenerators, and the options that their descriptions can have (NAME:option=value,...)")?;
    for name in workload::generator_names() {
        writeln!(out, "  {name:<26} {}", workload::keys(name).unwrap_or_default().join(", "))?;
    }
    writeln!(out, "\npolicies")?;
    for policy in POLICIES {
        writeln!(out, "  {:<26} {}\n  {:<26} from {}", policy.name, policy.says, "", policy.source)?;
    }
    writeln!(out, "\naddress models: where the device places segments (--addresses)")?;
    for model in Addresses::ALL {
        writeln!(out, "  {:<26} {}", model.name(), model.says())?;
    }
    Ok(())
}

fn object() -> Value {
    let workloads = CATALOGUE.iter().map(|known| json!({ "name": known.name, "says": known.says, "description": known.text }));
    let generators = workload::generator_names().map(|name| json!({ "name": name, "options": workload::keys(name) }));
    let policies = POLICIES.iter().map(|policy| json!({ "name": policy.name, "says": policy.says, "source": policy.source }));
    let models = Addresses::ALL.into_iter().map(|model| json!({ "name": model.name(), "says": model.says() }));
    json!({
        "workloads": workloads.collect::<Vec<_>>(),
        "generators": generators.collect::<Vec<_>>(),
        "policies": policies.collect::<Vec<_>>(),
        "address_models": models.collect::<Vec<_>>(),
    })
}
