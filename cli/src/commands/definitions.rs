//! Commands derived from the definitions of all commands: `parkade man` prints manual pages, and `parkade completions` the
//! script with which a shell completes commands and options.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Parser;
use clap_complete::{Shell, generate};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use crate::terminal::args::Force;
use crate::terminal::output;
use crate::terminal::outputs::{Target, Wanted};
use crate::terminal::runner::{Command, Form};

/// Print a manual page, or write all of them.
#[derive(Parser)]
#[command(after_help = "Examples:
  parkade man | man -l -
  parkade man advise | man -l -
  parkade man -o ~/.local/share/man/man1        then: man parkade, man parkade-advise

Exit code: 0 printed or written, 2 could not run.")]
pub(crate) struct ManArgs {
    /// The command whose page is printed [default: parkade itself].
    command: Option<String>,
    /// Write the pages of parkade and of all its commands to this folder, which is created. Existing pages are not overwritten without
    /// --force. Without this option the page goes to standard output, as with `-`.
    #[arg(short, long, value_name = "FOLDER", conflicts_with = "command")]
    output: Option<PathBuf>,
    #[command(flatten)]
    force: Force,
}

impl ManArgs {
    /// The command, for this program.
    pub(crate) fn of(&self, program: clap::Command) -> Manual<'_> {
        let mut program =
            program.disable_help_subcommand(true).subcommand_help_heading("COMMANDS").subcommand_value_name("COMMAND");
        program.build();
        Manual { args: self, program }
    }
}

/// What to write pages for.
pub(crate) struct Manual<'a> {
    args: &'a ManArgs,
    program: clap::Command,
}

impl Command for Manual<'_> {
    type Found = Vec<u8>;

    fn compute(&self) -> Result<Vec<u8>> {
        match (&self.args.command, &self.args.output) {
            (Some(name), _) => match self.program.find_subcommand(name) {
                Some(command) => Ok(self.page(command)?),
                None => bail!("parkade has no command {name:?}; `parkade --help` lists them"),
            },
            (None, Some(folder)) if folder.as_os_str() != "-" => self.write_all(folder),
            (None, _) => Ok(self.page(&self.program)?),
        }
    }

    fn form(&self) -> Form {
        Form::Data
    }

    fn data(&self, text: &Vec<u8>, out: &mut dyn Write) -> Result<()> {
        Ok(out.write_all(text)?)
    }
}

impl Manual<'_> {
    /// Writes every page, or none if one exists; returns the message about that.
    fn write_all(&self, folder: &Path) -> Result<Vec<u8>> {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let commands = [&self.program].into_iter().chain(self.program.get_subcommands());
        let place = |command: &clap::Command| Target::from(folder.join(Man::new(command.clone()).get_filename()));
        let pages = commands.map(|command| Ok((place(command), self.page(command)?))).collect::<Result<Vec<_>>>()?;
        let wanted = Wanted::new(self.args.force.force, Form::Data);
        let outputs = pages.iter().fold(wanted, |wanted, (target, _)| wanted.writes("--output", Some(target))).check()?;
        pages.iter().try_for_each(|(target, page)| outputs.write(target, page))?;
        Ok(format!("{} pages are in {}\n", pages.len(), output::one_line(&folder.display().to_string())).into_bytes())
    }

    fn page(&self, command: &clap::Command) -> io::Result<Vec<u8>> {
        let version = self.program.get_version().unwrap_or_default();
        // There is no date, so that builds are reproducible; an empty one would be left out, and the next argument would be
        // taken for it.
        let man = Man::new(command.clone()).date("\"\"").source(format!("parkade {version}")).manual("parkade manual");
        let mut page = Vec::new();
        man.render_title(&mut page)?;
        man.render_name_section(&mut page)?;
        man.render_synopsis_section(&mut page)?;
        man.render_description_section(&mut page)?;
        man.render_options_section(&mut page)?;
        if command.has_subcommands() {
            man.render_subcommands_section(&mut page)?;
        }
        if let Some(text) = command.get_after_help() {
            after_help(&text.to_string()).to_writer(&mut page)?;
        }
        Ok(page)
    }
}

/// The sections at the end of `--help`: examples, whose lines stay as they are, then notes and exit codes.
fn after_help(text: &str) -> Roff {
    let mut roff = Roff::new();
    let mut is_noted = false;
    for paragraph in text.split("\n\n") {
        if let Some(examples) = paragraph.strip_prefix("Examples:\n") {
            roff.control("SH", ["EXAMPLES"]).control("nf", []);
            for line in examples.lines() {
                roff.text([roman(line.trim_start_matches(' '))]);
            }
            roff.control("fi", []);
        } else if let Some(codes) = paragraph.strip_prefix("Exit code: ") {
            roff.control("SH", ["EXIT STATUS"]).text([roman(codes)]);
        } else {
            let (macro_name, title): (_, &[&str]) = if is_noted { ("PP", &[]) } else { ("SH", &["NOTES"]) };
            roff.control(macro_name, title.iter().copied()).text([roman(paragraph)]);
            is_noted = true;
        }
    }
    roff
}

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
pub(crate) struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

impl CompletionsArgs {
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
        // Generated in memory, because the generator panics if it cannot write.
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
