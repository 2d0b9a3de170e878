//! A node of a cluster: what it says of itself to the others, and where they reach it.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use sandbox_http::{Endpoint, Listener, PeerIdentity, Peers};
use sandbox_service::Service;
use sandbox_store::{Cluster, NewSession, NodeDir};
use sha2::{Digest as _, Sha256};

use crate::config::{Key, Layer, Settings};
use crate::error::{Error, causes};

/// Settings of the sections that nodes share which are a machine's own all the same.
const OWN: [Key; 13] = [
    Key::ServerListen,
    Key::ServerDataDir,
    Key::ServerTlsCert,
    Key::ServerTlsPrivate,
    Key::ServerConcurrency,
    Key::ServerMaxConnections,
    Key::ServerMaxConnectionsOfAnAddress,
    Key::ServerDatabasePasswordFile,
    Key::ServerDatabaseCa,
    Key::ServerDatabaseConnections,
    Key::ServerPeerListen,
    Key::ServerAdvertise,
    Key::DiskReserve,
];
/// The sections of settings that decide what callers get, and are to be equal on all nodes.
const SHARED: [&str; 7] =
    ["io.", "filesystem.", "limits.", "exec.", "network.", "policy.", "server."];

/// How a node is reached.
pub struct PeerPlan {
    /// Where it listens for the others.
    listen: SocketAddr,
    /// Where they reach it, if that is not the address that it listens on.
    advertise: Option<String>,
    /// The setting that says where it listens, in messages.
    named: String,
    /// A digest of the settings that all nodes are to have.
    config_digest: String,
}

impl PeerPlan {
    /// # Errors
    ///
    /// If an address is not valid.
    pub fn of(settings: &Settings) -> Result<Self, Error> {
        let listen = settings.text(Key::ServerPeerListen).unwrap_or_default();
        let listen = listen.parse().map_err(|_| {
            Error::usage(settings.named(Key::ServerPeerListen), "it is not an address with a port")
                .with_hint("such as 0.0.0.0:8471, for all addresses of this machine")
        })?;
        let advertise = settings.text(Key::ServerAdvertise);
        let has_port = |address: &str| {
            let port = address.rsplit_once(':').map(|(host, port)| (host, port.parse::<u16>()));
            matches!(port, Some((host, Ok(1..))) if !host.is_empty())
        };
        if advertise.is_some_and(|address| !has_port(address)) {
            let what = settings.named(Key::ServerAdvertise);
            return Err(Error::usage(what, "it is not a host with a port")
                .with_hint("such as 10.0.0.5:8471, or m1.example.org:8471"));
        }
        Ok(Self {
            listen,
            advertise: advertise.map(str::to_owned),
            named: settings.named(Key::ServerPeerListen),
            config_digest: config_digest(settings),
        })
    }
}

/// A node that listens for the others.
pub struct Node {
    /// What it says of itself.
    pub session: NewSession,
    identity: PeerIdentity,
    key: [u8; 32],
    listener: Listener,
    dir: NodeDir,
}

impl Node {
    /// Takes the data directory, and listens for the other nodes with a new certificate.
    ///
    /// # Errors
    ///
    /// If the address cannot be used, or if the data directory belongs to another cluster or process.
    pub fn bind(plan: PeerPlan, cluster: &Cluster, data_dir: &Path) -> Result<Self, Error> {
        let PeerPlan { listen, advertise, named, config_digest } = plan;
        let dir = NodeDir::open(data_dir, &cluster.identity().id)?;
        let listener = Listener::bind(&Endpoint::Tcp(listen)).map_err(|error| {
            Error::usage(named, causes(&error)).with_hint("--peer-listen names another address")
        })?;
        let bound = match listener.endpoint() {
            Some(Endpoint::Tcp(bound)) => bound,
            _ => listen,
        };
        let identity = PeerIdentity::generate()
            .map_err(|error| Error::system("the certificate for other nodes", error))?;
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let session = NewSession {
            node: dir.node().to_owned(),
            address: advertise.unwrap_or_else(|| advertised(bound, &name)),
            name,
            certificate: identity.digest(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            slots: 0,
            config_digest,
        };
        Ok(Self { session, identity, key: cluster.identity().key, listener, dir })
    }

    /// What it is to the others as a part of the service, where they connect, and its data directory, which no other
    /// process has meanwhile.
    pub fn join(self, service: &Service) -> (Peers, Listener, NodeDir) {
        let peers = Peers::new(self.identity, &self.key, Arc::new(service.clone()));
        (peers, self.listener, self.dir)
    }
}

/// Where others reach what is bound to an address: that address, unless it stands for all.
fn advertised(bound: SocketAddr, host: &str) -> String {
    match bound.ip() {
        ip if ip.is_unspecified() => format!("{host}:{}", bound.port()),
        _ => bound.to_string(),
    }
}

/// A digest of the settings that all nodes are to have.
fn config_digest(settings: &Settings) -> String {
    let is_shared = |key: &Key| {
        let name = key.name();
        !OWN.contains(key) && SHARED.iter().any(|section| name.starts_with(section))
    };
    let mut digest = Sha256::new();
    for key in Key::all().filter(is_shared) {
        let setting = settings.setting(key);
        // Scripts of a service have files where something says so: the default does not.
        let is_unset = key == Key::IoEnabled && setting.layer == Layer::Default;
        let value = setting.value.as_ref().filter(|_| !is_unset).map(ToString::to_string);
        digest.update(format!("{} = {}\n", key.name(), value.unwrap_or_default()));
    }
    digest.finalize()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Flags, Value};

    fn settings(values: &[(Key, &str)]) -> Settings {
        let environment = sandbox_env::Environment::new(Path::new("/"), 1000, &[]);
        let mut flags = Flags::default();
        for (key, text) in values {
            flags.set(*key, Some(Value::from_text(*key, text).unwrap()));
        }
        Settings::load(&environment, flags).unwrap()
    }

    #[test]
    fn node_is_reached_at_the_address_that_it_listens_on_or_by_its_name() {
        for (bound, address) in [
            ("0.0.0.0:8471", "m1:8471"),
            ("[::]:8471", "m1:8471"),
            ("127.0.0.1:9", "127.0.0.1:9"),
            ("[::1]:9", "[::1]:9"),
        ] {
            assert_eq!(advertised(bound.parse().unwrap(), "m1"), address);
        }
    }

    #[test]
    fn addresses_of_a_node_have_a_port() {
        for (key, text, is_taken) in [
            (Key::ServerPeerListen, "127.0.0.1:0", true),
            (Key::ServerPeerListen, "127.0.0.1", false),
            (Key::ServerPeerListen, "unix:peers", false),
            (Key::ServerAdvertise, "m1.example.org:8471", true),
            (Key::ServerAdvertise, "[fd00::1]:8471", true),
            (Key::ServerAdvertise, "m1", false),
            (Key::ServerAdvertise, "m1:0", false),
            (Key::ServerAdvertise, ":8471", false),
        ] {
            assert_eq!(PeerPlan::of(&settings(&[(key, text)])).is_ok(), is_taken, "{text}");
        }
    }

    #[test]
    fn digest_is_of_the_settings_that_nodes_share() {
        let digest = |values: &[(Key, &str)]| config_digest(&settings(values));
        let one = digest(&[]);
        assert_eq!(
            one,
            digest(&[(Key::ServerListen, "127.0.0.1:1"), (Key::ServerAdvertise, "a:1")])
        );
        assert_ne!(one, digest(&[(Key::IoEnabled, "true")]));
        assert_ne!(one, digest(&[(Key::Protected, "['.bashrc']")]));
        assert_ne!(one, digest(&[(Key::ServerShutdownTimeout, "1m")]));
    }
}
