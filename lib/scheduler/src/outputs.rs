//! Keeping what a process wrote: from its bundle into `artifacts/<digest>`, before a row says so.

use std::fs;
use std::io::{self, Read as _, Seek as _, SeekFrom};

use conduit_coordination::artifacts::NewArtifact;
use conduit_extension::{Output, TAIL_BYTES_MAX};
use conduit_kernel::OutputFact;
use conduit_store::StateDir;

/// Puts each output where its digest says, durably; an output that stands there already is the same bytes.
pub fn keep(state: &StateDir, outputs: &[OutputFact]) -> io::Result<Vec<NewArtifact>> {
    let mut kept = Vec::with_capacity(outputs.len());
    for output in outputs {
        let target = state.artifact_file(&output.digest);
        match fs::hard_link(&output.path, &target) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            // Gone from the bundle and standing here: an earlier try of the same segment moved it.
            Err(error) if error.kind() == io::ErrorKind::NotFound && target.exists() => {}
            Err(error) => return Err(error),
        }
        fs::File::open(&target)?.sync_data()?;
        kept.push(NewArtifact {
            name: output.name.clone(),
            media_type: "application/octet-stream".to_owned(),
            digest: output.digest.clone(),
            bytes: i64::try_from(output.bytes).unwrap_or(i64::MAX),
            dropped_bytes: i64::try_from(output.dropped_bytes).unwrap_or(i64::MAX),
        });
    }
    if !outputs.is_empty() {
        fs::File::open(state.path().join("artifacts"))?.sync_all()?;
    }
    Ok(kept)
}

/// What an executor is told of kept outputs. One that cannot be read is told without its end.
pub fn told(state: &StateDir, outputs: &[OutputFact]) -> Vec<Output> {
    let told = |output: &OutputFact| Output {
        name: output.name.clone(),
        digest: output.digest.clone(),
        bytes: output.bytes,
        dropped_bytes: output.dropped_bytes,
        tail: tail(state, output).unwrap_or_else(|error| {
            tracing::warn!(digest = output.digest, %error, "a kept output cannot be read");
            String::new()
        }),
    };
    outputs.iter().map(told).collect()
}

fn tail(state: &StateDir, output: &OutputFact) -> io::Result<String> {
    let mut file = fs::File::open(state.artifact_file(&output.digest))?;
    let bytes = file.metadata()?.len();
    file.seek(SeekFrom::Start(bytes.saturating_sub(TAIL_BYTES_MAX)))?;
    let mut end = Vec::new();
    file.take(TAIL_BYTES_MAX).read_to_end(&mut end)?;
    Ok(String::from_utf8_lossy(&end).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// X01
    #[test]
    fn an_executor_is_shown_the_end_of_an_output_and_no_more_of_it() {
        let base = tempfile::tempdir().unwrap();
        let state = StateDir::open(&base.path().join("s")).unwrap();
        let digest = "0".repeat(64);
        let written = format!("{}\u{e9}\n the end", "x".repeat(10_000));
        fs::create_dir_all(state.artifact_file(&digest).parent().unwrap()).unwrap();
        fs::write(state.artifact_file(&digest), &written).unwrap();
        let fact = |digest: &str| OutputFact {
            name: "stderr".into(),
            path: "/gone".into(),
            digest: digest.to_owned(),
            bytes: 10_011,
            dropped_bytes: 0,
        };
        let told = told(&state, &[fact(&digest), fact(&"1".repeat(64))]);
        assert_eq!(told[0].tail.len(), 4096);
        assert!(told[0].tail.ends_with("x\u{e9}\n the end"), "{}", told[0].tail);
        assert_eq!(
            (told[1].tail.as_str(), told[1].bytes),
            ("", 10_011),
            "one that cannot be read is named all the same"
        );
    }
}
