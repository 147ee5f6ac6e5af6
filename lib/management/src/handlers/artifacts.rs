//! Artifacts: the lists, and their bytes, which are shown only when they are the ones that were recorded.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Seek as _};
use std::path::{Path, PathBuf};

use conduit_api::ArtifactId;
use conduit_api::views::ArtifactView;
use conduit_coordination::queries::artifacts as shown;
use conduit_daemon::http::{Reply, Source, Stream};
use conduit_store::Read;
use conduit_store::digest::{Hasher, hex};

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

/// An artifact as it was recorded, and where its bytes have to be.
pub(crate) struct Recorded {
    artifact: ArtifactView,
    file: PathBuf,
}

/// What the route of the bytes looks up.
pub(crate) fn recorded(host: &mut Host, ask: &Ask) -> Result<Recorded> {
    let id: ArtifactId = ask.id("artifact")?;
    let artifact = host.read(|r, _| view(r, &id))?;
    Ok(Recorded { file: host.state.artifact_file(&artifact.digest), artifact })
}

impl Recorded {
    /// The bytes, whole. A range of them (M11) gets its place here. Error: `artifact_unavailable`.
    pub(crate) async fn content(self) -> Result<Reply> {
        let ArtifactView { digest, media_type, .. } = self.artifact;
        let (file, bytes) = checked(&self.file, &digest).await.map_err(|source| Error::Artifact { digest, source })?;
        Ok(Reply::Stream(Stream { status: 200, content_type: media_type, source: Source { file, bytes } }))
    }
}

/// The file with the digest, open at its start, and its size. What is hashed is what is sent: one open file, which is
/// never written again. Others have their turn after each chunk.
async fn checked(path: &Path, digest: &str) -> io::Result<(File, u64)> {
    let mut reader = BufReader::with_capacity(CHUNK_BYTES, File::open(path)?);
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
        tokio::task::yield_now().await;
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
    use conduit_daemon::program::block_on;
    use conduit_store::digest::sha256;
    use std::cell::Cell;
    use std::rc::Rc;

    #[test]
    fn bytes_that_were_altered_or_are_gone_are_not_shown() {
        let base = tempfile::tempdir().unwrap();
        let file = base.path().join("bytes");
        let text = vec![b'x'; 3 * CHUNK_BYTES + 1];
        let digest = hex(&sha256(&text));
        let check = || block_on(checked(&file, &digest)).unwrap();
        std::fs::write(&file, &text).unwrap();
        assert_eq!(check().unwrap().1, text.len() as u64);
        std::fs::write(&file, b"other").unwrap();
        assert_eq!(check().unwrap_err().kind(), io::ErrorKind::InvalidData);
        std::fs::remove_file(&file).unwrap();
        assert_eq!(check().unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn others_are_served_while_large_bytes_are_verified() {
        let base = tempfile::tempdir().unwrap();
        let file = base.path().join("bytes");
        let text = vec![b'x'; 20 * CHUNK_BYTES];
        std::fs::write(&file, &text).unwrap();
        let turns = block_on(async {
            let turns = Rc::new(Cell::new(0));
            let own = turns.clone();
            let other = tokio::task::spawn_local(async move {
                loop {
                    own.set(own.get() + 1);
                    tokio::task::yield_now().await;
                }
            });
            checked(&file, &hex(&sha256(&text))).await.unwrap();
            other.abort();
            turns.get()
        });
        assert!(turns.unwrap() >= 10);
    }
}
