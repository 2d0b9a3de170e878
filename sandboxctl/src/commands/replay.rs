//! `replay`: runs the script or the command of a receipt again, and compares what it makes.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt::Write as _;

use sandbox_api::artifacts::{CheckDifference, LineDifference, PathDifference};
use sandbox_api::changes::CommitPolicy;
use sandbox_api::receipt::{
    BuildType, Dependency, Provenance, Receipt, RecordedLine, RecordedOutcome, TestResult,
};
use sandbox_api::{
    DEFAULT_LIFETIME, Lifespan, Outcome, PrivateIo, Pull, RootFs, SandboxSpec, Script, Secrets,
    Workload,
};
use sandbox_controller::artifacts::{Reference, Request, Selection, Unmatched};
use sandbox_controller::{Command, Execution, FinishOptions, Patterns, Sandbox, receipts};
use serde::Serialize;

use super::execution::Tail;
use super::receipt::{
    Digested, MOUNT, byte_inputs, digest, public_key, read_receipt, tests_of, unverified,
};
use super::{Context, block_on, exec, launch};
use crate::cli::env_file;
use crate::cli::exec::CommandLine;
use crate::cli::receipt::ReplayArgs;
use crate::config::{Key, Settings, resolved_parents};
use crate::error::Error;
use crate::input::{self, ScriptArgument};
use crate::render::{escaped_line, listing};

const IMAGE_PREFIX: &str = "sha256:";

/// How a replay differs from its receipt. What `replay --json` prints.
#[derive(Debug, Serialize)]
struct Comparison {
    identical: bool,
    /// Whether the key signed the receipt; null without a key.
    verified: Option<bool>,
    /// What was compared.
    stage: Stage,
    /// Whether status, exit code, result and test results are the receipt's; null if nothing ran.
    outcome: Option<SameOutcome>,
    /// How the run of the receipt ended.
    expected: RecordedOutcome,
    /// How the replay ended; null if nothing ran.
    actual: Option<RecordedOutcome>,
    /// The materials or the files that differ.
    differences: Vec<PathDifference<CheckDifference>>,
    /// The first line that differs from a file of the receipt, with --artifacts.
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<LineDifference>,
    /// What would make it the same.
    #[serde(skip)]
    hint: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Stage {
    /// What the run is made of. Nothing ran.
    Materials,
    /// What it made.
    Results,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum SameOutcome {
    Same,
    Changed,
}

impl Comparison {
    fn of_materials(
        predicate: &Provenance,
        differences: Vec<PathDifference<CheckDifference>>,
    ) -> Self {
        Self {
            identical: differences.is_empty(),
            verified: None,
            stage: Stage::Materials,
            outcome: None,
            expected: predicate.outcome(),
            actual: None,
            differences,
            line: None,
            hint: None,
        }
    }

    /// The same without secrets in the lines and names of what the run made.
    fn without(mut self, patterns: &Patterns) -> Self {
        for it in &mut self.differences {
            if let Cow::Owned(path) = patterns.bytes(it.path()) {
                let (expected, actual) = (it.expected.take(), it.actual.take());
                *it = PathDifference { expected, actual, ..PathDifference::new(&path, it.change) };
            }
        }
        if let Some(LineDifference { path, expected, actual, .. }) = &mut self.line {
            let lines = [expected, actual].into_iter().flatten();
            lines.chain([path]).for_each(|text| patterns.text(text));
        }
        self
    }
}

pub fn replay(context: &Context<'_>, args: &ReplayArgs) -> Result<u8, Error> {
    let settings = context.settings_with(|flags| args.allow.add_flags(flags))?;
    let opened = read_receipt(&args.receipt)?;
    let verified = args.key.as_deref().map(public_key).transpose()?.map(|key| opened.verify(&key));
    let is_verified = verified.as_ref().map(Result::is_ok);
    let answer = |comparison: Comparison| {
        answer(context, args, Comparison { verified: is_verified, ..comparison })
    };
    if let Some(Err(error)) = &verified {
        context.output.failure(&unverified(error).message, None);
        let unread = Comparison::of_materials(&opened.receipt.predicate, Vec::new());
        let unread = Comparison { identical: false, ..unread };
        return if args.json { answer(unread) } else { Ok(1) };
    }
    if verified.is_none() {
        context.output.notice("without --key anybody may have written this receipt");
    }
    let receipt = opened.receipt;
    let stdin = args.script.as_deref().is_some_and(input::is_stdin).then_some("--script -");
    let (secrets, stdin) = args.secrets.read(&context.environment, stdin)?;
    let what = match receipt.predicate.build_definition.build_type {
        BuildType::Script => Workload::Script(script(args, &receipt.predicate, secrets)?),
        BuildType::Command => {
            Workload::Command(command(context, args, &receipt.predicate)?.secrets(secrets))
        }
    };
    let mut spec = spec(args, &settings, &receipt.predicate, stdin.as_deref())?;
    if spec.supports_exec() {
        spec.inject = launch::own_injections(&context.environment, &settings)?;
    }
    let inputs = Digested::of(&spec)?;
    let materials = materials(&what, &spec, &inputs)?;
    let differences = receipts::material_differences(&receipt.predicate, materials);
    if !differences.is_empty() {
        context.output.failure(
            "the materials are not those of the receipt: nothing ran",
            Some(&format!("name each as the run did: {}", flags_of(&differences))),
        );
        return answer(Comparison::of_materials(&receipt.predicate, differences));
    }
    let hint = hint(&what, &receipt.predicate);
    let patterns = Patterns::of([what.secrets()]);
    let config = context.controller(&settings);
    let image = receipt.predicate.dependency(Dependency::IMAGE);
    let comparison = block_on(launch::in_sandbox(
        context,
        &settings,
        config,
        spec,
        async |sandbox, signals| {
            // The image that the engine reports, and the requested one.
            let started = sandbox.image_id().map(|id| id.trim_start_matches(IMAGE_PREFIX));
            if started != image {
                let why = "the engine started another image than the receipt's";
                return Err(refuse(args, why));
            }
            let compare = async |outcome: &Outcome, hint: Option<String>, tests| {
                if let Some(failure) = outcome.failure()
                    && receipt.predicate.outcome().status != Some(outcome.status())
                {
                    let text = format!("the replay ended otherwise: {}", failure.message);
                    context.output.failure(&text, hint.as_deref());
                }
                if let Some(path) = inputs.other_than_used(sandbox)? {
                    let why = format!("{} changed while the replay used it", path.display());
                    return Err(refuse(args, why).with_hint("replay it again"));
                }
                compare(args, sandbox, outcome, &receipt, tests).await
            };
            let follow = async |run: Execution| {
                let result = run.wait().await?;
                let tests = tests_of(&what, &result);
                let compared = compare(&result.outcome, result.hint(), tests).await?;
                if compared.outcome == Some(SameOutcome::Changed) {
                    let mut stderr = Tail::default();
                    stderr.push(&result.stderr().bytes);
                    let mut lines = stderr.last_lines();
                    patterns.text(&mut lines);
                    context.output.indented(&lines);
                }
                Ok(compared)
            };
            launch::follow_to_end(signals, sandbox, (what.clone(), None), follow).await
        },
    ))?;
    answer(Comparison { hint, ..comparison }.without(&patterns))
}

/// What may make it do the same, if it may do something else each time.
fn hint(what: &Workload, predicate: &Provenance) -> Option<String> {
    let parameters = &predicate.build_definition.external_parameters;
    let source = match what {
        Workload::Script(script) => String::from_utf8_lossy(&script.source),
        Workload::Command(_) => return None,
    };
    let uses = |names: &[&str]| names.iter().any(|name| source.contains(name));
    let mut flags = Vec::new();
    if parameters.seed.is_none() && uses(&["random"]) {
        flags.push("--seed N");
    }
    if parameters.now.is_none() && uses(&["os.time", "os.date", "os.clock"]) {
        flags.push("--now TIME");
    }
    (!flags.is_empty()).then(|| {
        format!("a run with {} does the same each time; make a receipt of it", flags.join(" "))
    })
}

/// The script that ran.
fn script(args: &ReplayArgs, predicate: &Provenance, secrets: Secrets) -> Result<Script, Error> {
    let Some(file) = &args.script else {
        return Err(refuse(args, "it is the receipt of a script")
            .with_hint("--script FILE names the script"));
    };
    let source = input::script(ScriptArgument::File(file))?.source;
    let arguments = input::arguments(args.args_file.as_deref(), &args.args)?;
    let parameters = &predicate.build_definition.external_parameters;
    let now = match &parameters.now {
        None => None,
        Some(text) => match sandbox_api::time::parse_rfc3339(text) {
            Some((seconds, 0)) if seconds >= 0 => Some(seconds.unsigned_abs()),
            _ => return Err(refuse(args, format!("its time '{text}' is invalid"))),
        },
    };
    Ok(Script::new(source).args(arguments).seed(parameters.seed).now(now).secrets(secrets))
}

/// The command that ran: as it is given here, or else as the receipt has it.
fn command(
    context: &Context<'_>,
    args: &ReplayArgs,
    predicate: &Provenance,
) -> Result<Command, Error> {
    if args.script.is_some() || args.args_file.is_some() || !args.args.is_empty() {
        return Err(refuse(args, "it is the receipt of a command")
            .with_hint("the command comes last: replay RECEIPT -- COMMAND…"));
    }
    let recorded = predicate.build_definition.external_parameters.command.as_ref();
    let line = match (&args.shell, &*args.command, recorded.map(|it| &it.line)) {
        (Some(line), ..) => CommandLine::Shell(line.clone()),
        (None, [program, words @ ..], _) => CommandLine::Program(program.clone(), words.to_vec()),
        (None, [], Some(RecordedLine::Shell(line))) => CommandLine::Shell(line.into()),
        (None, [], Some(RecordedLine::Argv(words))) => {
            let mut words = words.iter().map(OsString::from);
            let program = words.next();
            let program = program.ok_or_else(|| refuse(args, "its command has no words"))?;
            CommandLine::Program(program, words.collect())
        }
        (None, [], None) => {
            return Err(refuse(args, "it is the receipt of a command, which it does not have")
                .with_hint("name the command: replay RECEIPT -- COMMAND…, or --shell LINE"));
        }
    };
    let variables = env_file::read_all(&args.env_files, &args.env)?;
    let cwd = recorded.and_then(|it| it.cwd.as_ref()).map(OsString::from);
    let cwd = args.workdir.clone().or(cwd);
    Ok(exec::request(context, &line, &variables, cwd.as_deref()))
}

/// A receipt that is not replayed here.
fn refuse(args: &ReplayArgs, why: impl Into<String>) -> Error {
    Error::usage(args.receipt.display().to_string(), why)
}

fn answer(context: &Context<'_>, args: &ReplayArgs, comparison: Comparison) -> Result<u8, Error> {
    let code = u8::from(!comparison.identical);
    if args.json {
        context.output.document(&comparison)?;
    } else if comparison.identical {
        context.output.text("identical\n")?;
    } else {
        context.output.text(&text_of(&comparison))?;
        if let Some(hint) = comparison.hint.filter(|_| comparison.outcome.is_some()) {
            context.output.hint(&hint);
        }
    }
    Ok(code)
}

/// What differs, for people: the line first, if it is known.
fn text_of(comparison: &Comparison) -> String {
    let mut text = String::new();
    let both = |expected: &str, actual: &str| {
        format!("  expected {}\n  actual   {}\n", escaped_line(expected), escaped_line(actual))
    };
    for it in &comparison.differences {
        _ = writeln!(text, "{:10} {}", it.change.as_str(), escaped_line(&it.path));
        let digest = |digest: &Option<String>| match digest {
            Some(digest) => format!("sha256:{digest}"),
            None => "nothing".to_owned(),
        };
        text.push_str(&both(&digest(&it.expected), &digest(&it.actual)));
        if let Some(line) = comparison.line.as_ref().filter(|line| line.path == it.path) {
            let shown = |line: &Option<String>| line.clone().unwrap_or("the end".to_owned());
            _ = writeln!(text, "  line {}:", line.line);
            text.push_str(&both(&shown(&line.expected), &shown(&line.actual)));
        }
    }
    if comparison.outcome == Some(SameOutcome::Changed) {
        text.push_str("outcome    differs\n");
        match comparison.actual {
            Some(actual) if actual != comparison.expected => {
                text.push_str(&both(
                    &listing::ending(comparison.expected),
                    &listing::ending(actual),
                ));
            }
            _ => text.push_str("  its result or its test cases are others\n"),
        }
    }
    text
}

/// The sandbox of the receipt. What it may do is what is allowed here: a receipt allows nothing, and
/// names nothing of this host.
fn spec(
    args: &ReplayArgs,
    settings: &Settings,
    predicate: &Provenance,
    stdin: Option<&str>,
) -> Result<SandboxSpec, Error> {
    let recorded = &predicate.build_definition.external_parameters.sandbox;
    check_policy(args, settings, recorded)?;
    if predicate.dependency(Dependency::IO).is_some() && args.io_dir.is_none() {
        return Err(refuse(args, "its io dir had files before the run")
            .with_hint("--io-dir DIR names a directory with these files; it is not changed"));
    }
    let is_command = predicate.build_definition.build_type == BuildType::Command;
    let private_io = (args.io_dir.is_none() && !recorded.io_is_off).then_some(PrivateIo::Disk);
    let spec = SandboxSpec {
        root: root(args, predicate)?,
        io_dir: args.io_dir.as_deref().map(resolved_parents),
        io_is_off: recorded.io_is_off,
        no_symlinks: true,
        private_io,
        staged: args.io_dir.is_some(),
        mount_path: recorded.mount_path.clone(),
        workdir: recorded.workdir.clone(),
        limits: recorded.limits,
        io_errors: recorded.io_errors,
        allowed_paths: recorded.allowed_paths.clone(),
        protected: recorded.protected.clone(),
        // Programs see who they are; scripts do not.
        user: recorded.user.filter(|_| is_command),
        lifetime: DEFAULT_LIFETIME.saturating_add(recorded.limits.timeout),
        default_encoding: recorded.default_encoding,
        lifespan: Lifespan::OneRun,
        allow: recorded.allow.clone(),
        // Of all else a receipt has nothing to say; the command line may have inputs and secrets.
        ..SandboxSpec::new()
    };
    let mut inputs = args.inputs.clone();
    for volume in &args.volumes {
        inputs.push(volume.input()?);
    }
    Ok(input::inputs(&inputs, stdin)?.into_iter().fold(spec, SandboxSpec::input))
}

/// Refuses what a run could not do here.
fn check_policy(
    args: &ReplayArgs,
    settings: &Settings,
    recorded: &SandboxSpec,
) -> Result<(), Error> {
    if recorded.io_dir.is_some() || !recorded.inputs.is_empty() {
        return Err(refuse(args, "it names files of a host, and no receipt does"));
    }
    let allowed = settings.allow()?;
    if let Some(rule) = recorded.allow.rules().iter().find(|rule| !allowed.covers(rule)) {
        let why = format!("its run was allowed to reach {rule}, which is not allowed here");
        return Err(refuse(args, why).with_hint(format!("--allow {rule} allows it")));
    }
    if let Err(over) = recorded.limits.check(&settings.ceiling()) {
        let why = format!(
            "its run had {} = {}, and the ceiling here is {}",
            over.key.key(),
            over.asked,
            over.ceiling
        );
        return Err(refuse(args, why)
            .with_hint(format!("limits.ceiling of your configuration raises {}", over.key.key())));
    }
    let narrower = |key| {
        let why = format!("its run was allowed more than {} allows here", settings.named(key));
        Err(refuse(args, why).with_hint("`sandboxctl config show --origin` says where it is set"))
    };
    if !settings.io_enabled() && !recorded.io_is_off {
        return narrower(Key::IoEnabled);
    }
    if settings.allowed_paths().is_some_and(|paths| recorded.allowed_paths.as_ref() != Some(&paths))
    {
        return narrower(Key::AllowedPaths);
    }
    if settings.protected().iter().any(|name| !recorded.protected.contains(name)) {
        return narrower(Key::Protected);
    }
    Ok(())
}

/// What programs run in: an image by the digest that the receipt has of it, which must be there.
fn root(args: &ReplayArgs, predicate: &Provenance) -> Result<RootFs, Error> {
    let recorded = &predicate.build_definition.external_parameters.sandbox.root;
    let image = predicate.dependency(Dependency::IMAGE);
    let archive = || args.image_archive.clone().map(RootFs::Archive);
    let named = args.rootfs.clone().map(RootFs::Directory).or_else(archive);
    match (recorded, image, named) {
        (RootFs::Builtin, None, None) => Ok(RootFs::Builtin),
        (RootFs::Image { reference, .. }, Some(digest), None)
            if reference.strip_prefix(IMAGE_PREFIX) == Some(digest) =>
        {
            Ok(RootFs::Image { reference: reference.clone(), pull: Pull::Never })
        }
        (RootFs::Directory(_) | RootFs::Archive(_), None, Some(named)) => Ok(named),
        (RootFs::Directory(_) | RootFs::Archive(_), None, None) => {
            Err(refuse(args, "its programs ran in a directory or an archive")
                .with_hint("--rootfs DIR or --image-archive FILE names it"))
        }
        (_, _, Some(_)) => Err(refuse(args, "its run was in no directory and no archive")
            .with_hint("leave out --rootfs and --image-archive")),
        _ => Err(refuse(args, "its image is not named by the digest that it has of it")),
    }
}

/// What the run is made of: names of dependencies, with digests.
fn materials(
    what: &Workload,
    spec: &SandboxSpec,
    inputs: &Digested,
) -> Result<Vec<(String, String)>, Error> {
    let named = receipts::materials(what).into_iter().chain(byte_inputs(spec));
    let named = named.map(|it| (it.name, it.digest.sha256));
    let mut materials: Vec<_> = named.chain(inputs.digests()).collect();
    if let Some(io_dir) = &spec.io_dir {
        materials.push((Dependency::IO.to_owned(), digest(io_dir)?.sha256));
    }
    Ok(materials)
}

/// The flags that name what differs.
fn flags_of(differences: &[PathDifference<CheckDifference>]) -> String {
    let flag = |it: &PathDifference<CheckDifference>| match &*it.path {
        Dependency::SCRIPT => "--script FILE",
        Dependency::ARGS => "--arg KEY=VALUE or --args-file FILE",
        Dependency::COMMAND => "-- COMMAND…, or --shell LINE",
        Dependency::ENV => "-e NAME=VALUE",
        Dependency::CWD => "-w DIR",
        Dependency::IO => "--io-dir DIR",
        Dependency::ROOTFS => "--rootfs DIR or --image-archive FILE",
        name if name.starts_with(MOUNT) => "--volume SRC:DST:ro",
        _ => "--in SRC:NAME",
    };
    let flags: BTreeSet<_> = differences.iter().map(flag).collect();
    Vec::from_iter(flags).join(", ")
}

/// Compares what the run left with the receipt.
async fn compare(
    args: &ReplayArgs,
    sandbox: &Sandbox,
    ended: &Outcome,
    receipt: &Receipt,
    tests: Option<TestResult>,
) -> Result<Comparison, Error> {
    let mut line = None;
    let parameters = &receipt.predicate.build_definition.external_parameters;
    // A run reports files only if artifacts were requested, or its io dir was staged.
    let tells_of_files = !parameters.artifacts.is_empty() || parameters.commit.is_some();
    let found = match (parameters.artifacts.is_empty(), sandbox.io_dir()) {
        _ if !tells_of_files => Vec::new(),
        (true, Some(_)) => {
            let options = FinishOptions { commit: CommitPolicy::Never, ..FinishOptions::default() };
            let end = sandbox.finish(options, ended).await?;
            end.map(|end| receipts::changed_files(&end.changes.manifest)).unwrap_or_default()
        }
        // A fresh io dir has what the run made, and nothing else.
        (is_everything, _) => {
            let everything = ["**".to_owned()];
            let globs = if is_everything { &everything[..] } else { &parameters.artifacts };
            let mount = &parameters.sandbox.mount_path;
            let selection =
                Selection::new(globs, mount).map_err(|error| refuse(args, error.to_string()))?;
            let dir = args.artifacts.clone();
            let reference = dir.map(|dir| Reference { dir, digests: digests_of(receipt) });
            let unmatched = Unmatched::Allow;
            let request = Request { selection, destination: None, unmatched, reference };
            let found = sandbox.start_artifacts(request).wait().await?;
            line = found.line;
            receipts::files(&found.manifest.files)
        }
    };
    let differences = receipts::differences(receipt, receipts::digests(found));
    let outcome = outcome(receipt, ended, tests);
    let (status, exit_code) = (Some(ended.status()), Some(ended.exit_code()));
    Ok(Comparison {
        identical: differences.is_empty() && outcome == SameOutcome::Same,
        stage: Stage::Results,
        outcome: Some(outcome),
        actual: Some(RecordedOutcome { status, exit_code }),
        line,
        ..Comparison::of_materials(&receipt.predicate, differences)
    })
}

/// The files of a receipt, with their digests.
fn digests_of(receipt: &Receipt) -> BTreeMap<Vec<u8>, String> {
    let subjects = receipt.subject.iter();
    subjects.filter_map(|it| Some((it.path()?.to_vec(), it.digest.sha256.clone()))).collect()
}

fn outcome(receipt: &Receipt, outcome: &Outcome, tests: Option<TestResult>) -> SameOutcome {
    let recorded = |name| receipt.predicate.byproduct(name);
    let ended = receipts::outcome(outcome);
    let tests = tests.map(|tests| receipts::tests_digest(&tests));
    let recorded_tests = recorded(Dependency::TESTS).map(|it| it.digest.sha256.clone());
    match recorded(Dependency::OUTCOME) == Some(&ended) && recorded_tests == tests {
        true => SameOutcome::Same,
        false => SameOutcome::Changed,
    }
}

#[cfg(test)]
mod tests {
    use sandbox_api::Status;

    use super::*;

    #[test]
    fn what_differs_is_shown_with_what_was_expected() {
        let expected = RecordedOutcome { status: Some(Status::Ok), exit_code: Some(0) };
        let actual = RecordedOutcome { status: Some(Status::Exit), exit_code: Some(3) };
        let path = PathDifference::new(b"a", CheckDifference::Changed);
        let [one, other] = ["x", "y\n"].map(|line| Some(line.to_owned()));
        let line = LineDifference { path: "a".into(), line: 2, expected: one, actual: other };
        let comparison = Comparison {
            identical: false,
            verified: None,
            stage: Stage::Results,
            outcome: Some(SameOutcome::Changed),
            expected,
            actual: Some(actual),
            differences: vec![path.with_digests(Some("1"), None)],
            line: Some(line),
            hint: None,
        };
        insta::assert_snapshot!(text_of(&comparison), @r"
        changed    a
          expected sha256:1
          actual   nothing
          line 2:
          expected x
          actual   y\n
        outcome    differs
          expected ok, exit code 0
          actual   exit, exit code 3
        ");
        let comparison = Comparison { actual: Some(expected), ..comparison };
        assert!(text_of(&comparison).ends_with("  its result or its test cases are others\n"));
        let line = comparison.line.map(|line| LineDifference {
            path: "hunter22".to_owned(),
            expected: Some("a hunter22".to_owned()),
            ..line
        });
        let path = PathDifference::new(b"hunter22", CheckDifference::Changed);
        let secret = Comparison { line, differences: vec![path], ..comparison };
        let text = text_of(&secret.without(&Patterns::new([&b"hunter22"[..]])));
        assert!(
            text.starts_with("changed    ***\n") && text.contains("expected a ***\n"),
            "{text}"
        );
    }

    #[test]
    fn hint_of_a_replay_names_the_flags_of_what_differs() {
        let of = |names: &[&str]| {
            let change = CheckDifference::Changed;
            let it = names.iter().map(|name| PathDifference::new(name.as_bytes(), change));
            flags_of(&it.collect::<Vec<_>>())
        };
        assert_eq!(of(&["in/a", "in/b", "script"]), "--in SRC:NAME, --script FILE");
        assert_eq!(of(&["args", "io"]), "--arg KEY=VALUE or --args-file FILE, --io-dir DIR");
        assert_eq!(of(&["mount/data", "in/a"]), "--in SRC:NAME, --volume SRC:DST:ro");
        assert_eq!(of(&["rootfs"]), "--rootfs DIR or --image-archive FILE");
    }
}
