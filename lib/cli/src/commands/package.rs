//! `open-conduit package`

use std::io::{BufRead, IsTerminal};
use std::path::{Path, PathBuf};

use conduit_api::views::{PackageRequest, PackageView, Page};
use conduit_client::{Client, path};

use super::nothing;
use crate::exit::Exit;
use crate::failure::{Failure, Result};
use crate::output::Output;

/// Install, list and remove packages
#[derive(Debug, clap::Args)]
pub struct PackageArgs {
    #[command(subcommand)]
    command: PackageCommand,
}

#[derive(Debug, clap::Subcommand)]
enum PackageCommand {
    /// Show what a package does and needs, ask, and install it
    Install {
        /// The package's directory, on the machine of the suite
        path: PathBuf,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// List installed packages
    List,
    /// Show one installed package
    Show { name: String },
    /// Remove a package that no generation in use enables
    Remove { name: String },
}

pub fn run(args: &PackageArgs, client: &Client, out: &mut Output) -> Result<Exit> {
    match &args.command {
        PackageCommand::Install { path, yes } => install(path, *yes, client, out)?,
        PackageCommand::List => out.page(&client.get::<Page<PackageView>>("/v1/packages")?)?,
        PackageCommand::Show { name } => {
            out.one(&client.get::<PackageView>(&format!("/v1/packages/{}", path::escape(name)))?)?;
        }
        PackageCommand::Remove { name } => {
            let target = format!("/v1/packages/{}/remove", path::escape(name));
            let removed: PackageView = client.post(&target, &nothing())?;
            out.shaped(&removed, |removed, _| format!("{} {} is removed\n", removed.name, removed.version))?;
        }
    }
    Ok(Exit::Done)
}

/// What is installed is what was shown: the order names the digest of it.
fn install(path: &Path, yes: bool, client: &Client, out: &mut Output) -> Result<()> {
    let usage = |why: String| Failure::Usage(why);
    let path = std::path::absolute(path).map_err(|error| usage(format!("{} is no path: {error}", path.display())))?;
    let path = path.to_str().ok_or_else(|| usage(format!("{} is not UTF-8", path.display())))?.to_owned();
    let terminal = std::io::stdin().is_terminal();
    if !yes && !terminal {
        return Err(usage("there is no terminal to ask at; --yes installs without asking".into()));
    }
    let request = PackageRequest { path, digest: None };
    let shown: PackageView = client.post("/v1/check/package", &request)?;
    if !yes {
        let needs = if shown.permissions.is_empty() { "nothing more".to_owned() } else { shown.permissions.join(", ") };
        let names = |list: &[String]| if list.is_empty() { "-".to_owned() } else { list.join(", ") };
        let programs = match shown.executors.is_empty() {
            true => "",
            false => "\nIts executors name programs, which are run with your user's rights too.",
        };
        let text = format!(
            "{} {}: {}\noperations: {}\ntoolsets: {}\nexecutors: {}\nneeds beside its own operations: {needs}\nIts program runs with your user's rights.{programs} Install it? [y/N]",
            shown.name,
            shown.version,
            shown.summary,
            names(&shown.operations),
            names(&shown.toolsets),
            names(&shown.executors),
        );
        out.remark(&text)?;
        let mut answer = String::new();
        std::io::stdin()
            .lock()
            .read_line(&mut answer)
            .map_err(|error| usage(format!("there is no answer: {error}")))?;
        if !["y", "yes"].contains(&answer.trim()) {
            return Err(usage("it is not installed".into()));
        }
    }
    let order = PackageRequest { digest: Some(shown.digest), ..request };
    let installed: PackageView = client.post("/v1/packages", &order)?;
    out.one(&installed)?;
    if !installed.enabled {
        let name = &installed.name;
        out.remark(&format!(
            "It is active once a configuration enables it: \"extensions\": {{\"{name}\": {{\"enabled\": true}}}}"
        ))?;
    }
    Ok(())
}
