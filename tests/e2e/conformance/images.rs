//! What sandboxes are made from: images and directories that are not ours, in which programs run.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::Path;
use std::process::Command as Host;

use sandbox_api::{ErrorKind, Input, Outcome, Pull, RootFs, SandboxSpec, Script};
use sandbox_controller::Command;
use serde_json::json;

use crate::engine::{Engine, docker_lines, engine};
use crate::engines::{Feature, has};
use crate::fixture::{Fixture, eventually, finish};
use crate::library::{Guest, Library};
use crate::rootfs::{Provided, Rootfs};

/// A sandbox made from something, with the io dir of a place of its own.
struct Programs {
    // Dropped in this order.
    guest: Guest,
    provided: Provided,
}

impl Programs {
    fn of(rootfs: &Rootfs) -> Self {
        Self::from(rootfs.provide())
    }

    fn from(provided: Provided) -> Self {
        let place = Fixture::new();
        let io_dir = place.path("sandbox-files");
        std::fs::create_dir(&io_dir).unwrap();
        if rustix::process::geteuid().is_root() {
            chown(&io_dir, Some(4321), Some(4322)).unwrap();
        }
        let guest = Guest::in_place(place, |spec| spec.root(provided.root()));
        Self { guest, provided }
    }

    /// What a program prints that succeeds.
    #[track_caller]
    fn output(&self, command: Command) -> String {
        let result = self.guest.wait(self.guest.sandbox.run(command)).unwrap();
        let stderr = String::from_utf8_lossy(&result.stderr().bytes);
        assert_eq!(result.command_exit_code(), Some(0), "{:?} {stderr}", result.outcome);
        String::from_utf8(result.stdout().bytes.clone()).unwrap()
    }

    #[track_caller]
    fn shell(&self, script: &str) -> String {
        self.output(Command::shell(script))
    }

    /// The options of the mount at `target`, its kind, and its own options.
    fn mount(&self, target: &str) -> (String, String, String) {
        let mounts = self.shell("cat /proc/self/mountinfo");
        let mut lines = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let found = lines.rfind(|fields| fields[4] == target);
        let fields = found.unwrap_or_else(|| panic!("no mount {target}: {mounts}"));
        let dash = fields.iter().position(|field| *field == "-").unwrap();
        (fields[5].to_owned(), fields[dash + 1].to_owned(), fields[dash + 3].to_owned())
    }
}

/// Why no sandbox can be made from something: the kind, and the whole message with its hint.
#[track_caller]
fn refused(root: RootFs) -> (ErrorKind, String) {
    refused_with(|spec| spec.root(root))
}

#[track_caller]
fn refused_with(spec: impl FnOnce(SandboxSpec) -> SandboxSpec) -> (ErrorKind, String) {
    let place = Fixture::new();
    let library = Library::new(&place);
    let io_dir = place.path("sandbox-files");
    let error = library.try_launch(spec(SandboxSpec::new().io_dir(io_dir))).unwrap_err();
    let message = format!("{} hint: {}", error.full_message(), error.hint().unwrap_or_default());
    drop(library);
    (error.kind(), message)
}

/// Everything below a directory: what it is, and when it last changed in any way.
fn state_of(folder: &Path) -> BTreeMap<String, (u32, u64, u64, i64, i64)> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let metadata = folder.symlink_metadata().unwrap();
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let metadata = path.symlink_metadata().unwrap();
            if metadata.is_dir() {
                folders.push(path.clone());
            } else {
                found.insert(path.to_str().unwrap().to_owned(), stamp(&metadata));
            }
        }
        found.insert(folder.to_str().unwrap().to_owned(), stamp(&metadata));
    }
    found
}

fn stamp(metadata: &std::fs::Metadata) -> (u32, u64, u64, i64, i64) {
    let changed = (metadata.ctime(), metadata.ctime_nsec());
    (metadata.mode(), metadata.ino(), metadata.size(), changed.0, changed.1)
}

/// The user of the sandboxes: root's tests give the io dir to another one.
fn user() -> (u32, u32) {
    match rustix::process::geteuid() {
        uid if uid.is_root() => (4321, 4322),
        uid => (uid.as_raw(), rustix::process::getegid().as_raw()),
    }
}

const SHELL: &[&str] = &["/bin/sh", "/bin/cat", "/bin/ls", "/usr/bin/id", "/usr/bin/env"];

#[test]
fn programs_run_in_a_file_system_of_static_ones_alone() {
    let programs = Programs::of(&Rootfs::busybox());
    assert_eq!(programs.output(Command::new("echo").arg("hello")), "hello\n");
    // Not created by an image: it is mounted.
    assert_eq!(programs.shell("cd /tmp && echo x > a && cat a"), "x\n");
    let (uid, gid) = user();
    let ids = programs.shell("id -u; id -g; id -G");
    assert!(ids.starts_with(&format!("{uid}\n{gid}\n{gid}")), "{ids}");
    assert_eq!(programs.shell("echo y > out; pwd"), "/io\n");
    assert_eq!(programs.guest.place.read("sandbox-files/out"), "y\n");
}

#[test]
fn programs_run_with_the_libraries_of_their_own_file_system() {
    let programs = Programs::of(&Rootfs::host(SHELL));
    let (uid, _) = user();
    assert_eq!(programs.shell("/bin/cat /etc/hostname; id -u"), format!("sandbox\n{uid}\n"));
}

#[test]
fn a_program_alone_runs_where_there_is_no_shell_and_nothing_else() {
    let rootfs = Rootfs::empty().copy("busybox", "/bin/busybox");
    let programs = Programs::of(&rootfs);
    assert_eq!(programs.output(Command::new("/busybox").args(["echo", "alone"])), "alone\n");
    let result = programs.guest.wait(programs.guest.sandbox.run(Command::shell("true"))).unwrap();
    assert_eq!(result.outcome.exit_code(), 127, "{result:?}");
}

#[test]
fn scripts_run_beside_programs() {
    let programs = Programs::of(&Rootfs::busybox());
    let script = Script::new("local r = process.exec('cat', {'/etc/hostname'}) return r.stdout");
    let result = programs.guest.wait(programs.guest.sandbox.run(script)).unwrap();
    let Outcome::Ok { result } = &result.outcome else { panic!("{result:#?}") };
    assert_eq!(result.get(), r#""sandbox\n""#);
}

#[test]
fn entrypoint_of_an_image_is_not_started() {
    let rootfs = Rootfs::busybox().config(json!({
        "Env": ["PATH=/opt/own:/bin", "GREETING=hello there", "HOME=/root"],
        "User": "nobody:nogroup",
        "Entrypoint": ["/missing"],
        "Cmd": ["also-missing"],
        "WorkingDir": "/not/there",
        "ExposedPorts": {"80/tcp": {}},
        "StopSignal": "SIGUSR1",
        "Healthcheck": {"Test": ["CMD", "/bin/touch", "/tmp/checked"], "Interval": 1_000_000_000},
        "OnBuild": ["RUN false"],
    }));
    let rootfs = rootfs.file("opt/own/greet", 0o755, "#!/bin/sh\necho $GREETING");
    let programs = Programs::from(rootfs.provide_image());
    assert_eq!(programs.output(Command::new("greet")), "hello there\n");
    assert_eq!(programs.shell("echo $HOME; id -u"), format!("/io\n{}\n", user().0));
    assert_eq!(programs.shell("ls /not 2>/dev/null || echo none"), "none\n");
    if engine() != Engine::Docker {
        return;
    }
    let id = programs.guest.sandbox.container_id();
    let health = docker_lines(&["inspect", "--format", "{{.Config.Healthcheck.Test}}", id]);
    assert_eq!(health, ["[NONE]"]);
}

#[test]
fn image_with_volumes_writes_nothing_and_creates_no_volume() {
    if engine() != Engine::Docker {
        return;
    }
    let rootfs = Rootfs::busybox()
        .folder("data", 0o777)
        .config(json!({"Volumes": {"/data": {}, "/made/by/it/": {}, "/tmp": {}, "/io": {}}}));
    let programs = Programs::of(&rootfs);
    let id = programs.guest.sandbox.container_id();
    let format = "{{range .Mounts}}{{.Type}} {{.Destination}} {{end}}";
    let mounts = docker_lines(&["inspect", "--format", format, id]).remove(0);
    assert!(mounts.contains("bind /io ") && !mounts.contains("volume"), "{mounts}");
    for folder in ["/data", "/made/by/it"] {
        let (options, kind, _) = programs.mount(folder);
        assert!(options.starts_with("ro,") && kind == "tmpfs", "{folder}: {options} {kind}");
    }
    assert_eq!(programs.shell("echo x > /tmp/x; echo x > /io/x; cat /tmp/x /io/x"), "x\nx\n");
}

#[test]
fn an_image_with_a_volume_in_the_io_dir_is_refused_before_anything_is_made() {
    if engine() != Engine::Docker {
        return;
    }
    let provided = Rootfs::busybox().config(json!({"Volumes": {"/io/x/../deep": {}}})).load();
    let (kind, message) = refused(provided.root());
    assert_eq!(kind, ErrorKind::Image);
    assert!(message.contains("wants a volume at /io/deep"), "{message}");
    assert!(message.contains("--mount-path"), "{message}");
}

#[test]
fn image_with_a_relative_volume_is_refused_before_a_volume_is_made() {
    if engine() != Engine::Docker {
        return;
    }
    let volume = "../../../tmp";
    let volumes = || docker_lines(&["volume", "ls", "--quiet"]);
    let before = volumes();
    let provided = Rootfs::busybox().config(json!({"Volumes": {volume: {}}})).load();
    let (kind, message) = refused(provided.root());
    assert_eq!(kind, ErrorKind::Image);
    assert!(message.contains(&format!("{volume:?}, which is not an absolute path")), "{message}");
    // Others have some at the same time, which end with their containers.
    let mut made = volumes();
    made.retain(|name| !before.contains(name));
    eventually(&format!("none of {made:?} is left"), || {
        let left = volumes();
        (!made.iter().any(|name| left.contains(name))).then_some(())
    });
}

/// An engine that looks up the users of an image refuses it for this.
#[track_caller]
fn assert_users_are_refused(rootfs: &Rootfs, problem: &str) {
    let provided = rootfs.provide();
    if engine() == Engine::Embedded {
        // They are not looked up.
        drop(Guest::with(|spec| spec.root(provided.root())));
        return;
    }
    // Also by what was remembered of the image.
    for _ in 0..2 {
        let (kind, message) = refused(provided.root());
        let is_link = problem.contains("symbolic link");
        if is_link && !has(Feature::LinksFound) && kind == ErrorKind::Engine {
            // It leads nowhere: the engine does not start the container.
            continue;
        }
        assert_eq!(kind, ErrorKind::Image, "{message}");
        assert!(message.contains(problem), "{message}");
    }
}

#[test]
fn image_whose_users_are_in_a_fifo_does_not_hold_up_the_engine() {
    for path in ["etc/passwd", "etc/group"] {
        let problem = format!("has a special file at /{path}");
        assert_users_are_refused(&Rootfs::busybox().fifo(path), &problem);
    }
}

#[test]
fn image_with_more_users_than_the_engine_reads_in_bounded_memory_is_refused() {
    for (path, line) in [("etc/passwd", "x:x:0:0::/:/\n"), ("etc/group", "x:x:0:\n")] {
        let with =
            |bytes: usize| Rootfs::busybox().file(path, 0o644, line.repeat(bytes / line.len()));
        let small = Programs::of(&with(1 << 20));
        assert_eq!(small.output(Command::new("echo").arg("a")), "a\n", "{path}");
        let problem = format!("has more than 1048576 bytes at /{path}");
        assert_users_are_refused(&with(2 << 20), &problem);
    }
}

#[test]
fn image_whose_users_are_behind_a_link_is_refused() {
    for (rootfs, link) in [
        (Rootfs::busybox().link("etc/passwd", "/proc/kmsg"), "/etc/passwd"),
        (Rootfs::busybox().link("etc/group", "../io/users"), "/etc/group"),
        // The engine would wait for a writer, if it were asked about more than the link.
        (Rootfs::busybox().fifo("srv/fifo").link("etc/passwd", "/srv/fifo"), "/etc/passwd"),
    ] {
        assert_users_are_refused(&rootfs, &format!("has a symbolic link at {link}"));
    }
}

#[test]
fn labels_of_an_image_do_not_describe_the_sandbox() {
    if engine() != Engine::Docker {
        return;
    }
    let label = |name: &str| (format!("sandboxctl.{name}"), json!("of the image"));
    let labels: serde_json::Map<_, _> =
        ["name", "title", "io_dir", "image", "agent"].map(label).into_iter().collect();
    let programs = Programs::of(&Rootfs::busybox().config(json!({"Labels": labels})));
    let id = programs.guest.sandbox.id().to_owned();
    let listed = finish(programs.guest.place.command(["ps", "--json"]));
    assert!(listed.assert_code(0).stdout.contains(&id), "{}", listed.stdout);
    assert!(!listed.stdout.contains("of the image"), "{}", listed.stdout);
    // Nor make it an image of sandboxctl, which is removed with them.
    let images = finish(programs.guest.place.command(["image", "ls", "--json"]));
    assert!(!images.assert_code(0).stdout.contains("of the image"), "{}", images.stdout);
}

#[test]
fn an_image_for_another_processor_is_refused_by_name() {
    let provided = Rootfs::busybox().architecture("riscv64").provide_image();
    let (kind, message) = refused(provided.root());
    assert_eq!(kind, ErrorKind::Image);
    assert!(message.contains("linux/riscv64"), "{message}");
}

#[test]
fn an_image_is_found_by_its_id_too() {
    if engine() != Engine::Docker {
        return;
    }
    let provided = Rootfs::busybox().load();
    let Provided::Image(name) = &provided else { panic!("{provided:?}") };
    let id = docker_lines(&["inspect", "--format", "{{.Id}}", name]).remove(0);
    let root = RootFs::Image { reference: id, pull: Pull::Never };
    let guest = Guest::with(|spec| spec.root(root));
    let result = guest.wait(guest.sandbox.run(Command::new("true"))).unwrap();
    assert_eq!(result.command_exit_code(), Some(0), "{result:?}");
}

#[test]
fn localhost_is_known_and_no_name_is_asked_for_elsewhere() {
    let programs =
        Programs::of(&Rootfs::busybox().file("etc/resolv.conf", 0o644, "nameserver 1.1"));
    let hosts = programs.shell("cat /etc/hosts");
    assert!(hosts.starts_with("127.0.0.1 localhost\n::1 localhost"), "{hosts}");
    assert!(!programs.shell("cat /etc/resolv.conf").contains("nameserver"));
    assert_eq!(programs.shell("hostname"), "sandbox\n");
    // The loopback is up, and reaches itself by that name.
    let talk = "nc -l -p 8000 -e echo heard & \
                until nc localhost 8000 2>/dev/null </dev/null; do :; done";
    assert_eq!(programs.shell(talk), "heard\n");
    let devices = programs.shell("cat /proc/net/dev | tail -n +3 | cut -d: -f1");
    assert_eq!(devices.trim(), "lo");
}

#[test]
fn tmp_is_bounded_in_bytes_and_files() {
    // A read-only directory of the image does not matter either.
    let programs = Programs::of(&Rootfs::busybox().folder("tmp", 0o755));
    let (options, kind, own) = programs.mount("/tmp");
    assert_eq!(kind, "tmpfs");
    assert!(!options.contains("noexec"), "{options}");
    let shared = has(Feature::SharedKernel);
    if shared {
        assert!(options.contains("nosuid") && options.contains("nodev"), "{options}");
    }
    // Seven eighths of the memory.
    assert!(own.contains(if shared { "size=917504k" } else { "size=939524096" }), "{own}");
    assert_eq!(own.contains("nr_inodes=65536"), has(Feature::BoundedFiles), "{own}");
    // Programs may be built there.
    assert_eq!(programs.shell("cp /bin/busybox /tmp/echo && /tmp/echo built"), "built\n");
    let (options, kind, own) = programs.mount("/dev/shm");
    assert_eq!(kind, "tmpfs");
    for option in if shared { &["nosuid", "nodev", "noexec"][..] } else { &["noexec"] } {
        assert!(options.contains(option), "{options}");
    }
    assert!(own.contains(if shared { "size=65536k" } else { "size=67108864" }), "{own}");
    let full = "head -c 70000000 /dev/zero > /dev/shm/x 2>/dev/null; wc -c < /dev/shm/x";
    assert_eq!(programs.shell(full).trim(), "67108864");
}

#[test]
fn nothing_of_the_file_system_can_be_changed() {
    let rootfs = Rootfs::busybox().folder("open", 0o777).file("open/file", 0o666, "as it was");
    let programs = Programs::of(&rootfs);
    let (options, ..) = programs.mount("/");
    assert!(options.split(',').any(|option| option == "ro"), "{options}");
    for attempt in ["echo x > /open/file", "echo x > /open/new", "rm /open/file", "mkdir /open/d"] {
        let script = format!("({attempt}) 2>/dev/null && echo changed; cat /open/file");
        assert_eq!(programs.shell(&script), "as it was", "{attempt}");
    }
}

#[test]
fn a_file_system_has_no_say_in_where_the_sandboxs_own_mounts_are() {
    // Everything that is mounted, as something else.
    let rootfs = Rootfs::host(SHELL);
    let rootfs = if has(Feature::LinksReplaced) {
        rootfs
            .link("dev", "../../../etc")
            .link("etc/hosts", "/bin/cat")
            .link("etc/resolv.conf", "../run/missing/resolv.conf")
    } else {
        rootfs
    };
    let rootfs = match engine() {
        // It puts what is its own there in place of these links. Of others the image is refused.
        Engine::Docker => rootfs,
        Engine::Embedded => rootfs
            .link("io", "/bin")
            .link("tmp", "/elsewhere")
            .file("elsewhere/kept", 0o644, "kept")
            .link(".sandbox", "/proc/self")
            .link("sys/block", "/io")
            .link("sys/module", "/io/y")
            .file("proc", 0o644, ""),
    };
    let provided = rootfs.provide();
    let before = provided.path().map(|folder| state_of(&folder));
    let programs = Programs::from(provided);
    assert_eq!(programs.shell("cat /proc/self/comm"), "cat\n");
    assert_eq!(
        programs.shell("echo x > /tmp/x && cat /tmp/x && echo y > /io/y && cat /io/y"),
        "x\ny\n"
    );
    assert_eq!(programs.guest.place.read("sandbox-files/y"), "y\n");
    let Programs { guest, provided } = programs;
    drop(guest);
    assert_eq!(provided.path().map(|folder| state_of(&folder)), before);
}

#[test]
fn a_directory_is_never_written_to() {
    let provided = Rootfs::busybox().directory();
    let folder = provided.path().unwrap();
    if engine() != Engine::Embedded {
        let (kind, message) = refused(provided.root());
        assert_eq!(kind, ErrorKind::Usage);
        assert!(message.contains("docker load"), "{message}");
        return;
    }
    let before = state_of(&folder);
    let programs = Programs::from(provided);
    programs
        .shell("touch /x /bin/x; mkdir /new; rm /bin/ls; chmod 777 /bin; echo x > /tmp/x; true");
    let (options, kind, _) = programs.mount("/");
    assert_eq!(kind, "overlay");
    for option in ["ro", "nosuid", "nodev"] {
        assert!(options.split(',').any(|it| it == option), "{options}");
    }
    let Programs { guest, provided } = programs;
    drop(guest);
    assert_eq!(state_of(&folder), before);
    drop(provided);
}

#[test]
fn nothing_in_a_directory_is_a_way_to_the_host() {
    if engine() != Engine::Embedded {
        return;
    }
    let rootfs =
        Rootfs::busybox().link("out", "../../../../../etc/passwd").link("etc", "/host/etc");
    let provided = rootfs.directory();
    let folder = provided.path().unwrap();
    // A socket, a FIFO and a set-id program of the host's, for anybody.
    let socket = std::os::unix::net::UnixListener::bind(folder.join("socket")).unwrap();
    socket.set_nonblocking(true).unwrap();
    assert!(Host::new("mkfifo").arg(folder.join("fifo")).status().unwrap().success());
    std::fs::create_dir(folder.join("set-id")).unwrap();
    std::fs::copy("/bin/busybox", folder.join("set-id/busybox")).unwrap();
    for (name, mode) in [("socket", 0o777), ("fifo", 0o666), ("set-id/busybox", 0o6755)] {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(folder.join(name), permissions).unwrap();
    }
    let programs = Programs::from(provided);
    // The sandbox's own.
    let (uid, gid) = user();
    let line = format!("sandbox:x:{uid}:{gid}:sandbox:/io:/bin/sh\n");
    assert_eq!(programs.shell("cat /out"), line);
    assert_eq!(programs.shell("/set-id/busybox id -u"), format!("{uid}\n"));
    programs.shell("nc local:/socket </dev/null; true");
    assert!(socket.accept().is_err(), "a program reached a socket of the host's");
    assert_eq!(
        programs.shell("ls /etc | sort | tr '\\n' ' '"),
        "group hostname hosts mtab passwd resolv.conf "
    );
}

#[test]
fn a_directory_that_cannot_be_used_is_the_callers_mistake() {
    if engine() != Engine::Embedded {
        return;
    }
    let place = Fixture::new();
    place.write("file", "");
    for (path, reason) in
        [(place.path("missing"), "No such file"), (place.path("file"), "it is not a directory")]
    {
        let (kind, message) = refused(RootFs::Directory(path));
        assert_eq!(kind, ErrorKind::Usage, "{message}");
        assert!(message.contains(reason), "{message}");
    }
    let provided = Rootfs::busybox().directory();
    let inside = provided.path().unwrap().join("bin");
    let (kind, message) = refused_with(|spec| spec.root(provided.root()).io_dir(inside));
    assert_eq!(kind, ErrorKind::Usage, "{message}");
    assert!(message.contains("is inside it"), "{message}");
}

#[test]
fn the_embedded_engine_has_no_images() {
    if engine() != Engine::Embedded {
        return;
    }
    let (kind, message) = refused(RootFs::Image { reference: "x".to_owned(), pull: Pull::Missing });
    assert_eq!(kind, ErrorKind::Usage, "{message}");
    assert!(message.contains("has no images"), "{message}");
}

#[test]
fn file_at_the_agents_path_is_not_started() {
    let provided = Rootfs::busybox().copy(".sandbox/agent", "/bin/busybox").provide();
    let programs = Programs::from(provided);
    assert!(programs.guest.sandbox.confinement().seccomp);
    assert_eq!(programs.shell("echo x"), "x\n");
}

/// What a launch left in the io dir, and why it was refused, if it was.
fn launch_beside_a_link(provided: &Provided) -> (Vec<String>, Option<(ErrorKind, String)>) {
    let place = Fixture::new();
    let io_dir = place.path("sandbox-files");
    std::fs::create_dir(&io_dir).unwrap();
    place.write("given", "given");
    if rustix::process::geteuid().is_root() {
        chown(&io_dir, Some(4321), Some(4322)).unwrap();
    }
    let library = Library::new(&place);
    let spec = SandboxSpec::new().root(provided.root()).io_dir(&io_dir);
    let launched = library.try_launch(spec.input(Input::path(place.path("given"), "given")));
    let refusal = launched.err().map(|error| (error.kind(), error.full_message()));
    drop(library);
    let left = std::fs::read_dir(&io_dir).unwrap();
    (left.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect(), refusal)
}

#[test]
fn image_with_a_link_where_something_is_mounted_makes_nothing_in_the_io_dir() {
    let volume = |path: &str| Rootfs::busybox().config(json!({"Volumes": {path: {}}}));
    let links: [(Rootfs, &str); 7] = [
        (Rootfs::busybox().link("io", "/elsewhere"), "/io"),
        (Rootfs::busybox().link("in", "/io"), "/in"),
        (Rootfs::busybox().link("in/given", "/io/made"), "/in/given"),
        (Rootfs::busybox().link("tmp", "/io"), "/tmp"),
        (volume("/v").link("v", "/io"), "/v"),
        (volume("/v/w/x").link("v/w", "/io/made"), "/v/w"),
        (volume("/v/w/x").link("v/w", "../io/made"), "/v/w"),
    ];
    for (rootfs, link) in links {
        let (left, refusal) = launch_beside_a_link(&rootfs.provide());
        // Podman has made the mount's target where the link leads.
        let made = !has(Feature::LinksFound) && ["given", "made"].iter().any(|it| left == [*it]);
        assert!(left.is_empty() || made, "{link}: {left:?}");
        match engine() {
            // By the name of the link, also by what was remembered of the image.
            Engine::Docker if !has(Feature::LinksFound) => {
                // The agent finds those in the paths of the io dir and of inputs.
                assert!(
                    refusal.is_some() || !["/io", "/in", "/in/given"].contains(&link),
                    "{link}"
                );
                let kind = refusal.map_or(ErrorKind::Engine, |(kind, _)| kind);
                assert!([ErrorKind::Image, ErrorKind::Engine].contains(&kind), "{link}");
            }
            Engine::Docker => {
                let provided = rootfs.provide();
                for (kind, message) in
                    [refusal.unwrap(), launch_beside_a_link(&provided).1.unwrap()]
                {
                    assert_eq!(kind, ErrorKind::Image, "{message}");
                    let words = format!("has a symbolic link at {link}, where");
                    assert!(message.contains(&words), "{message}");
                }
            }
            // Our own places are made in place of its links.
            Engine::Embedded => assert_eq!(refusal, None, "{link}"),
        }
    }
    // Docker puts its own in place of these.
    for rootfs in [
        Rootfs::busybox().link("etc", "/io"),
        Rootfs::busybox().link("dev", "/io").link("proc", "/io").link("sys", "/io"),
        Rootfs::busybox().link(".sandbox", "/io"),
        Rootfs::busybox().folder(".sandbox", 0o755).link(".sandbox/agent", "/io/agent"),
    ] {
        let (left, refusal) = launch_beside_a_link(&rootfs.provide());
        assert_eq!(left, Vec::<String>::new(), "{rootfs:?}");
        if has(Feature::LinksReplaced) {
            assert_eq!(refusal, None, "{rootfs:?}");
        } else if let Some((kind, message)) = refusal {
            // By the name of the link, or by Podman, which cannot follow it.
            assert!([ErrorKind::Image, ErrorKind::Engine].contains(&kind), "{message}");
        }
    }
}

#[test]
fn image_in_which_the_engine_cannot_look_at_a_mount_target_is_refused_by_its_path() {
    if engine() != Engine::Docker || !has(Feature::LinksFound) {
        return;
    }
    let long = format!("/{}", "v".repeat(300));
    let long = long.as_str();
    for (rootfs, path) in [
        (Rootfs::busybox().link("tmp", "tmp"), "/tmp"),
        (Rootfs::busybox().file("in", 0o644, ""), "/in/given"),
        (Rootfs::busybox().file("sys/fs", 0o644, ""), "/sys/fs/cgroup"),
        (Rootfs::busybox().config(json!({"Volumes": {long: {}}})), long),
    ] {
        let provided = rootfs.provide();
        let Provided::Image(name) = &provided else { panic!("{provided:?}") };
        let (left, refusal) = launch_beside_a_link(&provided);
        assert_eq!(left, Vec::<String>::new(), "{path}");
        let (kind, message) = refusal.unwrap();
        assert_eq!(kind, ErrorKind::Image, "{message}");
        let words = format!("at {path}, where the engine cannot look");
        assert!(message.contains(&words) && message.contains(&**name), "{message}");
    }
}

#[test]
fn image_with_a_variable_that_no_program_can_have_is_refused_by_its_name() {
    let with = |bytes: usize| {
        let variable = format!("LARGE={}", "x".repeat(bytes));
        Rootfs::busybox().config(json!({"Env": ["PATH=/bin", variable]})).provide_image()
    };
    let provided = with(200_000);
    let (kind, message) = refused(provided.root());
    assert_eq!(kind, ErrorKind::Image, "{message}");
    assert!(message.contains("sets the variable \"LARGE\" of 200006 bytes"), "{message}");
    assert!(message.contains("argument list too long"), "{message}");
    assert!(message.contains("hint: make an image with fewer or smaller variables"), "{message}");
    let programs = Programs::from(with(100_000));
    assert_eq!(programs.shell("echo ${#LARGE}"), "100000\n");
}

#[test]
fn image_with_more_variables_than_an_engine_starts_in_time_is_refused() {
    let with = |count: usize, bytes: usize| {
        let path = "PATH=/bin".to_owned();
        let others = (1..count).map(|it| format!("V{it:05}={}", "x".repeat(bytes - 7)));
        let env: Vec<_> = [path].into_iter().chain(others).collect();
        Rootfs::busybox().config(json!({ "Env": env })).provide_image()
    };
    for (provided, problem) in [
        (with(1025, 8), "sets 1025 variables, and a sandbox starts with 1024 at most"),
        (with(200_000, 8), "sets 200000 variables, and a sandbox starts with 1024 at most"),
        (with(1000, 1500), "sets variables of 1499509 bytes together"),
    ] {
        let (kind, message) = refused(provided.root());
        assert_eq!(kind, ErrorKind::Image, "{message}");
        assert!(message.contains(problem), "{message}");
        assert!(message.contains("hint: make an image with fewer or smaller"), "{message}");
    }
    let programs = Programs::from(with(1024, 500));
    assert_eq!(programs.shell("env | grep -c '^V0.*x$'"), "1023\n");
}

#[test]
fn variables_of_an_image_reach_commands_and_not_the_agents_own_process() {
    let env = ["RUST_MIN_STACK=18446744073709551615", "EMPTY=", "HOME=/root", "PATH=/bin"];
    let rootfs = Rootfs::busybox().config(json!({ "Env": env }));
    let programs = Programs::from(rootfs.provide_image());
    let names = programs.shell("env | grep -e RUST -e EMPTY -e image: | sort; cat /proc/1/comm");
    assert_eq!(names, "EMPTY=\nRUST_MIN_STACK=18446744073709551615\nsandbox-agent\n");
}

#[test]
fn agents_place_is_one_that_no_image_can_know() {
    let rootfs = Rootfs::busybox();
    let place = |programs: &Programs| {
        let mounts = programs.shell("cut -d ' ' -f 5 /proc/self/mountinfo");
        let places = mounts.lines().filter(|point| point.contains("sandbox"));
        places.map(str::to_owned).collect::<Vec<_>>()
    };
    let [one, other] = [(); 2].map(|()| place(&Programs::of(&rootfs)));
    match engine() {
        Engine::Docker => {
            assert_ne!(one, other);
            for place in [one, other].concat() {
                let random = place.strip_prefix("/.sandbox-").unwrap();
                assert_eq!(random.len(), 32, "{place}");
                assert!(random.bytes().all(|byte| byte.is_ascii_hexdigit()), "{place}");
            }
        }
        // It has none.
        Engine::Embedded => assert_eq!([one, other].concat(), Vec::<String>::new()),
    }
}

#[test]
fn agent_file_that_was_changed_is_not_what_starts() {
    if engine() != Engine::Docker {
        return;
    }
    let provided = Rootfs::busybox().load();
    let place = Fixture::new();
    let words = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
    let args = [words(&["exec"]), provided.args(), words(&["--", "echo", "it runs"])].concat();
    let run = || assert_eq!(place.sandboxctl(&args).assert_code(0).stdout, "it runs\n");
    run();
    let folder = place.state().join("sandboxctl/programs");
    let files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|it| it.unwrap().path()).collect();
    // The agent, three files of names of hosts, and those of users and groups.
    assert_eq!(files.len(), 6, "{files:?}");
    for file in files {
        // Of the same name, length and mode.
        let (content, metadata) = (std::fs::read(&file).unwrap(), file.metadata().unwrap());
        let mut changed = b"#!/bin/false\n".to_vec();
        changed.resize(content.len(), b'\n');
        std::fs::remove_file(&file).unwrap();
        std::fs::write(&file, &changed).unwrap();
        std::fs::set_permissions(&file, metadata.permissions()).unwrap();
        run();
        assert!(std::fs::read(&file).unwrap() == content, "{file:?}");
    }
}
