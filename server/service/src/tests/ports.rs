//! Connections to ports of kept sandboxes.

use sandbox_api::service::{KeptSpec, SandboxStatus};
use sandbox_api::{Ports, PreviewRequest};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use crate::preparation::tests::preparation;
use crate::{InSandbox, PortStream, Preparation, PreviewConfig, PreviewHost, Ready};

fn open(world: &World, ports: &str) -> String {
    let ports: Ports = serde_json::from_str(ports).unwrap();
    let spec = KeptSpec { image: Some("debian:13".to_owned()), ports, ..KeptSpec::default() };
    let request = SandboxRequest { spec, ..SandboxRequest::default() };
    world.block_on(world.service().create_sandbox(me(), request)).unwrap().sandbox.id
}

fn images(config: &mut ServiceConfig) {
    config.allowed_images = vec!["debian:*".to_owned()];
}

fn dial(world: &World, id: &str, port: u16) -> Result<InSandbox<PortStream>, ServiceError> {
    world.block_on(world.service().dial(me(), &of_sandbox(id, None), port))
}

fn status(world: &World, id: &str) -> SandboxStatus {
    world.block_on(world.service().sandbox(me(), id)).unwrap().status
}

#[test]
fn port_that_the_spec_lists_is_connected_to_and_no_other() {
    let world = World::with(images);
    let mut server = world.launcher.listen(8080);
    let _other = world.launcher.listen(9090);
    let id = open(&world, "[8080, 8081]");
    for (port, refused) in
        [(9090, ServiceError::port_not_open(9090)), (8081, ServiceError::port_closed(8081))]
    {
        let error = dial(&world, &id, port).unwrap_err();
        assert_eq!(error.problem(), refused.problem());
    }
    let place = of_sandbox(&id, None);
    let foreign = world.service().dial(other(), &place, 8080);
    assert_eq!(world.block_on(foreign).unwrap_err().problem().kind, ProblemKind::NotFound);
    let InSandbox { value: mut stream, generation, .. } = dial(&world, &id, 8080).unwrap();
    assert_eq!(generation, 1);
    world.block_on(async {
        let mut inside = server.recv().await.unwrap();
        stream.connection.write_all(b"ask").await.unwrap();
        stream.connection.shutdown().await.unwrap();
        let mut asked = String::new();
        inside.read_to_string(&mut asked).await.unwrap();
        assert_eq!(asked, "ask");
        inside.write_all(b"answer").await.unwrap();
        drop(inside);
        let mut answer = String::new();
        stream.connection.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "answer");
    });
    let listed = world.service().listening_ports(me(), &place);
    let listed = world.block_on(listed).unwrap().value.ports;
    assert_eq!(listed.iter().map(|it| it.port).collect::<Vec<_>>(), [8080, 9090]);
    // Nothing is reached in a sandbox that lists none.
    let closed = open(&world, "[]");
    let error = dial(&world, &closed, 8080).unwrap_err();
    assert_eq!(error.problem().kind, ProblemKind::Policy);
    let any = open(&world, r#""any""#);
    assert!(dial(&world, &any, 8080).is_ok());
}

#[test]
fn open_connection_is_a_use_that_hinders_neither_a_pause_nor_the_end() {
    let world = World::with(|config| {
        images(config);
        config.kept.idle = Duration::from_millis(50);
    });
    let mut server = world.launcher.listen(80);
    let id = open(&world, "[80]");
    world.until_true(|| status(&world, &id) == SandboxStatus::Stopped);
    let place = of_sandbox(&id, None);
    let listed = world.service().listening_ports(me(), &place);
    assert!(world.block_on(listed).unwrap().value.ports.is_empty(), "it is not started for that");
    let stream = dial(&world, &id, 80).unwrap().value;
    assert_eq!(world.block_on(world.service().sandbox(me(), &id)).unwrap().idle_at, None);
    let pause = || world.block_on(world.service().pause_sandbox(me(), &of_sandbox(&id, None)));
    assert_eq!(pause().unwrap().status, SandboxStatus::Paused);
    // The next one thaws it.
    let second = dial(&world, &id, 80).unwrap().value;
    assert_eq!(status(&world, &id), SandboxStatus::Ready);
    drop(second);
    world.block_on(world.service().delete_sandbox(me(), &id)).unwrap();
    drop(stream);
    assert!(world.block_on(server.recv()).is_some());
}

#[test]
fn subject_has_so_many_connections_at_a_time() {
    let world = World::with(images);
    let _server = world.launcher.listen(80);
    let ids = [open(&world, "[80]"), open(&world, "[80]")];
    let open: Vec<_> = (0..512).map(|at| dial(&world, &ids[at % 2], 80).unwrap()).collect();
    let refused = dial(&world, &ids[0], 80).unwrap_err();
    assert_eq!(refused.problem().kind, ProblemKind::QuotaExceeded);
    drop(open);
    assert!(dial(&world, &ids[0], 80).is_ok());
}

#[test]
fn prepared_process_is_ready_when_something_listens_on_its_port() {
    let world = World::with(|config| {
        config.default_root =
            RootFs::Image { reference: "debian:13".to_owned(), pull: Default::default() };
        config.prepared = vec![Preparation {
            command: vec!["sleep".to_owned(), "60".to_owned()],
            ready: Ready::Port(8080),
            ..preparation()
        }];
    });
    let spec = KeptSpec { prepared: Some(preparation().name), ..KeptSpec::default() };
    let spec = KeptSpec { processes: sandbox_api::Processes::Kept, ..spec };
    let request = SandboxRequest { spec, ..SandboxRequest::default() };
    let service = world.service().clone();
    let created = world.spawn(async move { service.create_sandbox(me(), request).await });
    world.until_true(|| world.launcher.launches.load(Ordering::SeqCst) > 0);
    assert!(!created.is_finished());
    let _server = world.launcher.listen(8080);
    world.block_on(created).unwrap().unwrap();
}

#[test]
fn port_of_a_sandbox_that_a_front_end_keeps_has_a_preview_until_its_end() {
    let world = World::with(|config| {
        config.previews = Some(PreviewConfig {
            domain: "preview.example.net".to_owned(),
            scheme: "https",
            port: None,
            may_be_public: true,
        });
    });
    let _server = world.launcher.listen(8080);
    let root = RootFs::Image { reference: "debian:13".to_owned(), pull: Default::default() };
    let spec = || sandbox_api::SandboxSpec::new().root(root.clone()).ports(Ports::Any);
    let kept = world.service().attached_sandbox(me(), "workspace", spec);
    let kept = world.block_on(kept).unwrap();
    let foreign = world.service().open_attached_preview(other(), &kept, 8080, Default::default());
    assert_eq!(foreign.unwrap_err().problem().kind, ProblemKind::NotFound);
    // As a sandbox of the API it does not exist.
    let listed = world.service().open_preview(me(), &kept, 8080, Default::default());
    assert_eq!(world.block_on(listed).unwrap_err().problem().kind, ProblemKind::NotFound);
    for public in [false, true] {
        let request = PreviewRequest { public, ttl_ms: None };
        let opened = world.service().open_attached_preview(me(), &kept, 8080, request).unwrap();
        let label = opened.url.strip_prefix("https://").unwrap().split('.').next().unwrap();
        let host = PreviewHost::parse(label).unwrap();
        let whose = world.service().preview_subject(&host, opened.token.as_deref());
        assert_eq!(world.block_on(whose).unwrap().as_ref(), Some(me()));
        let whose = world.service().preview_subject(&host, Some("1.00"));
        assert_eq!(world.block_on(whose).unwrap().is_some(), public);
    }
    assert!(dial(&world, &kept.id, 8080).is_ok());
    let audited = world.launcher.audited.lock().unwrap().clone();
    let (create, first) = (("preview.create", 8080), ("preview.use", 8080));
    // Of the public one the second request was no first use.
    assert_eq!(audited, [create, first, create, first]);
}
