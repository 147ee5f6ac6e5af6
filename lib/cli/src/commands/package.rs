//! `open-conduit package`

use std::io::{BufRead, IsTerminal};
use std::path::{Path, PathBuf};

use conduit_api::views::{PackageRequest, PackageView, Page};
use conduit_client::{Client, path};

use super::nothing;
use crate::exit::Exit;
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::show::package_limits;
use crate::table::clean;

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
        out.remark(&question(&shown))?;
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

/// What is to be known before a package is installed.
fn question(shown: &PackageView) -> String {
    let names = |list: &[String]| if list.is_empty() { "-".to_owned() } else { clean(&list.join(", ")) };
    let needs = if shown.permissions.is_empty() { "nothing more".to_owned() } else { names(&shown.permissions) };
    let place = shown.replaces.map_or_else(String::new, |former| format!("\nreplaces: {former}"));
    let programs = match shown.executors.is_empty() {
        true => "",
        false => "\nIts executors name programs, which are run with your user's rights too.",
    };
    format!(
        "{} {}: {}{place}\noperations: {}\ntoolsets: {}\nactions: {}\nexecutors: {}\nneeds beside its own operations: {needs}\nlimits: {}\nIts program runs with your user's rights.{programs} Install it? [y/N]",
        clean(&shown.name),
        shown.version,
        clean(&shown.summary),
        names(&shown.operations),
        names(&shown.toolsets),
        names(&shown.actions),
        names(&shown.executors),
        package_limits(shown.limits),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// X01
    #[test]
    fn before_a_package_is_installed_its_actions_its_limits_and_what_it_replaces_are_shown() {
        let mut view = json!({
            "name": "words", "version": "1.1.0", "summary": "Counts\u{1b}[2J words",
            "operations": ["words.count"], "toolsets": [], "actions": ["words.forget", "words.learn"],
            "executors": ["words"], "permissions": ["executor.run"],
            "limits": {"memory_mib": 64, "files": 32, "file_mib": 8}, "digest": "0", "enabled": false,
        });
        let shown = |view: &serde_json::Value| question(&serde_json::from_value(view.clone()).unwrap());
        let new = shown(&view);
        for said in [
            "actions: words.forget, words.learn\n",
            "limits: for each process 64 MiB of memory, 32 open files, files of 8 MiB\n",
            "needs beside its own operations: executor.run\n",
            "Its executors name programs",
        ] {
            assert!(new.contains(said), "{said}: {new}");
        }
        assert!(!new.contains("replaces") && !new.contains('\u{1b}'), "{new}");
        view["replaces"] = json!("1.0.2");
        assert!(shown(&view).contains("\nreplaces: 1.0.2\n"));
    }
}
