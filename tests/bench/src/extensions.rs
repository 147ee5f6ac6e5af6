//! What operations of extensions cost beside a builtin read, and what it costs to have many of them.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use conduit_api::views::ConfigReply;
use conduit_client::Client;
use conduit_tests::suite::Setup;
use conduit_tests::{Execution, Suite, config};
use serde_json::{Map, Value, json};

use crate::cpu::OneCpu;
use crate::exchange::Connection;
use crate::measures::{BLOCK, CALL, on_one_thread, read_context};
use crate::table::{Samples, Table, Target, time};
use crate::{Effort, Result, package, roundtrip};

const LOOK: &str = "introspection.work";
const PACKAGED: &str = "quick.operation0";
/// How many operations and toolsets a release with many of them has.
const MANY: (usize, usize) = (1000, 200);
/// What validating the largest configuration may take.
const VALIDATED: Duration = Duration::from_millis(200);
/// Bytes of the largest configuration that fits into a request.
const CONFIG_BYTES: usize = (1 << 20) - 64;

pub fn all(bin_dir: Option<&PathBuf>, effort: Effort, table: &mut Table) -> Result<()> {
    let (few, many) = (suite(bin_dir, false)?, suite(bin_dir, true)?);
    let (one, other) = (few.hold("hold"), many.hold("hold"));
    calls([(&few, &one), (&many, &other)], effort, table)?;
    roundtrip::measure(bin_dir, effort, table)?;
    validation(&many, effort, table)
}

/// A suite with a package of one operation, and with `many` with another one of a thousand.
fn suite(bin_dir: Option<&PathBuf>, many: bool) -> Result<Suite> {
    let names: &[&str] = if many { &["quick", "wide"] } else { &["quick"] };
    let mut setup = Setup::new(|home| configuration(home, &[]));
    if let Some(folder) = bin_dir {
        setup.programs.clone_from(folder);
    }
    let suite = Suite::start_with(setup);
    for name in names {
        let folder = suite.home().join(name);
        let (operations, toolsets) = if *name == "wide" { MANY } else { (1, 1) };
        package::write(&folder, name, operations, toolsets)?;
        run(&suite, &["package", "install", &folder.to_string_lossy(), "--yes"])?;
    }
    let file = suite.home().join("next.json");
    std::fs::write(&file, configuration(suite.home(), names).to_string())?;
    run(&suite, &["config", "apply", &file.to_string_lossy()])?;
    Ok(suite)
}

fn run(suite: &Suite, args: &[&str]) -> Result<()> {
    suite.client(); // whose credential the program needs on disk
    let output = suite.conduit(args);
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{args:?}: {}", String::from_utf8_lossy(&output.stderr)).into())
}

/// A scope that is granted whatever `packages` have, and a binding that is granted what is measured.
fn configuration(home: &Path, packages: &[&str]) -> Value {
    let mut hold = config::hold(home);
    let mut document = config::one_scope(json!({}), json!([]));
    let enabled = packages.iter().copied().chain(["introspection"]);
    document["extensions"] =
        enabled.map(|name| (name.to_owned(), json!({"enabled": true}))).collect::<Map<_, _>>().into();
    let mut granted: Vec<Value> = config::OPERATIONS.map(Value::from).to_vec();
    granted.push(LOOK.into());
    for package in packages {
        let toolsets = if *package == "wide" { MANY.1 } else { 1 };
        granted.extend((0..toolsets).map(|i| Value::from(format!("@{package}.toolset{i}"))));
    }
    hold["operations"] =
        if packages.is_empty() { granted.clone() } else { granted[..=config::OPERATIONS.len() + 1].to_vec() }.into();
    document["scopes"]["test"]["operations"] = granted.into();
    document["scopes"]["test"]["bindings"] = json!({"hold": hold});
    document
}

fn body(operation: &str) -> String {
    json!({"operation": operation}).to_string()
}

/// The same three calls in both suites take turns, everyone on one CPU.
fn calls(suites: [(&Suite, &Execution<'_>); 2], effort: Effort, table: &mut Table) -> Result<()> {
    let kinds = [read_context(), body(LOOK), body(PACKAGED)];
    let mut samples = [const { [const { Vec::new() }; 3] }; 2].map(|of| of.map(|_: Vec<()>| Samples::default()));
    on_one_thread(async {
        let cpu = OneCpu::take()?;
        let mut connections = Vec::new();
        for (suite, execution) in suites {
            let mut connection = Connection::open(&execution.socket(), Some(&execution.token())).await?;
            for kind in &kinds {
                connection.post(CALL, kind.clone()).await?; // starts the worker and the package
            }
            for program in ["open-conduit-endpoint", "open-conduitd", "program"] {
                suite.processes(program).iter().try_for_each(|process| cpu.join(process.pid))?;
            }
            connections.push(connection);
        }
        for turn in 0..=effort.turns {
            for _ in 0..effort.samples.div_ceil(BLOCK) {
                for (at, connection) in connections.iter_mut().enumerate() {
                    for (kind, body) in kinds.iter().enumerate() {
                        for _ in 0..BLOCK {
                            let took = connection.post(CALL, body.clone()).await?;
                            if turn > 0 {
                                samples[at][kind].add(took);
                            }
                        }
                    }
                }
            }
        }
        Ok(())
    })?;
    let [[read, look, packaged], many] = &samples;
    let seconds = |samples: &Samples| samples.p50().as_secs_f64();
    table.floor("read_context, in the suite with extensions", read.shown());
    table.compare(
        "an operation of the suite's own extension, with its handler",
        look.shown(),
        format!("read_context {}", time(read.p50())),
        seconds(look) / seconds(read),
        Target::AtMost(1.3),
    );
    table.compare(
        "an operation of a package, the whole call",
        packaged.shown(),
        format!("read_context {}", time(read.p50())),
        seconds(packaged) / seconds(read),
        Target::None,
    );
    for ((name, few), many) in ["read_context", LOOK, "an operation of a package"].iter().zip(&samples[0]).zip(many) {
        table.compare(
            &format!("{name}, among {} operations and {} toolsets", MANY.0, MANY.1),
            many.shown(),
            format!("among few {}", time(few.p50())),
            seconds(many) / seconds(few),
            Target::AtMost(1.1),
        );
    }
    Ok(())
}

/// The largest configuration that a request can hold, with lists of names, toolsets and denials.
fn validation(suite: &Suite, effort: Effort, table: &mut Table) -> Result<()> {
    let mut document = configuration(suite.home(), &["quick", "wide"]);
    grow(&mut document);
    let bytes = document.to_string().len();
    let request = json!({"config": document});
    let client = suite.client();
    let mut samples = Samples::default();
    for turn in 0..=effort.turns {
        let took = validated(&client, &request)?;
        if turn > 0 {
            samples.add(took);
        }
    }
    table.compare(
        &format!("validating {:.2} MiB against {} operations", bytes as f64 / f64::from(1 << 20), MANY.0),
        samples.shown(),
        time(VALIDATED),
        samples.p50().as_secs_f64() / VALIDATED.as_secs_f64(),
        Target::AtMost(1.0),
    );
    Ok(())
}

/// Adds scopes until the document is as large as one may be.
fn grow(document: &mut Value) {
    let entry = |i: usize| match i % 4 {
        0 => format!("@wide.toolset{}", i % MANY.1),
        1 => format!("wide.operation{}", i % MANY.0),
        2 => format!("!wide.operation{}", (i * 7) % MANY.0),
        _ => config::OPERATIONS[i / 4 % config::OPERATIONS.len()].to_owned(),
    };
    let mut bytes = document.to_string().len();
    for at in 0.. {
        let mut list: Vec<String> = (0..30).map(|i| entry(at * 30 + i)).collect();
        list.sort();
        list.dedup();
        let binding = json!({"executor": "shell", "config": {"command": ["/bin/true"]}, "operations": list});
        let scope = json!({"operations": list, "bindings": {"b": binding}});
        bytes += scope.to_string().len() + 16;
        if bytes > CONFIG_BYTES {
            return;
        }
        document["scopes"][format!("s{at}")] = scope;
    }
}

fn validated(client: &Client, request: &Value) -> Result<Duration> {
    let begun = Instant::now();
    let reply: ConfigReply = client.post("/v1/config/validate", request)?;
    let took = begun.elapsed();
    match reply.diagnostics.first() {
        None if reply.valid => Ok(took),
        first => Err(format!("the configuration is not valid: {first:?}").into()),
    }
}
