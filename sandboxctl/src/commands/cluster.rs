//! `cluster`: the nodes that share a database.

use std::time::Duration;

use sandbox_api::millis;
use sandbox_api::service::{NodeState, NodeStatus, Time};
use sandbox_store::{Cluster, Drain, Store};
use serde::Serialize;

use super::{Context, database};
use crate::cli::cluster::{ClusterCommand, DatabaseArgs};
use crate::error::Error;
use crate::render::{self, escaped_line};

pub fn cluster(context: &Context<'_>, command: &ClusterCommand) -> Result<u8, Error> {
    match command {
        ClusterCommand::Status { database, json } => return status(context, database, *json),
        ClusterCommand::Drain { node, evict, database } => {
            let drain = if *evict { Drain::Evict } else { Drain::Yes };
            with_node(context, database, node, |cluster, node| {
                cluster.set_draining(&node.node, drain)?;
                Ok(format!("{} begins nothing more", node.node))
            })
        }
        ClusterCommand::Undrain { node, database } => {
            with_node(context, database, node, |cluster, node| {
                cluster.set_draining(&node.node, Drain::No)?;
                Ok(format!("{} begins executions again", node.node))
            })
        }
        ClusterCommand::Forget { node, database } => {
            with_node(context, database, node, |cluster, node| {
                // In the transaction too: it may have come back meanwhile.
                if node.state != NodeState::Away || !cluster.forget(&node.node)? {
                    return Err(Error::usage("NODE", format!("{} has a session", node.node))
                        .with_hint("stop it first; `sandboxctl cluster drain` takes it out"));
                }
                let kept = render::count(node.sandboxes, "kept sandbox", "kept sandboxes");
                Ok(format!("{} is forgotten, with {kept}", node.node))
            })
        }
    }?;
    Ok(0)
}

/// Does something with the node that is named, and says so.
fn with_node(
    context: &Context<'_>,
    database: &DatabaseArgs,
    name: &str,
    change: impl FnOnce(&Cluster, &NodeStatus) -> Result<String, Error>,
) -> Result<(), Error> {
    let store = database::open(context, database)?;
    let cluster = cluster_of(&store)?;
    let done = change(cluster, find(&cluster.nodes()?, name)?)?;
    context.output.notice(&escaped_line(&done));
    Ok(())
}

fn cluster_of(store: &Store) -> Result<&Cluster, Error> {
    store.cluster().ok_or_else(|| Error::usage("--database", "it is not the database of a cluster"))
}

/// The node with this id, or the only one with this name.
fn find<'a>(nodes: &'a [NodeStatus], name: &str) -> Result<&'a NodeStatus, Error> {
    if let Some(node) = nodes.iter().find(|node| node.node == name) {
        return Ok(node);
    }
    let mut named = nodes.iter().filter(|node| node.name == name);
    let why = match (named.next(), named.next()) {
        (Some(node), None) => return Ok(node),
        (Some(_), Some(_)) => "several nodes have this name",
        (None, _) => "there is no such node",
    };
    Err(Error::usage(format!("NODE '{name}'"), why)
        .with_hint("`sandboxctl cluster status` lists them"))
}

/// The nodes of a cluster.
#[derive(Serialize)]
struct ClusterStatus<'a> {
    /// Its id.
    cluster: &'a str,
    lease_ms: u64,
    /// How many executions wait for a node.
    queued: u64,
    nodes: Vec<NodeStatus>,
}

fn status(context: &Context<'_>, database: &DatabaseArgs, json: bool) -> Result<u8, Error> {
    let store = database::open(context, database)?;
    let cluster = cluster_of(&store)?;
    let identity = cluster.identity();
    let nodes = cluster.nodes()?;
    let is_ready = nodes.iter().any(|node| node.state == NodeState::Ready);
    let digests = nodes.iter().filter_map(|node| node.config_digest.as_deref());
    let digests: std::collections::BTreeSet<_> = digests.collect();
    let differ = digests.len() > 1;
    let now = Time::now();
    let queued = store.status(now)?.queued;
    let lease_ms = millis(identity.lease);
    let status = ClusterStatus { cluster: &identity.id, lease_ms, queued, nodes };
    context.output.show(json, &status, |width| listing(&status.nodes, now, width))?;
    if queued > 0 && !json {
        context.output.notice(&format!(
            "executions that wait: {queued}; a subject runs at most server.subject_concurrency at one time, at all \
             nodes together"
        ));
    }
    if differ {
        context.output.warning(
            "nodes have different settings of what they should share: `sandboxctl config show server limits \
             exec network` prints those of a machine; --json has the digest of each",
        );
    }
    Ok(u8::from(!is_ready))
}

/// Nodes as a table of this width.
fn listing(nodes: &[NodeStatus], now: Time, width: Option<usize>) -> String {
    let number = |number: Option<u32>| render::cell(number.map(|it| it.to_string()).as_deref());
    let row = |node: &NodeStatus| {
        // By the database's clock, unless the node is away.
        let beat = node.beat_age_ms.map(Duration::from_millis);
        [
            escaped_line(&node.node).into_owned(),
            render::word(node.state),
            number(node.running),
            number(node.slots),
            node.sandboxes.to_string(),
            render::cell(node.version.as_deref()),
            render::cell(node.address.as_deref()),
            render::age(beat.unwrap_or_else(|| now.since(node.last_seen))),
        ]
    };
    let headings = ["NODE", "STATE", "RUNNING", "SLOTS", "SANDBOXES", "VERSION", "ADDRESS", "BEAT"];
    render::table(headings, nodes.iter().map(row), width)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(node: &str, state: NodeState, running: u32, sandboxes: u64) -> NodeStatus {
        let (name, _) = node.split_once('-').unwrap();
        let is_there = state != NodeState::Away;
        NodeStatus {
            node: node.to_owned(),
            name: name.to_owned(),
            state,
            address: is_there.then(|| format!("{name}:8471")),
            version: is_there.then(|| "0.1.0".to_owned()),
            running: is_there.then_some(running),
            slots: is_there.then_some(16),
            sandboxes,
            config_digest: is_there.then(|| "3f".to_owned()),
            beat_age_ms: is_there.then_some(1200),
            last_seen: Time::from_unix_millis(0),
        }
    }

    #[test]
    fn table_says_what_each_node_does() {
        let nodes = [
            node("m1-3f9c", NodeState::Ready, 3, 2),
            node("m2-a1b2", NodeState::Draining, 1, 0),
            node("m3-c3d4", NodeState::Draining, 0, 1),
            node("m4-e5f6", NodeState::Drained, 0, 0),
            node("m5-0718", NodeState::Away, 0, 4),
        ];
        insta::assert_snapshot!(listing(&nodes, Time::from_unix_millis(3_600_000), None), @r"
        NODE     STATE     RUNNING  SLOTS  SANDBOXES  VERSION  ADDRESS  BEAT
        m1-3f9c  ready     3        16     2          0.1.0    m1:8471  1s
        m2-a1b2  draining  1        16     0          0.1.0    m2:8471  1s
        m3-c3d4  draining  0        16     1          0.1.0    m3:8471  1s
        m4-e5f6  drained   0        16     0          0.1.0    m4:8471  1s
        m5-0718  away      -        -      4          -        -        1h
        ");
    }

    #[test]
    fn node_is_named_by_its_id_or_by_a_name_that_no_other_has() {
        let nodes = ["m1-3f9c", "m1-a1b2", "m2-c3d4"].map(|id| node(id, NodeState::Away, 0, 0));
        for (name, found) in [("m1-a1b2", "m1-a1b2"), ("m2", "m2-c3d4")] {
            assert_eq!(find(&nodes, name).unwrap().node, found);
        }
        for (name, why) in [("m1", "several nodes have this name"), ("m", "no such node")] {
            let text = find(&nodes, name).unwrap_err().to_text();
            assert!(text.contains(why) && text.contains("cluster status"), "{text}");
        }
    }
}
