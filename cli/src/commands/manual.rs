//! `swinq completions` and `swinq man`.

use std::path::Path;

use anyhow::Context;
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use swinq::model::atomic::write_atomic;

use crate::args::{Cli, CompletionsArgs, ManArgs};
use crate::out::{self, info};

/// Prints the completion script.
pub fn completions(args: &CompletionsArgs) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "swinq", &mut script);
    out::raw(&script);
    Ok(())
}

/// Prints the page of the program, or writes the pages of the program and its commands to a folder.
pub fn man(args: &ManArgs) -> anyhow::Result<()> {
    let mut program = Cli::command();
    program.build();
    let Some(folder) = &args.folder else {
        out::raw(&page(program)?);
        return Ok(());
    };
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    write(&program, folder)?;
    info!("wrote the pages to {}", folder.display());
    Ok(())
}

/// Writes the pages of `command` and of the commands below it.
fn write(command: &Command, folder: &Path) -> anyhow::Result<()> {
    let name = command.get_display_name().unwrap_or(command.get_name());
    let page = page(command.clone())?;
    write_atomic(&folder.join(format!("{name}.1")), |out| out.write_all(&page))?;
    let below = command.get_subcommands().filter(|command| command.get_name() != "help");
    below.into_iter().try_for_each(|command| write(command, folder))
}

fn page(command: Command) -> anyhow::Result<Vec<u8>> {
    let mut page = Vec::new();
    Man::new(command).render(&mut page)?;
    Ok(page)
}
