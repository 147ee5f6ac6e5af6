//! What the host adds to a package's answer: the same program is asked the same line through a bare pipe.

use std::path::{Path, PathBuf};
use std::time::Instant;

use conduit_extension::package::{Bounds, Packages, Processes, install};
use conduit_extension::{Authority, Invocation, Invoked};
use conduit_kernel::{BaseEnvironment, Settings};
use conduit_store::{Clock, StateDir, Store, mint};
use conduit_toolbelt::packages;
use serde_json::{Map, json};

use crate::cpu::OneCpu;
use crate::floors::Part;
use crate::measures::{BLOCK, on_one_thread};
use crate::table::{Samples, Table, Target, time};
use crate::{Effort, Result, package};

const NAME: &str = "quick";

/// The host and a bare pipe take turns, everyone on one CPU.
pub fn measure(bin_dir: Option<&PathBuf>, effort: Effort, table: &mut Table) -> Result<()> {
    let base = tempfile::tempdir()?;
    let (mut asked, mut piped) = (Samples::default(), Samples::default());
    on_one_thread(async {
        // Whatever is started from here on stays on this CPU.
        let _cpu = OneCpu::take()?;
        let mut pipe = Part::spawn(&["package".as_ref(), NAME.as_ref(), "1".as_ref()])?;
        let host = host(base.path(), bin_dir)?;
        let extension = host.get(NAME).ok_or("the package was not installed")?;
        let call = call()?;
        let line = json!({"jsonrpc": "2.0", "id": 1, "method": "operation.invoke", "params": call});
        let line = format!("{line}\n");
        for turn in 0..=effort.turns {
            for _ in 0..effort.samples.div_ceil(BLOCK) {
                for _ in 0..BLOCK {
                    let begun = Instant::now();
                    let answer = extension.invoke(&call).await;
                    let took = begun.elapsed();
                    if !matches!(answer, Ok(Invoked::Output(_))) {
                        return Err(format!("the package answered {answer:?}").into());
                    }
                    if turn > 0 {
                        asked.add(took);
                    }
                }
                for _ in 0..BLOCK {
                    let took = pipe.exchange(&line)?;
                    if turn > 0 {
                        piped.add(took);
                    }
                }
            }
        }
        drop(extension);
        host.close().await;
        Ok(())
    })?;
    let seconds = |samples: &Samples| samples.p50().as_secs_f64();
    table.floor("pipe: a question to a package's program, and its answer", piped.shown());
    table.compare(
        "what the host adds to a package's answer",
        format!("{} in all", asked.shown()),
        format!("pipe {}", time(piped.p50())),
        (seconds(&asked) - seconds(&piped)) / seconds(&piped),
        Target::AtMost(2.0),
    );
    Ok(())
}

/// A host with the benchmark's package installed, whose state is in `base`.
fn host(base: &Path, bin_dir: Option<&PathBuf>) -> Result<Packages> {
    let source = base.join("source");
    package::write(&source, NAME, 1, 1)?;
    let state = StateDir::open(&base.join("state"))?;
    let mut store = Store::open(&state)?;
    let candidate = install::check(&source, &[], &[]).map_err(|refused| refused.message)?;
    candidate.copy(&state, &source).map_err(|refused| refused.message)?;
    let row = candidate.installed("bench", Clock.now());
    store.write(|tx| packages::put(tx, &row))?;
    let programs = bin_dir.cloned().unwrap_or_else(conduit_tests::programs::folder);
    let settings = Settings {
        attempts: state.path().join("attempts"),
        runner: programs.join("open-conduit-runner"),
        base: BaseEnvironment::of_home(base),
        files: None,
    };
    Ok(Packages::new(Processes::open(&state, settings)?, Bounds::default()))
}

fn call() -> Result<Invocation> {
    let now = Clock.now();
    let authority = Authority {
        execution_id: mint(now),
        work_id: mint(now),
        scope_id: "test".parse()?,
        binding: "hold".into(),
        epoch: 1,
        generation: 1,
    };
    Ok(Invocation {
        operation: format!("{NAME}.operation0"),
        request_id: "bench".into(),
        input: Map::new(),
        authority,
        settings: json!({}),
    })
}
