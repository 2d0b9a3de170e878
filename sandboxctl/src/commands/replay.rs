//! `replay`: runs the script of a receipt again, and compares what it makes.

use sandbox_api::artifacts::{CheckDifference, PathDifference};
use sandbox_api::changes::CommitPolicy;
use sandbox_api::receipt::{BuildType, Provenance, Receipt, Subject};
use sandbox_api::{InputSource, Lifespan, PrivateIo, RootFs, RunResult, SandboxSpec, Script};
use sandbox_controller::artifacts::{Request, Selection, Unmatched};
use sandbox_controller::{FinishOptions, Run, Sandbox, receipts};
use serde::Serialize;

use super::artifacts::list;
use super::receipt::{args_digest, digest, name_of, public_key, read_receipt, unverified};
use super::{Context, block_on, launch};
use crate::cli::receipt::ReplayArgs;
use crate::config::Settings;
use crate::error::Error;
use crate::input::{self, ScriptArgument};

/// What `replay --json` prints.
#[derive(Serialize)]
struct Replayed<'a> {
    identical: bool,
    differences: &'a [PathDifference<CheckDifference>],
}

pub fn replay(context: &Context<'_>, args: &ReplayArgs) -> Result<u8, Error> {
    let settings = context.settings_with(|flags| {
        args.allow.add_flags(flags);
        args.root.add_flags(flags);
    })?;
    let opened = read_receipt(&args.receipt)?;
    if let Some(key) = &args.key
        && let Err(error) = opened.verify(&public_key(key)?)
    {
        context.output.failure(&unverified(&error).message, None);
        return Ok(1);
    }
    let receipt = opened.receipt;
    if receipt.predicate.build_definition.build_type != BuildType::Script {
        let why = "it is the receipt of a command, and scripts alone are replayed";
        return Err(Error::usage("RECEIPT", why));
    }
    let source = input::script(ScriptArgument::File(&args.script))?.source;
    let arguments = input::arguments(args.args_file.as_deref(), &args.args)?;
    let stdin = input::is_stdin(&args.script).then_some("--script -");
    let (secrets, stdin) = args.secrets.read(&context.environment, stdin)?;
    let spec = spec(args, &settings, &receipt.predicate, stdin.as_deref())?;
    let mut made_of = vec![
        ("script".to_owned(), receipts::sha256(&source)),
        ("args".to_owned(), args_digest(&arguments)),
    ];
    for it in &spec.inputs {
        let digest = match &it.source {
            InputSource::Path(path) => digest(path)?.sha256,
            InputSource::Bytes(bytes) => receipts::sha256(bytes),
        };
        made_of.push((name_of(&it.name), digest));
    }
    if let RootFs::Directory(path) | RootFs::Archive(path) = &spec.root {
        made_of.push(("rootfs".to_owned(), digest(path)?.sha256));
    }
    if let Some(io_dir) = &spec.io_dir {
        made_of.push(("io".to_owned(), digest(io_dir)?.sha256));
    }
    let differences = other_origin(&receipt.predicate, &made_of);
    if !differences.is_empty() {
        context.output.failure(
            "it is not made of what the receipt says",
            Some("--script, --arg, --args-file, --in, --io-dir, --rootfs and --image-archive name it"),
        );
        return answer(context, args, &differences);
    }
    let parameters = &receipt.predicate.build_definition.external_parameters;
    let now = match &parameters.now {
        None => None,
        Some(text) => match sandbox_api::time::parse_rfc3339(text) {
            Some((seconds, 0)) if seconds >= 0 => Some(seconds.unsigned_abs()),
            _ => return Err(Error::usage("RECEIPT", format!("its time '{text}' is invalid"))),
        },
    };
    let script =
        Script::new(source).args(arguments).seed(parameters.seed).now(now).secrets(secrets);
    let config = context.controller(&settings);
    let differences = block_on(launch::in_sandbox(
        context,
        &settings,
        config,
        spec,
        async |sandbox, signals| {
            let run = sandbox.start(script);
            let follow = async |run: Run| compare(sandbox, run.wait().await?, &receipt).await;
            launch::follow_to_end(signals, run, Run::cancel_handle, follow).await
        },
    ))?;
    answer(context, args, &differences)
}

fn answer(
    context: &Context<'_>,
    args: &ReplayArgs,
    differences: &[PathDifference<CheckDifference>],
) -> Result<u8, Error> {
    let identical = differences.is_empty();
    match (args.json, identical) {
        (true, _) => context.output.document(&Replayed { identical, differences })?,
        (false, true) => context.output.text("identical\n")?,
        (false, false) => list(context, differences, CheckDifference::as_str)?,
    }
    Ok(u8::from(!identical))
}

/// The sandbox of the receipt. What it may do is what is allowed here: a receipt allows nothing.
fn spec(
    args: &ReplayArgs,
    settings: &Settings,
    predicate: &Provenance,
    stdin: Option<&str>,
) -> Result<SandboxSpec, Error> {
    let recorded = predicate.build_definition.external_parameters.sandbox.clone();
    let refuse = |why: String| Error::usage("RECEIPT", why);
    let allowed = settings.allow()?;
    if let Some(rule) = recorded.allow.rules().iter().find(|rule| !allowed.covers(rule)) {
        return Err(refuse(format!(
            "its run was allowed to reach {rule}, which is not allowed here"
        ))
        .with_hint(format!("--allow {rule} allows it")));
    }
    let root = match &recorded.root {
        RootFs::Directory(_) | RootFs::Archive(_) if !args.root.is_named() => {
            return Err(refuse("its programs ran in a directory or an archive".to_owned())
                .with_hint("--rootfs DIR or --image-archive FILE names it"));
        }
        RootFs::Directory(_) | RootFs::Archive(_) => args.root.root(settings),
        root => root.clone(),
    };
    if predicate.dependency("io").is_some() && args.io_dir.is_none() {
        return Err(refuse("its io dir had files before the run".to_owned())
            .with_hint("--io-dir DIR names a directory with these files; it is not changed"));
    }
    let mut spec = SandboxSpec {
        root,
        io_dir: args.io_dir.clone(),
        private_io: None,
        staged: args.io_dir.is_some(),
        lifespan: Lifespan::OneRun,
        ..recorded
    };
    if spec.io_dir.is_none() && !spec.io_is_off {
        spec.private_io = Some(PrivateIo::Disk);
    }
    Ok(input::inputs(&args.inputs, stdin)?.into_iter().fold(spec, SandboxSpec::input))
}

/// What this is made of and the receipt is not, or the other way round.
fn other_origin(
    predicate: &Provenance,
    made_of: &[(String, String)],
) -> Vec<PathDifference<CheckDifference>> {
    let mut differences = Vec::new();
    for (name, digest) in made_of {
        let change = match predicate.dependency(name) {
            Some(known) if known == digest => continue,
            Some(_) => CheckDifference::Changed,
            None => CheckDifference::Unexpected,
        };
        differences.push(PathDifference::new(name.as_bytes(), change));
    }
    for it in &predicate.build_definition.resolved_dependencies {
        // An image is named by its id, and what runs beside the script is this version's.
        let is_known = ["agent", "image"].contains(&&*it.name)
            || made_of.iter().any(|(name, _)| *name == it.name);
        if !is_known {
            differences.push(PathDifference::new(it.name.as_bytes(), CheckDifference::Missing));
        }
    }
    differences.sort_by(|one, other| one.path().cmp(other.path()));
    differences
}

/// Compares what the run left with the receipt.
async fn compare(
    sandbox: &Sandbox,
    result: RunResult,
    receipt: &Receipt,
) -> Result<Vec<PathDifference<CheckDifference>>, Error> {
    let parameters = &receipt.predicate.build_definition.external_parameters;
    let outcome = receipts::outcome(&result.outcome).digest.sha256;
    let is_of_files = receipt.subject.iter().any(|it| it.path().is_some());
    let found = match (parameters.artifacts.is_empty(), sandbox.io_dir()) {
        _ if !is_of_files => Vec::new(),
        (true, Some(_)) => {
            let options = FinishOptions { commit: CommitPolicy::Never, ..FinishOptions::default() };
            let end = sandbox.finish(options, &result.outcome).await?;
            end.map(|end| receipts::changed_files(&end.changes.manifest)).unwrap_or_default()
        }
        (is_everything, _) => {
            let everything = ["**".to_owned()];
            let globs = if is_everything { &everything[..] } else { &parameters.artifacts };
            let mount = &parameters.sandbox.mount_path;
            let selection = Selection::new(globs, mount)
                .map_err(|error| Error::usage("RECEIPT", error.to_string()))?;
            let request = Request { selection, destination: None, unmatched: Unmatched::Allow };
            receipts::files(&sandbox.start_artifacts(request).wait().await?.manifest.files)
        }
    };
    let mut differences = receipts::differences(receipt, &found);
    if receipt.predicate.byproduct("outcome") != Some(&*outcome) {
        differences.push(PathDifference::new(Subject::RESULT.as_bytes(), CheckDifference::Changed));
    }
    Ok(differences)
}
