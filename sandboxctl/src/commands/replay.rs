//! `replay`: runs the script of a receipt again, and compares what it makes.

use sandbox_api::artifacts::{CheckDifference, PathDifference};
use sandbox_api::changes::CommitPolicy;
use sandbox_api::receipt::{BuildType, Dependency, Provenance, Receipt, TestResult};
use sandbox_api::{
    DEFAULT_LIFETIME, Lifespan, Outcome, PrivateIo, Pull, RootFs, RunResult, SandboxSpec, Script,
};
use sandbox_controller::artifacts::{Request, Selection, Unmatched};
use sandbox_controller::{FinishOptions, Run, Sandbox, receipts};
use serde::Serialize;

use super::artifacts::list;
use super::receipt::{
    Digested, MOUNT, args_digest, byte_inputs, digest, public_key, read_receipt, script_dependency,
    unverified,
};
use super::{Context, block_on, launch};
use crate::cli::receipt::ReplayArgs;
use crate::config::{Key, Settings, resolved_parents};
use crate::error::Error;
use crate::input::{self, ScriptArgument};

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
    /// The materials or the files that differ.
    differences: Vec<PathDifference<CheckDifference>>,
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
    fn of_materials(differences: Vec<PathDifference<CheckDifference>>) -> Self {
        let identical = differences.is_empty();
        Self { identical, verified: None, stage: Stage::Materials, outcome: None, differences }
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
        let unread = Comparison { identical: false, ..Comparison::of_materials(Vec::new()) };
        return if args.json { answer(unread) } else { Ok(1) };
    }
    if verified.is_none() {
        context.output.notice("without --key anybody may have written this receipt");
    }
    let receipt = opened.receipt;
    if receipt.predicate.build_definition.build_type != BuildType::Script {
        return Err(refuse(args, "it is the receipt of a command, and scripts alone are replayed"));
    }
    let source = input::script(ScriptArgument::File(&args.script))?.source;
    let arguments = input::arguments(args.args_file.as_deref(), &args.args)?;
    let stdin = input::is_stdin(&args.script).then_some("--script -");
    let (secrets, stdin) = args.secrets.read(&context.environment, stdin)?;
    let spec = spec(args, &settings, &receipt.predicate, stdin.as_deref())?;
    let parameters = &receipt.predicate.build_definition.external_parameters;
    let now = match &parameters.now {
        None => None,
        Some(text) => match sandbox_api::time::parse_rfc3339(text) {
            Some((seconds, 0)) if seconds >= 0 => Some(seconds.unsigned_abs()),
            _ => return Err(refuse(args, format!("its time '{text}' is invalid"))),
        },
    };
    let script =
        Script::new(source).args(arguments).seed(parameters.seed).now(now).secrets(secrets);
    let inputs = Digested::of(&spec)?;
    let materials = materials(&script, &spec, &inputs)?;
    let differences = material_differences(&receipt.predicate, &materials);
    if !differences.is_empty() {
        context.output.failure(
            "the materials are not those of the receipt: nothing ran",
            Some(&format!("name each as the run did: {}", flags_of(&differences))),
        );
        return answer(Comparison::of_materials(differences));
    }
    let tests = script_dependency(&script);
    let config = context.controller(&settings);
    let image = receipt.predicate.dependency(Dependency::IMAGE);
    let comparison = block_on(launch::in_sandbox(
        context,
        &settings,
        config,
        spec,
        async |sandbox, signals| {
            // The engine's word for what it started, beside what it was asked for.
            let started = sandbox.image_id().map(|id| id.trim_start_matches(IMAGE_PREFIX));
            if started != image {
                let why = "the engine started another image than the receipt's";
                return Err(refuse(args, why));
            }
            let run = sandbox.start(script);
            let follow = async |run: Run| {
                let result = run.wait().await?;
                if let Some(failure) = result.outcome.failure()
                    && receipt.predicate.outcome().status != Some(result.outcome.status())
                {
                    let text = format!("the replay ended otherwise: {}", failure.message);
                    context.output.failure(&text, result.hint().as_deref());
                }
                if let Some(path) = inputs.other_than_used(sandbox)? {
                    let why = format!("{} changed while the replay used it", path.display());
                    return Err(refuse(args, why).with_hint("replay it again"));
                }
                compare(args, sandbox, result, &receipt, tests).await
            };
            launch::follow_to_end(signals, run, Run::cancel_handle, follow).await
        },
    ))?;
    answer(comparison)
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
        list(context, &comparison.differences, CheckDifference::as_str)?;
        if comparison.outcome == Some(SameOutcome::Changed) {
            context.output.text("outcome    differs\n")?;
        }
    }
    Ok(code)
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
        inputs: Vec::new(),
        limits: recorded.limits,
        io_errors: recorded.io_errors,
        allowed_paths: recorded.allowed_paths.clone(),
        protected: recorded.protected.clone(),
        user: None,
        lifetime: DEFAULT_LIFETIME,
        idle_limit: None,
        default_encoding: recorded.default_encoding,
        lifespan: Lifespan::OneRun,
        id: None,
        container_name: None,
        title: None,
        allow: recorded.allow.clone(),
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
    let named = match (&args.rootfs, &args.image_archive) {
        (Some(directory), _) => Some(RootFs::Directory(directory.clone())),
        (None, Some(file)) => Some(RootFs::Archive(file.clone())),
        (None, None) => None,
    };
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
    script: &Script,
    spec: &SandboxSpec,
    inputs: &Digested,
) -> Result<Vec<(String, String)>, Error> {
    let mut materials = vec![
        (Dependency::SCRIPT.to_owned(), script_dependency(script).digest.sha256),
        (Dependency::ARGS.to_owned(), args_digest(&script.args)),
    ];
    materials.extend(inputs.digests());
    materials.extend(byte_inputs(spec).map(|it| (it.name, it.digest.sha256)));
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
        Dependency::IO => "--io-dir DIR",
        Dependency::ROOTFS => "--rootfs DIR or --image-archive FILE",
        name if name.starts_with(MOUNT) => "--volume SRC:DST:ro",
        _ => "--in SRC:NAME",
    };
    let mut flags: Vec<_> = differences.iter().map(flag).collect();
    flags.sort_unstable();
    flags.dedup();
    flags.join(", ")
}

/// The materials that differ from those of the receipt.
fn material_differences(
    predicate: &Provenance,
    materials: &[(String, String)],
) -> Vec<PathDifference<CheckDifference>> {
    let mut differences = Vec::new();
    for (name, digest) in materials {
        let change = match predicate.dependency(name) {
            Some(known) if known == digest => continue,
            Some(_) => CheckDifference::Changed,
            None => CheckDifference::Unexpected,
        };
        differences.push(PathDifference::new(name.as_bytes(), change));
    }
    for it in &predicate.build_definition.resolved_dependencies {
        // The image is compared with the one that the engine starts, and what runs beside the script
        // is this version's.
        let is_known = [Dependency::AGENT, Dependency::IMAGE].contains(&&*it.name)
            || materials.iter().any(|(name, _)| *name == it.name);
        if !is_known {
            differences.push(PathDifference::new(it.name.as_bytes(), CheckDifference::Missing));
        }
    }
    differences.sort_by(|one, other| one.path().cmp(other.path()));
    differences
}

/// Compares what the run left with the receipt.
async fn compare(
    args: &ReplayArgs,
    sandbox: &Sandbox,
    result: RunResult,
    receipt: &Receipt,
    script: Dependency,
) -> Result<Comparison, Error> {
    let parameters = &receipt.predicate.build_definition.external_parameters;
    // A run tells of files only where artifacts were asked for, or its io dir was staged.
    let tells_of_files = !parameters.artifacts.is_empty() || parameters.commit.is_some();
    let found = match (parameters.artifacts.is_empty(), sandbox.io_dir()) {
        _ if !tells_of_files => Vec::new(),
        (true, Some(_)) => {
            let options = FinishOptions { commit: CommitPolicy::Never, ..FinishOptions::default() };
            let end = sandbox.finish(options, &result.outcome).await?;
            end.map(|end| receipts::changed_files(&end.changes.manifest)).unwrap_or_default()
        }
        // A fresh io dir has what the run made, and nothing else.
        (is_everything, _) => {
            let everything = ["**".to_owned()];
            let globs = if is_everything { &everything[..] } else { &parameters.artifacts };
            let mount = &parameters.sandbox.mount_path;
            let selection =
                Selection::new(globs, mount).map_err(|error| refuse(args, error.to_string()))?;
            let request = Request { selection, destination: None, unmatched: Unmatched::Allow };
            receipts::files(&sandbox.start_artifacts(request).wait().await?.manifest.files)
        }
    };
    let differences = receipts::differences(receipt, receipts::digests(found));
    let outcome = outcome(receipt, &result.outcome, TestResult::new(script, &result.tests));
    Ok(Comparison {
        identical: differences.is_empty() && outcome == SameOutcome::Same,
        verified: None,
        stage: Stage::Results,
        outcome: Some(outcome),
        differences,
    })
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
    use super::*;

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
