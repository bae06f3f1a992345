//! `parkade completions`: the script with which a shell completes commands and options, made from their definitions.

use std::io::Write;

use anyhow::Result;
use clap::Parser;
use clap_complete::{Shell, generate};

use crate::terminal::runner::{Command, Form};

/// Print the completion script of a shell.
///
/// The script goes to standard output. Each shell has its own place for it; a shell that is already running does not see it.
#[derive(Parser)]
#[command(after_help = "Examples:
  source <(parkade completions bash)                           in ~/.bashrc
  parkade completions bash > /etc/bash_completion.d/parkade    for all users
  parkade completions zsh > ~/.zfunc/_parkade                  with fpath+=~/.zfunc before compinit in ~/.zshrc
  parkade completions fish > ~/.config/fish/completions/parkade.fish
  parkade completions powershell >> $PROFILE
  parkade completions elvish >> ~/.config/elvish/rc.elv

Exit code: 0 printed, 2 could not run.")]
pub(crate) struct Args {
    /// The shell.
    shell: Shell,
}

impl Args {
    /// The command, for this program.
    pub(crate) fn of(&self, program: clap::Command) -> Completions {
        Completions { shell: self.shell, program }
    }
}

/// What to write a script for.
pub(crate) struct Completions {
    shell: Shell,
    program: clap::Command,
}

impl Command for Completions {
    type Found = Vec<u8>;

    fn compute(&self) -> Result<Vec<u8>> {
        let mut program = self.program.clone();
        let name = program.get_name().to_owned();
        // Into memory: the generator panics where it cannot write.
        let mut script = Vec::new();
        generate(self.shell, &mut program, name, &mut script);
        Ok(script)
    }

    fn form(&self) -> Form {
        Form::Data
    }

    fn data(&self, script: &Vec<u8>, out: &mut dyn Write) -> Result<()> {
        Ok(out.write_all(script)?)
    }
}
