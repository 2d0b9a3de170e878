use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::prelude::*;
use sandbox_api::{
    ByteSize, Ceiling, LimitKey, LimitValue, Limits, PrivateIo, Pull, image_matches,
};
use sandbox_env::Environment;
use sandbox_protocol::message::Access;

use super::key::Kind;
use super::variables::FILE_VARIABLE;
use super::*;

/// A machine with the four files.
struct Machine {
    folder: tempfile::TempDir,
}

impl Machine {
    fn new(system: &str, user: &str, project: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for directory in ["home/.config/sandboxctl", "project/.git"] {
            fs::create_dir_all(folder.path().join(directory)).unwrap();
        }
        for (file, text) in [
            ("system.toml", system),
            ("home/.config/sandboxctl/config.toml", user),
            ("project/sandboxctl.toml", project),
        ] {
            fs::write(folder.path().join(file), text).unwrap();
        }
        Self { folder }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn environment(&self, variables: &[(&str, &str)]) -> Environment {
        let home = self.path("home");
        let mut all = vec![("HOME", home.to_str().unwrap())];
        all.extend(variables);
        Environment::new(&self.path("project"), 1000, &all)
    }

    fn load(&self, variables: &[(&str, &str)], flags: Flags) -> Result<Settings, Error> {
        Settings::load_with_system(&self.environment(variables), flags, &self.path("system.toml"))
    }

    /// The error, without this machine's directory.
    fn refused(&self, variables: &[(&str, &str)], flags: Flags) -> String {
        let error = self.load(variables, flags).unwrap_err();
        to_text(&error).replace(&*self.folder.path().to_string_lossy(), "")
    }
}

/// The error as it is printed: with its causes, and its hint on a line of its own.
fn to_text(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if !text.ends_with(&cause.to_string()) {
            text = format!("{text}: {cause}");
        }
        source = cause.source();
    }
    let hint = error.hint().map(|hint| format!("\nhint: {hint}")).unwrap_or_default();
    sandbox_render::escaped_text(&text).into_owned() + &hint
}

/// A value of the limit that a key's value is written as.
fn limit_of(key: Key) -> LimitValue {
    match key.kind() {
        Kind::Limit(limit) => limit.default_value(),
        kind => panic!("{}: {kind:?}", key.name()),
    }
}

fn timeout(text: &str) -> Value {
    Value::from_text(Key::Limit(LimitKey::Timeout), text).unwrap()
}

#[test]
fn a_stronger_layer_wins() {
    let file = |seconds| format!("[limits]\ntimeout = \"{seconds}s\"\n");
    let key = Key::Limit(LimitKey::Timeout);
    let none = String::new();
    let variable = [("SANDBOXCTL_LIMITS_TIMEOUT", "5s")];
    let cases: [(_, _, _, &[(&str, &str)], _, _, _); 6] = [
        (&none, &none, &none, &[], None, "30s", "default"),
        (&file(9), &none, &none, &[], None, "9s", "/system.toml:2"),
        (&file(9), &file(8), &none, &[], None, "8s", "/home/.config/sandboxctl/config.toml:2"),
        (&file(9), &file(8), &file(7), &[], None, "7s", "/project/sandboxctl.toml:2"),
        (&file(9), &file(8), &file(7), &variable, None, "5s", "SANDBOXCTL_LIMITS_TIMEOUT"),
        (&file(9), &file(8), &file(7), &variable, Some("40s"), "40s", "--timeout"),
    ];
    for (system, user, project, variables, flag, value, origin) in cases {
        let machine = Machine::new(system, user, project);
        let mut flags = Flags::default();
        flags.set(key, flag.map(timeout));
        let settings = machine.load(variables, flags).unwrap();
        let setting = settings.setting(key);
        assert_eq!(setting.value, Some(timeout(value)));
        let here = machine.folder.path().to_string_lossy().into_owned();
        assert_eq!(setting.origin.to_string().replace(&here, ""), origin);
        assert_eq!(settings.limits().timeout.as_secs().to_string() + "s", value);
    }
}

#[test]
fn variable_of_client_libraries_is_not_a_setting() {
    let machine = Machine::new("", "", "");
    let variable = [("SANDBOXCTL_BINARY", "/opt/sandboxctl")];
    assert!(machine.load(&variable, Flags::default()).is_ok());
}

#[test]
fn a_named_file_is_the_only_one() {
    let machine = Machine::new("nonsense", "nonsense", "nonsense");
    let file = machine.path("mine.toml");
    fs::write(&file, "[engine]\nkind = \"docker\"\n[limits]\ntimeout = \"2m\"\n").unwrap();
    let flags = || Flags { file: Some(file.clone()), ..Flags::default() };
    let settings = machine.load(&[], flags()).unwrap();
    assert_eq!(settings.limits().timeout.as_secs(), 120);
    assert_eq!(settings.files, std::slice::from_ref(&file));
    assert_eq!(settings.setting(Key::EngineKind).layer, Layer::User);

    let variable = [(FILE_VARIABLE, file.to_str().unwrap())];
    let settings = machine.load(&variable, Flags::default()).unwrap();
    assert_eq!(settings.files, std::slice::from_ref(&file));
    fs::remove_file(&file).unwrap();
    insta::assert_snapshot!(machine.refused(&[], flags()), @"--config: no such file: /mine.toml");
    fs::create_dir(&file).unwrap();
    insta::assert_snapshot!(
        machine.refused(&[], flags()),
        @"--config: cannot read the configuration /mine.toml: not a regular file"
    );
}

#[test]
fn a_projects_file_that_is_a_link_is_refused_and_what_it_leads_to_is_not_quoted() {
    let machine = Machine::new("", "", "");
    let file = machine.path("project/sandboxctl.toml");
    fs::remove_file(&file).unwrap();
    assert!(machine.load(&[], Flags::default()).is_ok());
    let secret = machine.path("secret");
    fs::write(&secret, "hunter2 = 1\n").unwrap();
    for target in [&secret, Path::new("nowhere")] {
        symlink(target, &file).unwrap();
        insta::allow_duplicates! {
            insta::assert_snapshot!(
                machine.refused(&[], Flags::default()),
                @"cannot read the configuration /project/sandboxctl.toml: it is a symbolic link, which is not followed in a project; give what it leads to with --config if you trust it"
            );
        }
        fs::remove_file(&file).unwrap();
    }
    // The user's own file may be a link.
    let file = machine.path("home/.config/sandboxctl/config.toml");
    fs::remove_file(&file).unwrap();
    fs::write(&secret, "[limits]\ntimeout = \"9s\"\n").unwrap();
    symlink(&secret, &file).unwrap();
    assert_eq!(machine.load(&[], Flags::default()).unwrap().limits().timeout.as_secs(), 9);
}

#[test]
fn config_error_names_file_and_line() {
    let machine = Machine::new("", "", "[limits]\nceiling.timeout = \"1h\"\n");
    insta::assert_snapshot!(machine.refused(&[], Flags::default()), @r"
    /project/sandboxctl.toml:2: limits.ceiling.timeout: a project's file may not set it
    hint: set it in the user's configuration, or give the file with --config if you trust all of it
    ");
    let machine = Machine::new("", "[io]\nenabled = false\n", "[io]\nenabled = true\n");
    insta::assert_snapshot!(machine.refused(&[], Flags::default()), @r"
    /project/sandboxctl.toml:2: io.enabled: a project's file may not turn on what is turned off outside it
    hint: set it in the user's configuration, or give the file with --config if you trust all of it
    ");
    let machine = Machine::new("", "", "");
    let refused = |name, value| machine.refused(&[(name, value)], Flags::default());
    insta::assert_snapshot!(
        refused("SANDBOXCTL_LIMIT_TIMEOUT", "1s"),
        @r"
    SANDBOXCTL_LIMIT_TIMEOUT: unknown variable 'SANDBOXCTL_LIMIT_TIMEOUT'
    hint: did you mean SANDBOXCTL_LIMITS_TIMEOUT?
    "
    );
    insta::assert_snapshot!(
        refused("SANDBOXCTL_LIMITS_TIMEOUT", "30"),
        @"SANDBOXCTL_LIMITS_TIMEOUT: limits.timeout: '30' is not a duration such as 300ms, 30s or 10m"
    );
}

#[test]
fn pool_is_bounded_wherever_its_size_is_written() {
    let most = MOST_PREWARMED;
    let read = |number: u16| Value::from_text(Key::PoolSize, &number.to_string());
    assert!(read(0).is_ok() && read(most).is_ok());
    assert_eq!(read(most + 1).unwrap_err().to_string(), "'65' is too many: at most 64");
    let machine = Machine::new("[pool]\nsize = 1000\n", "", "");
    let refused = machine.refused(&[], Flags::default());
    assert!(refused.contains("pool.size: '1000' is too many: at most 64"), "{refused}");
    assert!(Key::PoolSize.description().ends_with(&format!("at most {most}")));
}

#[test]
fn a_ceiling_below_the_default_lowers_it() {
    let machine = Machine::new("[limits.ceiling]\nmemory = \"128MiB\"\n", "", "");
    let settings = machine.load(&[], Flags::default()).unwrap();
    assert_eq!(settings.limits().memory.to_string(), "128MiB");
    assert_eq!(settings.limits().check(&settings.ceiling()), Ok(()));
    let origin = settings.setting(Key::Limit(LimitKey::Memory)).origin.to_string();
    assert!(origin.starts_with("limits.ceiling.memory, "), "{origin}");

    // An explicit value is not lowered: it is refused when it is used.
    let machine = Machine::new(
        "[limits.ceiling]\nmemory = \"128MiB\"\n",
        "[limits]\nmemory = \"200MiB\"\n",
        "",
    );
    let settings = machine.load(&[], Flags::default()).unwrap();
    assert!(settings.limits().check(&settings.ceiling()).is_err());
}

#[test]
fn an_io_dir_that_came_with_the_project_leads_through_no_link() {
    let machine = Machine::new("", "", "[io]\ndir = \"a/b\"\n");
    let project = machine.path("project");
    let io_dir = |variables: &[(&str, &str)]| {
        let settings = machine.load(variables, Flags::default()).unwrap();
        settings.io_dir(&project)
    };
    assert_eq!(io_dir(&[]).unwrap(), project.join("a/b"));
    symlink("/etc", project.join("a")).unwrap();
    let error = io_dir(&[]).unwrap_err();
    let link = format!("{} is a symbolic link", project.join("a").display());
    assert!(error.to_string().contains(&link), "{error}");
    // An explicit value of the user counts.
    assert_eq!(io_dir(&[("SANDBOXCTL_IO_DIR", "a/b")]).unwrap(), Path::new("/etc/b"));

    let machine = Machine::new("", "", "");
    let project = machine.path("project");
    symlink("/etc", project.join("sandbox-files")).unwrap();
    let settings = machine.load(&[], Flags::default()).unwrap();
    assert!(settings.io_dir(&project).is_err(), "nor does the default");
    fs::remove_file(project.join("sandbox-files")).unwrap();
    fs::write(project.join("sandbox-files"), "").unwrap();
    let error = settings.io_dir(&project).unwrap_err().to_string();
    assert!(error.starts_with("io.dir (default): "), "{error}");
    assert!(error.ends_with("is not a directory"), "{error}");

    use std::os::unix::ffi::OsStrExt;
    let mut flags = Flags::default();
    let bytes = std::ffi::OsStr::from_bytes(b"a\xff");
    flags.set(Key::IoDir, Some(Value::Path(bytes.into())));
    let error = machine.load(&[], flags).unwrap().io_dir(&project).unwrap_err().to_string();
    assert!(error.starts_with("--io-dir: ") && error.contains("UTF-8"), "{error}");
    assert!(!project.join(bytes).exists(), "nothing is made");
}

/// A line of a configuration file, of any key and of many sizes.
fn any_line() -> impl Strategy<Value = String> {
    let keys: Vec<Key> = Key::all().collect();
    (proptest::sample::select(keys), 0_u64..2000, any::<bool>()).prop_map(|(key, number, write)| {
        let value = match (key, key.default()) {
            (_, Some(Value::Switch(_))) => write.to_string(),
            (_, Some(Value::Paths(_))) => {
                let path = ["/io", "/in", "/io/a", "/"][number as usize % 4];
                let access = if write { "write" } else { "read" };
                format!("[{{ path = '{path}', access = '{access}' }}]")
            }
            (_, Some(Value::Dirs(_))) => {
                let dir = [".", "out", "/out", "./out/a", "../x", ".//."][number as usize % 6];
                format!("['{dir}']")
            }
            (_, Some(Value::Hosts(_))) => {
                let all = ["", "'a.example'", "'*.a.example'", "'b.a.example:80'", "'@p'", "'@q'"];
                let two = [all[number as usize % 6], all[number as usize / 6 % 6]];
                let two: Vec<_> = two.into_iter().filter(|host| !host.is_empty()).collect();
                format!("[{}]", two.join(", "))
            }
            (_, Some(Value::Preparations(_))) => match write {
                true => "[]".to_owned(),
                false => {
                    let ready = ["{ text = 'up' }", "{ port = 80 }"][number as usize % 2];
                    format!("[{{ name = 'a', command = ['b', 'c'], ready = {ready}, count = 1 }}]")
                }
            },
            (_, Some(Value::Templates(_))) => match write {
                true => "{}".to_owned(),
                false => {
                    let of = [
                        "image = 'b:1', prepared = 2", "archive = '/c.tar'",
                        "image = 'b', start = 'c'",
                    ];
                    format!("{{ base = {{ {} }} }}", of[number as usize % 3])
                }
            },
            (_, Some(Value::Upstreams(_))) => {
                ["{}", "{ a = { command = ['b'] } }", "{ a = { url = 'http://b' } }"]
                    [number as usize % 3]
                    .to_owned()
            }
            (key, _) if key.kind() == Kind::ToolRules => format!("['a.b /n={number}']"),
            (_, Some(Value::Lists(_))) => ["{}", "{ a = ['b'] }"][number as usize % 2].to_owned(),
            (_, Some(Value::Presets(_))) => {
                ["{}", "{ p = ['a.example'] }", "{ p = [], q = ['b.a.example'] }"]
                    [number as usize % 3]
                    .to_owned()
            }
            (Key::PoolSize, _) => (number % 65).to_string(),
            (key, _) if matches!(key.kind(), Kind::Limit(_)) => match limit_of(key) {
                LimitValue::Time(_) => format!("'{}s'", number + 1),
                LimitValue::Size(_) => format!("'{}MiB'", number + 16),
                LimitValue::Cpus(_) => format!("{}.5", number % 3),
                LimitValue::Count(_) => (number + 16).to_string(),
            },
            (Key::IoDir, _) => {
                ["'x'", "'/etc'", "'./y/z'", "'.'", "'.git'"][number as usize % 5].to_owned()
            }
            (Key::DiskReserve, _) => format!("'{number}MiB'"),
            (key, _) if key.kind() == Kind::AbsolutePath => format!("'/data{number}'"),
            (key, _) if key.kind() == Kind::Names => {
                ["['*']", "[]", "['a:*']", "['a:1']"][number as usize % 4].to_owned()
            }
            (Key::Protected, _) => format!("['a{}']", number % 3),
            (key, _) if !key.words().is_empty() => {
                format!("'{}'", key.words()[number as usize % key.words().len()])
            }
            _ => "'x'".to_owned(),
        };
        format!("{} = {value}\n", key.name())
    })
}

#[test]
fn a_project_takes_images_from_those_that_may_be_named() {
    let apply = |settings: &mut Settings, layer, text: &str| {
        settings.apply(layer, file::parse(Path::new("x"), text).unwrap()).unwrap();
    };
    let mut settings = Settings::defaults();
    assert_eq!(settings.names(Key::AllowedImages), ["*"]);
    assert_eq!((settings.pull(), settings.tools_pull()), (Pull::Missing, Pull::Never));
    apply(&mut settings, Layer::User, "tools.allowed_images = ['a:*', 'b:1']");
    apply(&mut settings, Layer::Project, "tools.allowed_images = ['a:3']");
    assert_eq!(settings.names(Key::AllowedImages), ["a:3"]);
    apply(&mut settings, Layer::User, "programs.pull = 'always'");
    assert_eq!((settings.pull(), settings.tools_pull()), (Pull::Always, Pull::Always));
    apply(&mut settings, Layer::Project, "programs.pull = 'never'");
    assert_eq!((settings.pull(), settings.tools_pull()), (Pull::Never, Pull::Never));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_project_never_widens(user in any_line(), project in any_line()) {
        let user = file::parse(Path::new("user"), &user).unwrap();
        let project = file::parse(Path::new("project"), &project).unwrap();
        let mut below = Settings::defaults();
        below.apply(Layer::User, user).unwrap();
        let mut above = Settings { settings: below.settings.clone(), ..Settings::defaults() };
        if above.apply(Layer::Project, project).is_err() {
            return Ok(());
        }
        prop_assert_eq!(above.limits().check(&Ceiling(below.limits())), Ok(()));
        prop_assert_eq!(above.ceiling(), below.ceiling());
        let exec = |settings: &Settings| {
            let settings = settings.settings.clone();
            Settings { settings, scope: Scope::Exec, ..Settings::defaults() }
        };
        let (above_exec, below_exec) = (exec(&above), exec(&below));
        prop_assert_eq!(above_exec.limits().check(&Ceiling(below_exec.limits())), Ok(()));
        prop_assert_eq!(above_exec.ceiling(), below_exec.ceiling());
        prop_assert!(below.io_enabled() || !above.io_enabled());
        let (names, kept) = (above.protected(), below.protected());
        prop_assert!(kept.iter().all(|name| names.contains(name)));
        let reserved = |key: &Key| key.name().starts_with("engine.") || *key == Key::AuditFile;
        for key in Key::all().filter(reserved) {
            prop_assert_eq!(&above.setting(key).value, &below.setting(key).value);
        }
        if above.setting(Key::IoDir).layer == Layer::Project {
            let dir = above.io_dir(Path::new("/project")).unwrap();
            let below = dir.strip_prefix("/project").unwrap().to_str().unwrap();
            prop_assert!(!below.is_empty() && !below.contains(".git"));
        }
        prop_assert_eq!(above.presets(), below.presets());
        if above.setting(Key::Pull).layer == Layer::Project {
            prop_assert_eq!(above.pull(), Pull::Never);
        }
        let images = above.names(Key::AllowedImages);
        let allowed = |name: &&str| images.iter().any(|pattern| image_matches(pattern, name));
        for name in ["a:1", "a:2", "b:1"].iter().filter(|name| allowed(name)) {
            prop_assert!(below.names(Key::AllowedImages).iter().any(|outer| image_matches(outer, name)));
        }
        if above.setting(Key::Allow).layer == Layer::Project {
            let (now, before) = (above.allow().unwrap(), below.allow().unwrap_or_default());
            prop_assert!(now.rules().iter().all(|rule| before.covers(rule)));
        }
        let paths = |settings: &Settings| match &settings.setting(Key::AllowedPaths).value {
            Some(Value::Paths(paths)) => paths.clone(),
            _ => Vec::new(),
        };
        for path in paths(&above) {
            let under = |prefix: &str| {
                path.path == prefix || path.path.starts_with(&format!("{prefix}/"))
            };
            let is_covered = paths(&below).iter().any(|outer| {
                (outer.path == "/" || under(&outer.path))
                    && (outer.access == path.access || outer.access == Access::Write)
            });
            prop_assert!(is_covered, "{}", path.path);
        }
    }
}

#[test]
fn protected_names_of_layers_add_up() {
    let protect = |names: &str| format!("[filesystem]\nprotected = {names}\n");
    let machine =
        Machine::new(&protect("['a']"), &protect("['b', 'a']"), &protect("['.git/hooks']"));
    let variables = [("SANDBOXCTL_FILESYSTEM_PROTECTED", "['c']")];
    let mut flags = Flags::default();
    flags.set(Key::Protected, Some(Value::Names(vec!["b".into(), "d".into()])));
    let settings = machine.load(&variables, flags).unwrap();
    assert_eq!(settings.protected(), ["a", "b", ".git/hooks", "c", "d"]);
    assert_eq!(settings.setting(Key::Protected).origin, Origin::Flag("--protect"));
}

#[test]
fn servers_of_layers_add_up_and_are_replaced_by_name() {
    let machine = Machine::new(
        "[mcp.upstream]\na.command = [\"system\"]\nb.url = \"https://b.example\"\n",
        "[mcp]\ntool_rules = [\"a.*\"]\n[mcp.upstream.a]\ncommand = [\"user\"]\nenv = { T = \"env:T\" }\n",
        "",
    );
    let settings = machine.load(&[], Flags::default()).unwrap();
    let upstreams = settings.upstreams(Key::McpUpstream);
    assert_eq!(upstreams.keys().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(upstreams["a"].command, ["user"]);
    assert_eq!(settings.rules_of_tools(Key::McpToolRules)[0].to_string(), "a.*");
    assert!(settings.upstreams(Key::ServerUpstream).is_empty());
    let of_subjects = "{ a = { url = 'http://a', subjects = { me = { headers = { X = 'y' } } } } }";
    let value = Value::from_text(Key::ServerUpstream, of_subjects).unwrap();
    assert_eq!(Value::from_text(Key::ServerUpstream, &value.to_string()).unwrap(), value);
    for (key, wrong, why) in [
        (Key::McpUpstream, "{ search = { url = 'http://a' } }", "'search': its name"),
        (Key::McpUpstream, "{ a = {} }", "'a': it has either a command or a url"),
        (Key::McpUpstream, "{ a = { url = 'http://a', x = 1 } }", "unknown field `x`"),
        (Key::McpUpstream, "{ a = { command = 'uvx x' } }", "'a': command is an array of words"),
        (Key::McpToolRules, "['']", "is not a rule for tools"),
    ] {
        let error = Value::from_text(key, wrong).unwrap_err().to_string();
        assert!(error.contains(why), "{wrong}: {error}");
    }
}

#[test]
fn errors_about_servers_say_how_to_write_them() {
    let refused = |user: &str| {
        let error = Machine::new("", user, "").load(&[], Flags::default()).err().unwrap();
        (error.to_string(), error.hint().unwrap_or_default())
    };
    let (error, hint) = refused("[mcp.upstream.time]\ncommand = \"uvx mcp-server-time\"\n");
    assert!(error.contains("'time': command is an array of words"), "{error}");
    assert!(hint.starts_with("[mcp.upstream.NAME] has command = ["), "{hint}");
    let (_, hint) = refused("[server.upstream.time]\nurl = 1\n");
    assert!(hint.starts_with("[server.upstream.NAME] has command = ["), "{hint}");
    let (_, hint) = refused("[mcp]\nallow_destructive = true\n");
    assert_eq!(hint, "no file says it: --allow-destructive does, for one call");
}

#[test]
fn the_list_nearest_to_the_caller_counts_and_presets_add_up() {
    let machine = Machine::new(
        "[network.presets]\na = [\"a.example\"]\nb = [\"b.example\"]\n",
        "[network]\nallow = [\"@a\", \"c.example\"]\npresets.a = [\"user.example\"]\n",
        "",
    );
    let allowed = |machine: &Machine, variables: &[(&str, &str)], flags| {
        let settings = machine.load(variables, flags).unwrap();
        let rules: Vec<_> =
            settings.allow().unwrap().rules().iter().map(ToString::to_string).collect();
        (rules.join(" "), settings.setting(Key::Allow).layer)
    };
    let flags = |hosts: &[&str]| {
        let mut flags = Flags::default();
        let hosts = hosts.iter().map(|host| host.parse().unwrap()).collect();
        flags.set(Key::Allow, Some(Value::Hosts(hosts)));
        flags
    };
    let said = |rules: &str, layer| (rules.to_owned(), layer);
    let none = Flags::default;
    assert_eq!(allowed(&machine, &[], none()), said("user.example c.example", Layer::User));
    let asked = flags(&["d.example:22", "@b"]);
    assert_eq!(allowed(&machine, &[], asked), said("d.example:22 b.example", Layer::Flag));
    let variable = [("SANDBOXCTL_NETWORK_ALLOW", "[]")];
    assert_eq!(allowed(&machine, &variable, none()), said("", Layer::Environment));

    // A project's list replaces the user's, and must be a part of it.
    let user = "[network]\nallow = [\"*.example\"]\n";
    let machine = Machine::new("", user, "[network]\nallow = [\"a.example\"]\n");
    assert_eq!(allowed(&machine, &[], none()), said("a.example", Layer::Project));
    let machine = Machine::new("", user, "[network]\nallow = [\"a.example:22\"]\n");
    insta::assert_snapshot!(machine.refused(&[], none()), @r"
    /project/sandboxctl.toml:2: network.allow: a project's file may not allow a.example:22, which is not allowed outside it
    hint: set it in the user's configuration, or give the file with --config if you trust all of it
    ");
    let machine = Machine::new("", user, "[network.presets]\na = []\n");
    insta::assert_snapshot!(machine.refused(&[], none()), @r"
    /project/sandboxctl.toml:1: network.presets: a project's file may not set it
    hint: set it in the user's configuration, or give the file with --config if you trust all of it
    ");
}

#[test]
fn rules_of_a_file_are_added_to_what_is_allowed_and_need_no_question_without_programs() {
    let user = "[network]\nallow = [\"a.example\"]\npresets.p = [\"p.example\"]\n";
    let machine = Machine::new("", user, "");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.toml");
    let load = |text: &str, hosts: &[&str]| {
        fs::write(&file, text).unwrap();
        let mut flags = Flags::default();
        let hosts: Vec<_> = hosts.iter().map(|host| host.parse().unwrap()).collect();
        flags.set(Key::Allow, (!hosts.is_empty()).then_some(Value::Hosts(hosts)));
        let mut settings = machine.load(&[], flags).unwrap();
        settings.add_rules(&file).unwrap();
        let allowed = settings.allow().unwrap();
        let rules: Vec<_> = allowed.rules().iter().map(ToString::to_string).collect();
        (rules.join(" "), settings.asks_for_hosts(), settings.tool_rules.len())
    };
    let both = "allow = ['@p', 'b.example:1']\ntools = ['c.*']";
    assert_eq!(load(both, &[]), ("a.example p.example b.example:1".to_owned(), false, 1));
    assert_eq!(load(both, &["d.example"]), ("d.example p.example b.example:1".to_owned(), true, 1));
    assert_eq!(load("", &[]), ("a.example".to_owned(), false, 0));
    let mut settings = machine.load(&[], Flags::default()).unwrap();
    let error = settings.add_rules(Path::new("/missing.toml")).unwrap_err();
    assert_eq!(error.to_string(), "--rules: no such file: /missing.toml");
    assert!(error.hint().is_some());
    let error = settings.add_rules(Path::new("/")).unwrap_err();
    assert_eq!(error.to_string(), "--rules: it is a directory: /");
}

#[test]
fn the_audits_file_is_the_users_to_name() {
    let file = "[audit]\nfile = \"/var/log/x\"\n";
    let machine = Machine::new("", file, "");
    let audit = |settings: Settings, machine: &Machine| {
        settings.controller(&machine.environment(&[])).audit
    };
    assert_eq!(
        audit(machine.load(&[], Flags::default()).unwrap(), &machine),
        Some("/var/log/x".into())
    );
    let mut flags = Flags::default();
    flags.set(Key::AuditFile, Some(Value::Path("a.log".into())));
    let settings = machine.load(&[], flags).unwrap();
    assert_eq!(audit(settings, &machine), Some(machine.path("project/a.log")));
    let none = Machine::new("", "", "");
    assert_eq!(audit(none.load(&[], Flags::default()).unwrap(), &none), None);

    let refused = Machine::new("", "", file).refused(&[], Flags::default());
    assert!(refused.contains("audit.file: a project's file may not set it"), "{refused}");
    let relative = [("SANDBOXCTL_AUDIT_FILE", "a.log")];
    let refused = none.refused(&relative, Flags::default());
    assert!(refused.contains("it is not an absolute path"), "{refused}");
}

#[test]
fn library_gets_the_configuration_that_the_command_line_uses() {
    let machine = Machine::new("", "", "");
    for variables in [
        &[][..],
        &[("DOCKER_HOST", "unix:///run/d.sock"), ("SANDBOX_AGENT", "/agent")],
        &[
            ("SANDBOXCTL_AUDIT_FILE", "/var/log/audit"),
            ("SANDBOXCTL_ENGINE_DATA_DIR", "/data"),
            ("SANDBOXCTL_ENGINE_HOST", "unix:///run/d.sock"),
            ("SANDBOXCTL_ENGINE_IMAGE", "sha256:1"),
            ("SANDBOXCTL_ENGINE_KIND", "docker"),
            ("SANDBOXCTL_ENGINE_RUNTIME", "runsc"),
            ("SANDBOXCTL_IO_SCRATCH_DIR", "/scratch"),
            ("SANDBOXCTL_LIMITS_DISK_RESERVE", "2GiB"),
            ("SANDBOXCTL_POLICY_CONFINEMENT", "best-effort"),
        ],
    ] {
        let environment = machine.environment(variables);
        let command_line = machine.load(variables, Flags::default()).unwrap();
        let command_line = format!("{:?}", command_line.controller(&environment));
        // The command line names the key too.
        let name = |text: &str| {
            text.replace("engine.host (SANDBOXCTL_ENGINE_HOST)", "SANDBOXCTL_ENGINE_HOST")
        };
        let library = format!("{:?}", environment.config().unwrap());
        assert_eq!(name(&command_line), library, "{variables:?}");
    }
}

#[test]
fn users_file_follows_xdg() {
    let file =
        |variables: &[(&str, &str)]| file::user(&Environment::new(Path::new("/"), 1000, variables));
    assert_eq!(file(&[("HOME", "/h")]), Some("/h/.config/sandboxctl/config.toml".into()));
    let both = |config| file(&[("HOME", "/h"), ("XDG_CONFIG_HOME", config)]);
    assert_eq!(both("/c"), Some("/c/sandboxctl/config.toml".into()));
    assert_eq!(both("c"), Some("/h/.config/sandboxctl/config.toml".into()));
    assert_eq!(file(&[]), None);
}

/// The table in the documentation, generated from the table of keys.
fn documented_table() -> String {
    let mut text =
        String::from("| key | flag | default | ceiling | meaning |\n|---|---|---|---|---|\n");
    let code = |text: String| format!("`{text}`");
    for key in Key::all().filter(|key| !matches!(key, Key::Ceiling(_) | Key::ExecCeiling(_))) {
        let flag = key.flag().map_or_else(String::new, |flag| code(flag.to_owned()));
        let default =
            key.default().map_or_else(|| "not set".to_owned(), |value| code(value.to_string()));
        let (default, ceiling) = match key {
            // Both depend on the machine that runs this.
            Key::Limit(LimitKey::Cpus) => ("`1`".to_owned(), "the host's".to_owned()),
            Key::Limit(limit) => (default, code(limit.default_ceiling().to_string())),
            Key::Exec(limit) => {
                let Some(Value::Limit(ceiling)) = Key::ExecCeiling(limit).default() else {
                    panic!("{}", key.name())
                };
                (default, code(ceiling.to_string()))
            }
            _ => (default, String::new()),
        };
        let description = key.description();
        text.push_str(&format!(
            "| `{}` | {flag} | {default} | {ceiling} | {description} |\n",
            key.name()
        ));
    }
    text
}

#[test]
fn the_documentation_has_the_table_of_keys() {
    let page = include_str!("../../../docs/src/reference/config.md");
    let table = documented_table();
    assert!(page.contains(&table), "docs/src/reference/config.md is to contain:\n\n{table}");
}

#[test]
fn the_documentation_lists_the_names_that_are_protected_by_default() {
    let page = include_str!("../../../docs/src/reference/config.md");
    let (_, section) = page.split_once("## Names that `--protect` protects").unwrap();
    let (section, _) = section.split_once("The library has them").unwrap();
    let listed: Vec<&str> = section.split('`').skip(1).step_by(2).collect();
    assert_eq!(listed, sandbox_api::DEFAULT_PROTECTED);
}

#[test]
fn every_word_for_an_encoding_is_one_of_the_operations() {
    for word in Key::DefaultEncoding.words() {
        let file = format!("filesystem.default_encoding = '{word}'\n");
        let machine = Machine::new("", "", &file);
        let settings = machine.load(&[], Flags::default()).unwrap();
        assert_eq!(Ok(settings.default_encoding()), word.parse(), "{word}");
    }
}

#[test]
fn exec_has_limits_and_ceilings_of_its_own() {
    let limits = |machine: &Machine, variables: &[(&str, &str)], scope, flag: Option<&str>| {
        let mut flags = Flags { scope, ..Flags::default() };
        flags.set(Key::Limit(LimitKey::Timeout), flag.map(timeout));
        machine.load(variables, flags).unwrap().allowed_limits()
    };
    let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
    let none = Machine::new("", "", "");
    let exec = limits(&none, &[], Scope::Exec, None).unwrap();
    assert_eq!((exec.timeout, exec.pids.get(), exec.entries.get()), (minutes(10), 256, 100_000));
    assert_eq!((exec.memory, exec.max_write), (ByteSize::b(1 << 30), ByteSize::b(1 << 30)));
    assert_eq!(exec.vm_memory, Limits::default().vm_memory);
    assert_eq!(limits(&none, &[], Scope::Limits, None).unwrap(), Limits::default());

    // Neither reads what is the other's.
    let machine = Machine::new("", "[limits]\ntimeout = \"5s\"\n[exec]\ntimeout = \"20m\"\n", "");
    let of = |scope, flag| limits(&machine, &[], scope, flag).unwrap().timeout;
    assert_eq!(of(Scope::Exec, None), minutes(20));
    assert_eq!(of(Scope::Limits, None), Duration::from_secs(5));
    assert_eq!(of(Scope::Exec, Some("30m")), minutes(30));
    let variable = [("SANDBOXCTL_EXEC_TIMEOUT", "15m")];
    assert_eq!(limits(&machine, &variable, Scope::Exec, None).unwrap().timeout, minutes(15));

    let flags = || {
        let mut flags = Flags { scope: Scope::Exec, ..Flags::default() };
        flags.set(Key::Limit(LimitKey::Timeout), Some(timeout("2h")));
        flags
    };
    let refused = none.load(&[], flags()).unwrap().allowed_limits().unwrap_err();
    assert_eq!(refused.to_string(), "--timeout is 2h, above its ceiling of 1h");
    assert!(refused.hint().unwrap().starts_with("exec.ceiling in the user's"), "{refused:?}");
    let machine = Machine::new("", "exec.ceiling.timeout = \"3h\"\n", "");
    machine.load(&[], flags()).unwrap().allowed_limits().unwrap();
    let refused = none.refused(&[("SANDBOXCTL_EXEC_CEILING_TIMEOUT", "3h")], Flags::default());
    assert!(refused.contains("ceilings cannot be set by an environment variable"), "{refused}");
}

#[test]
fn ceiling_of_limits_applies_to_exec_unless_exec_has_its_own() {
    let system = "limits.ceiling.memory = \"512MiB\"\nlimits.ceiling.pids = 100000\n";
    let machine = Machine::new(system, "", "");
    let exec = || Flags { scope: Scope::Exec, ..Flags::default() };
    let settings = machine.load(&[], exec()).unwrap();
    assert_eq!(settings.allowed_limits().unwrap().memory, ByteSize::b(512 << 20));
    assert_eq!(settings.ceiling().0.pids.get(), 4096, "it lowers only");
    let origin = settings.setting(Key::ExecCeiling(LimitKey::Memory)).origin.to_string();
    assert!(origin.starts_with("limits.ceiling.memory, "), "{origin}");
    let machine = Machine::new(system, "exec.ceiling.memory = \"2GiB\"\n", "");
    let settings = machine.load(&[], exec()).unwrap();
    assert_eq!(settings.allowed_limits().unwrap().memory, ByteSize::b(1 << 30));
    assert_eq!(settings.ceiling().0.memory, ByteSize::b(2 << 30));
}

#[test]
fn io_dir_of_any_origin_but_the_default_is_named() {
    let file = "[io]\ndir = \"x\"\n";
    let private = |machine: &Machine, variables: &[(&str, &str)], flags| {
        machine.load(variables, flags).unwrap().private_io()
    };
    let none = Machine::new("", "", "");
    assert_eq!(private(&none, &[], Flags::default()), Some(PrivateIo::Disk));
    let tmpfs = [("SANDBOXCTL_IO_PRIVATE", "tmpfs")];
    assert_eq!(private(&none, &tmpfs, Flags::default()), Some(PrivateIo::Memory));
    for named in
        [Machine::new(file, "", ""), Machine::new("", file, ""), Machine::new("", "", file)]
    {
        assert_eq!(private(&named, &[], Flags::default()), None);
    }
    assert_eq!(private(&none, &[("SANDBOXCTL_IO_DIR", "x")], Flags::default()), None);
    let mut flags = Flags::default();
    flags.set(Key::IoDir, Some(Value::Path("./sandbox-files".into())));
    assert_eq!(private(&none, &[], flags), None);

    let mut kept = none.load(&[], Flags::default()).unwrap();
    kept.keep_io_dir();
    let dir = kept.io_dir(Path::new("/here")).unwrap();
    assert!(dir.to_str().unwrap().starts_with("/here/sandbox-files-"), "{}", dir.display());
    let mut named = Machine::new("", file, "").load(&[], Flags::default()).unwrap();
    named.keep_io_dir();
    assert_eq!(named.io_dir(Path::new("/here")).unwrap(), Path::new("/here/x"));
}
