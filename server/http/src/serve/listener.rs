//! Where connections come from: TCP addresses, UNIX sockets, and listeners that were passed in.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::{fs, io::ErrorKind};

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::access::Peer;

/// An address to listen at: `ADDR:PORT`, or `unix:PATH`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// A TCP address.
    Tcp(SocketAddr),
    /// The path of a UNIX socket.
    Unix(PathBuf),
}

/// A text is no [`Endpoint`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is neither ADDR:PORT nor unix:PATH")]
pub struct InvalidEndpoint(String);

impl FromStr for Endpoint {
    type Err = InvalidEndpoint;

    fn from_str(text: &str) -> Result<Self, InvalidEndpoint> {
        let invalid = || InvalidEndpoint(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            return match path {
                "" => Err(invalid()),
                path => Ok(Self::Unix(path.into())),
            };
        }
        // A name would be resolved: what it means changes without notice. This one does not.
        let address = match text.strip_prefix("localhost:") {
            Some(port) => format!("127.0.0.1:{port}"),
            None => text.to_owned(),
        };
        address.parse().map(Self::Tcp).map_err(|_| invalid())
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(formatter, "{address}"),
            Self::Unix(path) => write!(formatter, "unix:{}", path.display()),
        }
    }
}

/// Why nothing can listen at an endpoint.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Something else listens there.
    #[error("{endpoint} is already in use")]
    InUse {
        /// The endpoint.
        endpoint: Endpoint,
    },
    /// A file that is not a socket is at the path.
    #[error("{} exists and is not a socket", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// Any other reason.
    #[error("cannot listen at {endpoint}")]
    Bind {
        /// The endpoint.
        endpoint: Endpoint,
        /// The reason.
        #[source]
        source: io::Error,
    },
}

impl ListenError {
    /// A suggested next step, if there is one.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::InUse { .. } => Some("stop it, or choose another --listen"),
            Self::NotASocket { .. } => Some("remove it, or choose another path"),
            Self::Bind { source, .. } if source.kind() == ErrorKind::PermissionDenied => {
                Some("ports below 1024 and the directory of a socket need rights of their own")
            }
            Self::Bind { .. } => None,
        }
    }
}

/// A source of connections.
#[derive(Debug)]
pub struct Listener {
    kind: Kind,
    /// Removed when the listener is dropped, if it is still the one that was bound.
    file: Option<SocketFile>,
}

#[derive(Debug)]
enum Kind {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A connection that was accepted.
pub(super) enum Accepted {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Listener {
    /// Listens at this endpoint. A UNIX socket is only for its owner (mode 0600); one that a dead
    /// server left is replaced.
    ///
    /// # Errors
    ///
    /// [`ListenError`].
    pub fn bind(endpoint: &Endpoint) -> Result<Self, ListenError> {
        let failed = |source: io::Error| match source.kind() {
            ErrorKind::AddrInUse => ListenError::InUse { endpoint: endpoint.clone() },
            _ => ListenError::Bind { endpoint: endpoint.clone(), source },
        };
        match endpoint {
            Endpoint::Tcp(address) => {
                StdTcpListener::bind(address).and_then(Self::from_tcp).map_err(failed)
            }
            Endpoint::Unix(path) => {
                match fs::symlink_metadata(path) {
                    Ok(found) if !found.file_type().is_socket() => {
                        return Err(ListenError::NotASocket { path: path.clone() });
                    }
                    Ok(_) if StdUnixStream::connect(path).is_ok() => {
                        return Err(ListenError::InUse { endpoint: endpoint.clone() });
                    }
                    _ => {}
                }
                let (listener, file) = bind_unix(path).map_err(failed)?;
                let listener = Self::from_unix(listener).map_err(failed)?;
                Ok(Self { file: Some(file), ..listener })
            }
        }
    }

    /// A TCP listener that was passed in.
    ///
    /// # Errors
    ///
    /// If it cannot be used without blocking.
    pub fn from_tcp(listener: StdTcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self { kind: Kind::Tcp(TcpListener::from_std(listener)?), file: None })
    }

    /// A UNIX listener that was passed in. The process that bound it decides who may connect.
    ///
    /// # Errors
    ///
    /// If it cannot be used without blocking.
    pub fn from_unix(listener: StdUnixListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self { kind: Kind::Unix(UnixListener::from_std(listener)?), file: None })
    }

    /// Where it listens.
    #[must_use]
    pub fn endpoint(&self) -> Option<Endpoint> {
        match &self.kind {
            Kind::Tcp(listener) => listener.local_addr().ok().map(Endpoint::Tcp),
            Kind::Unix(listener) => {
                let address = listener.local_addr().ok()?;
                let path = self.file.as_ref().map(|file| file.path.clone());
                path.or_else(|| address.as_pathname().map(Path::to_owned)).map(Endpoint::Unix)
            }
        }
    }

    /// The next connection. Safe to cancel.
    pub(super) async fn accept(&self) -> io::Result<(Accepted, Peer)> {
        match &self.kind {
            Kind::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                // Without this, small answers wait for the acknowledgement of others.
                stream.set_nodelay(true)?;
                Ok((Accepted::Tcp(stream), Peer::Tcp(address)))
            }
            Kind::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                let peer = stream.peer_cred()?;
                Ok((Accepted::Unix(stream), Peer::Unix { uid: peer.uid() }))
            }
        }
    }
}

/// Binds under another name in a private directory, and renames: at no moment can another user
/// connect, and an old socket is replaced atomically.
fn bind_unix(path: &Path) -> io::Result<(StdUnixListener, SocketFile)> {
    let parent = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let dir = parent.join(format!(".sandboxctl-{}", sandbox_dirfd::random_hex::<8>()));
    fs::DirBuilder::new().mode(0o700).create(&dir)?;
    let fresh = dir.join("s");
    let bound = (|| {
        let listener = StdUnixListener::bind(&fresh)?;
        fs::set_permissions(&fresh, fs::Permissions::from_mode(0o600))?;
        let inode = fs::symlink_metadata(&fresh)?.ino();
        fs::rename(&fresh, path)?;
        Ok((listener, SocketFile { path: path.to_owned(), inode }))
    })();
    // Best effort: it is empty unless something above failed.
    _ = fs::remove_file(&fresh);
    _ = fs::remove_dir(&dir);
    bound
}

#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode) {
            _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoint_is_an_address_or_a_path() {
        for (text, shown) in [
            ("127.0.0.1:80", "127.0.0.1:80"),
            ("[::1]:80", "[::1]:80"),
            ("localhost:80", "127.0.0.1:80"),
            ("unix:/run/a", "unix:/run/a"),
        ] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), shown);
        }
        for text in ["", "80", ":80", "example.org:80", "unix:", "127.0.0.1:99999", "/run/a"] {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
    }

    #[tokio::test]
    async fn socket_is_for_its_owner_and_a_stale_one_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let endpoint = Endpoint::Unix(dir.path().join("s"));
        let Endpoint::Unix(path) = &endpoint else { unreachable!() };
        drop(StdUnixListener::bind(path).unwrap());
        let listener = Listener::bind(&endpoint).unwrap();
        assert_eq!(fs::symlink_metadata(path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(listener.endpoint().as_ref(), Some(&endpoint));
        let error = Listener::bind(&endpoint).unwrap_err();
        assert!(matches!(error, ListenError::InUse { .. }), "{error}");
        drop(listener);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        fs::write(path, "a file").unwrap();
        let error = Listener::bind(&endpoint).unwrap_err();
        assert!(matches!(error, ListenError::NotASocket { .. }), "{error}");
        assert_eq!(fs::read(path).unwrap(), b"a file");
    }
}
