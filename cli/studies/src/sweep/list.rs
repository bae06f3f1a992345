//! `--list`: the names of workloads, generators, policies and address models.

use std::io::{self, Write};

use parkade_policies::CATALOGUE as POLICIES;
use parkade_research::study::Addresses;
use parkade_research::workload::{self, CATALOGUE, NamedWorkload};

use parkade_terminal::json_struct::{all, view};

pub(super) fn print(out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "workloads")?;
    for known in &CATALOGUE {
        writeln!(out, "  {:<26} {}", known.name, known.says)?;
    }
    writeln!(out, "  {:<26} the requests of a recorded program (a PyTorch memory snapshot)", "FILE")?;
    writeln!(out, "\ngenerators and the options of their descriptions (NAME:option=value,...)")?;
    for name in workload::generator_names() {
        writeln!(out, "  {name:<26} {}", workload::keys(name).unwrap_or_default().join(", "))?;
    }
    writeln!(out, "\npolicies")?;
    for policy in POLICIES {
        writeln!(out, "  {:<26} {}\n  {:<26} from {}", policy.name, policy.says, "", policy.source)?;
    }
    writeln!(
        out,
        "  {:<26} a policy that ends in -remap with handles of that size: 4MiB to 512MiB, 20MiB, 1GiB",
        "NAME:handle=SIZE"
    )?;
    writeln!(out, "\naddress models: where the device places segments (--addresses)")?;
    for model in Addresses::ALL {
        writeln!(out, "  {:<26} {}", model.name(), model.says())?;
    }
    Ok(())
}

view! {
    pub(super) struct Object() {
        workloads: Vec<Workload> = all(&CATALOGUE, Workload::of),
        generators: Vec<Generator> = all(workload::generator_names(), Generator::of),
        policies: Vec<Policy> = all(POLICIES, Policy::of),
        address_models: Vec<Model> = all(Addresses::ALL, Model::of),
    }
}

view! {
    struct Workload(known: &'static NamedWorkload) {
        name: &'static str = known.name,
        says: &'static str = known.says,
        description: &'static str = known.text,
    }
}

view! {
    struct Generator(name: &'static str) {
        name: &'static str = name,
        options: Option<Vec<&'static str>> = workload::keys(name).map(|keys| keys.to_vec()),
    }
}

view! {
    struct Policy(policy: &'static parkade_policies::Named) {
        name: &'static str = policy.name,
        says: &'static str = policy.says,
        source: &'static str = policy.source,
    }
}

view! {
    struct Model(model: Addresses) {
        name: &'static str = model.name(),
        says: &'static str = model.says(),
    }
}
