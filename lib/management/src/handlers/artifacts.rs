//! Artifacts: the lists, and their bytes, which are shown only when they are the ones that were recorded.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Seek as _};

use conduit_api::ArtifactId;
use conduit_api::views::ArtifactView;
use conduit_coordination::queries::artifacts as shown;
use conduit_daemon::http::{Reply, Source, Stream};
use conduit_store::digest::{Hasher, hex};
use conduit_store::{Read, StateDir};

use crate::ask::Ask;
use crate::error::{Error, Result};
use crate::host::Host;

/// Bytes that are hashed at a time.
const CHUNK_BYTES: usize = 256 << 10;

pub(crate) fn list(host: &mut Host, ask: &Ask) -> Result<Reply> {
    let paging = ask.page("artifacts", &[])?;
    let listed = host.read(|r, _| Ok(shown::list(r, paging.filter(), paging.window())?))?;
    Ok(Reply::json(200, &paging.shown(listed)))
}

pub(crate) fn get(host: &mut Host, ask: &Ask) -> Result<Reply> {
    let id: ArtifactId = ask.id("artifact")?;
    Ok(Reply::json(200, &host.read(|r, _| view(r, &id))?))
}

fn view(r: &Read<'_>, id: &ArtifactId) -> Result<ArtifactView> {
    shown::get(r, id)?.ok_or_else(|| Error::not_found("artifact"))
}

/// The bytes, whole. A range of them (M11) gets its place here. Error: `artifact_unavailable`.
pub(crate) fn content(host: &mut Host, ask: &Ask) -> Result<Reply> {
    let id: ArtifactId = ask.id("artifact")?;
    let artifact = host.read(|r, _| view(r, &id))?;
    let (file, bytes) =
        checked(&host.state, &artifact.digest).map_err(|source| Error::Artifact { digest: artifact.digest, source })?;
    Ok(Reply::Stream(Stream { status: 200, content_type: artifact.media_type, source: Source::File { file, bytes } }))
}

/// The file with the digest, open at its start, and its size. What is hashed is what is sent: one open file, which is
/// never written again.
fn checked(state: &StateDir, digest: &str) -> io::Result<(File, u64)> {
    let mut reader = BufReader::with_capacity(CHUNK_BYTES, File::open(state.artifact_file(digest))?);
    let mut hasher = Hasher::default();
    let mut bytes = 0;
    loop {
        let chunk = reader.fill_buf()?;
        if chunk.is_empty() {
            break;
        }
        hasher.update(chunk);
        let read = chunk.len();
        bytes += read as u64;
        reader.consume(read);
    }
    if hex(&hasher.finish()) != digest {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the bytes have another digest"));
    }
    let mut file = reader.into_inner();
    file.rewind()?;
    Ok((file, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use conduit_store::digest::sha256;

    #[test]
    fn bytes_that_were_altered_or_are_gone_are_not_shown() {
        let base = tempfile::tempdir().unwrap();
        let state = StateDir::open(&base.path().join("s")).unwrap();
        let text = vec![b'x'; 3 * CHUNK_BYTES + 1];
        let digest = hex(&sha256(&text));
        std::fs::write(state.artifact_file(&digest), &text).unwrap();
        assert_eq!(checked(&state, &digest).unwrap().1, text.len() as u64);
        std::fs::write(state.artifact_file(&digest), b"other").unwrap();
        assert_eq!(checked(&state, &digest).unwrap_err().kind(), io::ErrorKind::InvalidData);
        std::fs::remove_file(state.artifact_file(&digest)).unwrap();
        assert_eq!(checked(&state, &digest).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
