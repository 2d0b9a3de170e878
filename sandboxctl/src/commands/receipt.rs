//! Receipts: the flags `--receipt` and `--sign`, and the commands `keys` and `receipt`.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use sandbox_api::artifacts::CheckDifference;
use sandbox_api::receipt::{
    BuildDefinition, BuildType, Builder, BuilderId, Dependency, ExternalParameters,
    InternalParameters, PredicateType, Provenance, Receipt, ReceiptEngine, RecordedCommand,
    RecordedLine, RecordedOutcome, RunDetails, RunMetadata, StatementType, Subject, TestResult,
    TestStatement, TestVerdict,
};
use sandbox_api::{
    CommandLine, ErrorKind, ExecutionResult, Failure, InputSource, ReceiptReport, RootFs,
    SandboxSpec, Status, Workload,
};
use sandbox_controller::artifacts::{self, digest_input};
use sandbox_controller::receipts::{self, Opened, PublicKey, ReceiptError, SigningKey};
use sandbox_controller::{AGENT_SHA256, AgentSource, Command, MASK, Patterns, Sandbox};
use serde::Serialize;

use super::Context;
use super::artifacts::{cancellable, lines};
use super::collect::{Artifacts, Copied};
use super::execution::remarks;
use super::staging::Staging;
use crate::cli::receipt::{KeysCommand, ReceiptArgs, ReceiptCommand};
use crate::error::Error;
use crate::input;
use crate::output::Output;
use crate::render::{self, listing};
use crate::target::{Place, is_in, parent_of};

/// The most bytes of a receipt that is read.
const MAX_RECEIPT: u64 = 256 << 20;
/// The most bytes of a key.
const MAX_KEY: u64 = 64 << 10;

/// A receipt to be written at the end of a run.
pub struct Issuer {
    file: PathBuf,
    place: Place,
    key: Option<SigningKey>,
    started: String,
    spec: SandboxSpec,
    artifacts: Vec<String>,
    made_of: Vec<Dependency>,
    inputs: Digested,
    /// The number of files in the io dir before the run.
    earlier_files: u64,
    /// The words of the command, if the receipt is to have them.
    command: Option<RecordedCommand>,
}

/// The root directory or image archive of a spec, and its inputs that are paths, with their digests.
pub struct Digested(Vec<(String, PathBuf, artifacts::InputDigest)>);

impl Digested {
    /// Digests them.
    ///
    /// # Errors
    ///
    /// If something cannot be read.
    pub fn of(spec: &SandboxSpec) -> Result<Self, Error> {
        let root = match &spec.root {
            RootFs::Directory(path) | RootFs::Archive(path) => Some(&**path),
            _ => None,
        };
        let root = root.map(|path| (Dependency::ROOTFS.to_owned(), path));
        let inputs = input::paths(spec).map(|(name, path)| (name_of(name), path));
        let all = root.into_iter().chain(inputs);
        let digested = all.map(|(name, path)| Ok((name, path.to_owned(), digest(path)?)));
        digested.collect::<Result<_, Error>>().map(Self)
    }

    /// Their names and digests.
    pub fn digests(&self) -> impl Iterator<Item = (String, String)> {
        self.0.iter().map(|(name, _, digest)| (name.clone(), digest.sha256.clone()))
    }

    /// The path of the first of them that is not what the sandbox has opened, or that has changed since
    /// it was digested: a path may have led elsewhere meanwhile.
    ///
    /// # Errors
    ///
    /// If it cannot be read any more.
    pub fn other_than_used(&self, sandbox: &Sandbox) -> Result<Option<&Path>, Error> {
        let mut used = sandbox.opened().into_iter();
        for (_, path, digest) in &self.0 {
            let is_same = used.next().map(|used| digest.is_still_of(&used)).transpose();
            if is_same? != Some(true) {
                return Ok(Some(path));
            }
        }
        Ok(None)
    }
}

/// The inputs that a command line has read already.
pub fn byte_inputs(spec: &SandboxSpec) -> impl Iterator<Item = Dependency> {
    spec.inputs.iter().filter_map(|input| match &input.source {
        InputSource::Path(_) => None,
        InputSource::Bytes(bytes) => {
            Some(Dependency::new(&name_of(&input.name), receipts::sha256(bytes)))
        }
    })
}

impl Issuer {
    /// Checks the flags, and digests everything that the run is made of. `None` without `--receipt`.
    ///
    /// # Errors
    ///
    /// If the flags do not fit the run, or something cannot be read.
    pub fn of(
        context: &Context<'_>,
        args: &ReceiptArgs,
        spec: &SandboxSpec,
        artifacts: &Artifacts,
        key: Option<SigningKey>,
        runs: usize,
    ) -> Result<Option<Self>, Error> {
        let Some(file) = &args.file else { return Ok(None) };
        let refuse = |why: String| Error::usage("--receipt", why);
        if runs > 1 {
            return Err(refuse("it is for one script at a time".to_owned()));
        }
        let directories = spec.io_dir.as_deref().into_iter().chain(artifacts.directory());
        for directory in directories {
            if [parent_of(file), file].into_iter().any(|path| is_in(path, directory)) {
                let why = format!("{} is in {}", file.display(), directory.display());
                return Err(refuse(why).with_hint("name a file elsewhere"));
            }
        }
        if let Some(key) = args.key_file() {
            check_key(key, spec)?;
            if key.metadata().is_ok_and(|it| it.is_file() && it.mode() & 0o077 != 0) {
                let key = key.display();
                context
                    .output
                    .caution(&format!("{key} signs receipts, and others can read it: chmod 600"));
            }
        }
        let place = Place::outside("--receipt", file, spec.io_dir.as_deref())?;
        let started = sandbox_api::time::now();
        let agent = match context.environment.agent() {
            AgentSource::File(path) => digest(&path)?.sha256,
            _ => AGENT_SHA256.to_owned(),
        };
        let mut made_of = vec![Dependency::new(Dependency::AGENT, agent)];
        let inputs = Digested::of(spec)?;
        made_of.extend(inputs.0.iter().map(|(name, _, found)| described(name, found)));
        made_of.extend(byte_inputs(spec));
        // It changes, and nothing is said of it afterwards.
        let mut earlier_files = 0;
        if let Some(io_dir) = spec.io_dir.as_deref().filter(|dir| remarks::has_files(dir)) {
            let found = digest(io_dir)?;
            earlier_files = found.files;
            made_of.push(described(Dependency::IO, &found));
        }
        Ok(Some(Self {
            file: file.clone(),
            place,
            key,
            started,
            spec: spec.clone(),
            artifacts: artifacts.globs().to_vec(),
            made_of,
            inputs,
            earlier_files,
            command: None,
        }))
    }

    /// Lets the receipt have the words of the command.
    ///
    /// # Errors
    ///
    /// If they are not text, or one has a secret.
    pub fn with_words_of(self, command: &Command) -> Result<Self, Error> {
        let refuse = |why: &str| Error::usage("--receipt-argv", why);
        let patterns = Patterns::of([&command.secrets]);
        let text = |word: &[u8]| {
            if *patterns.bytes(word) != *word {
                return Err(refuse("a secret stands in the command")
                    .with_hint("--secret NAME passes it as an environment variable"));
            }
            String::from_utf8(word.to_vec()).map_err(|_| refuse("the command is not UTF-8 text"))
        };
        let line = match &command.what {
            CommandLine::Shell(line) => RecordedLine::Shell(text(line)?),
            CommandLine::Program { program, args } => {
                let words = [program].into_iter().chain(args).map(|word| text(word));
                RecordedLine::Argv(words.collect::<Result<_, _>>()?)
            }
        };
        let cwd = command.cwd.as_deref().map(text).transpose()?;
        Ok(Self { command: Some(RecordedCommand { line, cwd }), ..self })
    }

    /// Says what a replay needs beyond what the command line names.
    pub fn print_needs(&self, output: &Output) {
        if self.earlier_files > 0 {
            output.notice(&format!(
                "the io dir had {} before the run: a replay needs a copy of them as they were \
                 (--io-dir)",
                render::count(self.earlier_files, "file", "files")
            ));
        }
    }

    /// Writes the receipt, if there is to be one. Failures are reported, and are the exit code of a
    /// run that had ended well.
    pub async fn issue(
        issuer: &Option<Self>,
        sandbox: &Sandbox,
        workload: &Workload,
        result: &ExecutionResult,
        copied: &mut Copied,
        staging: &Staging,
    ) -> Option<ReceiptReport> {
        let issuer = issuer.as_ref()?;
        let problem = match issuer.receipt(sandbox, workload, result, copied, staging).await {
            Ok(receipt) => issuer.write(&receipt, tests_of(workload, result)).err(),
            Err(error) => Some(error),
        };
        if problem.is_some() {
            copied.fail();
        }
        let file = issuer.file.to_string_lossy().into_owned();
        let error = problem.map(|error| error.document());
        Some(ReceiptReport { file, error })
    }

    async fn receipt(
        &self,
        sandbox: &Sandbox,
        workload: &Workload,
        result: &ExecutionResult,
        copied: &Copied,
        staging: &Staging,
    ) -> Result<Receipt, Error> {
        if let Some(path) = self.inputs.other_than_used(sandbox)? {
            let why = format!("{} changed while the run used it: no receipt", path.display());
            return Err(Error::usage("--receipt", why).with_hint("run it again"));
        }
        if !self.artifacts.is_empty() && copied.files.is_none() {
            return Err(Error::usage("--receipt", "its artifacts were not copied: no receipt")
                .with_hint("the error of the artifacts says why"));
        }
        let facts = sandbox.engine_facts().await?;
        let mut made_of = self.made_of.clone();
        made_of.extend(receipts::materials(workload));
        let (build_type, seed, now) = match workload {
            Workload::Script(it) => (BuildType::Script, it.seed, it.now.and_then(moment)),
            Workload::Command(_) => (BuildType::Command, None, None),
        };
        let image = sandbox.image_id();
        if let (Some(id), RootFs::Image { reference, .. }) = (image, &self.spec.root) {
            let digest = id.trim_start_matches("sha256:").to_owned();
            let mut image = Dependency::new(Dependency::IMAGE, digest);
            image.annotations.insert("reference".to_owned(), reference.as_str().into());
            made_of.push(image);
        }
        made_of.sort_by(|one, other| one.name.cmp(&other.name));
        let outcome = receipts::outcome(&result.outcome);
        let mut subject = match (&copied.files, &result.changes) {
            (Some(files), _) => receipts::files(files),
            (None, Some(changes)) => receipts::changed_files(&changes.manifest),
            (None, None) => Vec::new(),
        };
        // A secret is replaced there.
        let may_have_one = |it: &&Subject| !workload.secrets().is_empty() && it.name.contains(MASK);
        if let Some(name) = subject.iter().find(may_have_one) {
            let why = format!("a secret may stand in the name of a file: '{}'", name.name);
            return Err(Error::usage("--receipt", why)
                .with_hint("rename the file: a receipt must not contain secrets"));
        }
        if subject.is_empty() {
            subject.push(Subject::result(outcome.digest.sha256.clone()));
        }
        let mut byproducts = vec![outcome];
        byproducts.extend(result.network.as_ref().map(receipts::traffic));
        let (calls, is_truncated) = result.tool_calls();
        byproducts.extend((!calls.is_empty()).then(|| receipts::tool_calls(calls, is_truncated)));
        byproducts.extend(
            tests_of(workload, result)
                .map(|tests| Dependency::new(Dependency::TESTS, receipts::tests_digest(&tests))),
        );
        let version =
            BTreeMap::from([("sandboxctl".to_owned(), env!("CARGO_PKG_VERSION").to_owned())]);
        Ok(Receipt {
            statement: StatementType::V1,
            subject,
            predicate_type: PredicateType::Provenance,
            predicate: Provenance {
                build_definition: BuildDefinition {
                    build_type,
                    external_parameters: ExternalParameters {
                        sandbox: receipts::request(&self.spec, image),
                        artifacts: self.artifacts.clone(),
                        commit: staging.policy(),
                        seed,
                        now,
                        command: self.command.clone(),
                    },
                    internal_parameters: InternalParameters {
                        engine: ReceiptEngine {
                            kind: result.engine,
                            version: facts.version,
                            kernel: facts.kernel,
                        },
                        confinement: result.confinement.clone(),
                    },
                    resolved_dependencies: made_of,
                },
                run_details: RunDetails {
                    builder: Builder { id: BuilderId::Sandboxctl, version },
                    metadata: RunMetadata {
                        invocation_id: result.id.clone(),
                        started_on: self.started.clone(),
                        finished_on: sandbox_api::time::now(),
                    },
                    byproducts,
                },
            },
        })
    }

    fn write(&self, receipt: &Receipt, tests: Option<TestResult>) -> Result<(), Error> {
        let what = || format!("--receipt {}", self.file.display());
        let unwritten = |source: std::io::Error| Error::Content { what: what(), source };
        let mut text = self.line(receipt).map_err(|error| unwritten(error.into()))?;
        if let Some(tests) = tests {
            let tests = TestStatement::new(receipt, tests);
            text.extend(self.line(&tests).map_err(|error| unwritten(error.into()))?);
        }
        // Its recipient can verify it.
        receipts::open(&text).map_err(|error| Error::usage("--receipt", error.to_string()))?;
        let target = self.place.target().map_err(unwritten)?;
        target.write(&text).map_err(unwritten)
    }

    /// A statement as a line of the file.
    fn line(&self, statement: &impl Serialize) -> serde_json::Result<Vec<u8>> {
        let mut text = match &self.key {
            Some(key) => serde_json::to_vec(&receipts::sign(statement, key)?)?,
            None => serde_json::to_vec(statement)?,
        };
        text.push(b'\n');
        Ok(text)
    }
}

/// The results of the test cases, if a script has some.
pub fn tests_of(workload: &Workload, result: &ExecutionResult) -> Option<TestResult> {
    match workload {
        Workload::Script(script) => TestResult::new(receipts::script(script), result.tests()),
        Workload::Command(_) => None,
    }
}

/// What the names of inputs in a receipt begin with that are not below `/in`. Nothing else is called so.
pub const MOUNT: &str = "mount/";

/// Where an input is, as a name in a receipt.
fn name_of(input: &str) -> String {
    match input.strip_prefix('/') {
        Some(path) => format!("{MOUNT}{path}"),
        None => format!("in/{input}"),
    }
}

/// The digest of a file or directory, unless a signal arrives.
pub fn digest(path: &Path) -> Result<artifacts::InputDigest, Error> {
    let path = path.to_owned();
    cancellable(move |proceed| digest_input(&path, proceed))
}

fn described(name: &str, digest: &artifacts::InputDigest) -> Dependency {
    let mut described = Dependency::new(name, digest.sha256.clone());
    if digest.is_directory {
        described.annotations.insert("files".to_owned(), digest.files.into());
        described.annotations.insert("bytes".to_owned(), digest.bytes.into());
    }
    described
}

fn moment(seconds: u64) -> Option<String> {
    sandbox_api::time::rfc3339(i64::try_from(seconds).ok()?, 0)
}

fn read(what: &str, file: &Path, most: u64) -> Result<Vec<u8>, Error> {
    input::read_at_once(file, most).map_err(|error| Error::unusable(what, file, &error))
}

/// Refuses a private key that the guest could read.
fn check_key(key: &Path, spec: &SandboxSpec) -> Result<(), Error> {
    let io_dir = spec.io_dir.as_deref().map(|it| ("the io dir", it));
    let inputs = input::paths(spec).map(|(_, path)| ("an input", path));
    let root = match &spec.root {
        RootFs::Directory(path) => Some(("the root filesystem", &**path)),
        _ => None,
    };
    // A file may be an input by another name.
    let id = |path: &Path| path.metadata().ok().map(|found| (found.dev(), found.ino()));
    let is_readable = |it: &Path| is_in(key, it) || id(key).is_some_and(|key| id(it) == Some(key));
    match io_dir.into_iter().chain(inputs).chain(root).find(|(_, it)| is_readable(it)) {
        None => Ok(()),
        Some((what, _)) => {
            let why = format!("{} is in {what}, where what runs can read it", key.display());
            Err(Error::usage("--sign", why).with_hint("keep the private key elsewhere"))
        }
    }
}

/// Reads a public key.
pub fn public_key(file: &Path) -> Result<PublicKey, Error> {
    let text = String::from_utf8(read("--key", file, MAX_KEY)?).unwrap_or_default();
    PublicKey::from_pem(&text).map_err(|error| {
        Error::usage("--key", format!("{}: {error}", file.display()))
            .with_hint("the public key is in FILE.pub, beside the private one")
    })
}

/// Reads a receipt.
pub fn read_receipt(file: &Path) -> Result<Opened, Error> {
    let text = read("the receipt", file, MAX_RECEIPT)?;
    receipts::open(&text)
        .map_err(|error| Error::usage(file.display().to_string(), error.to_string()))
}

/// The failure of a receipt that is not by the key.
pub fn unverified(error: &ReceiptError) -> Failure {
    Failure::new(ErrorKind::Policy, error.to_string(), None)
}

pub fn keys(context: &Context<'_>, command: &KeysCommand) -> Result<u8, Error> {
    let KeysCommand::New { file } = command;
    let mut public = file.clone().into_os_string();
    public.push(".pub");
    let public = PathBuf::from(public);
    context.check_output("FILE", file)?;
    let key = SigningKey::generate()
        .map_err(|source| Error::System { what: "random bytes".to_owned(), source })?;
    create(file, 0o600, &key.to_pem())?;
    if let Err(error) = create(&public, 0o644, &key.public().to_pem()) {
        _ = std::fs::remove_file(file);
        return Err(error);
    }
    context.output.text(&format!("{}\n", key.public().id()))?;
    context.output.notice(&format!(
        "keep {} secret; give {} away",
        file.display(),
        public.display()
    ));
    Ok(0)
}

fn create(file: &Path, mode: u32, text: &str) -> Result<(), Error> {
    create_with(file, mode, |created| {
        created.write_all(text.as_bytes())?;
        created.sync_all()
    })
}

/// A new file that is whole, or not there.
fn create_with(
    file: &Path,
    mode: u32,
    write: impl FnOnce(&mut File) -> std::io::Result<()>,
) -> Result<(), Error> {
    let name = file.display().to_string();
    let created = File::options().write(true).create_new(true).mode(mode).open(file);
    let mut created = created.map_err(|error| Error::usage(&*name, input::reason(&error)))?;
    write(&mut created).map_err(|source| {
        _ = std::fs::remove_file(file);
        Error::Content { what: format!("cannot write {name}"), source }
    })
}

/// What `receipt verify --json` prints.
#[derive(Serialize)]
struct Verification<'a> {
    signed: bool,
    /// Whether the key signed it; null without a key.
    verified: Option<bool>,
    subjects: usize,
    /// How the run ended.
    outcome: RecordedOutcome,
    /// The digest of the script; null if it was a command.
    script: Option<&'a str>,
    /// What its tests said; null if it had none.
    tests: Option<TestVerdict>,
    differences: &'a [sandbox_api::artifacts::PathDifference<CheckDifference>],
}

pub fn receipt(context: &Context<'_>, command: &ReceiptCommand) -> Result<u8, Error> {
    let (file, key, artifacts, require_ok, json) = match command {
        ReceiptCommand::Verify { file, key, artifacts, require_ok, json } => {
            (file, key, artifacts, require_ok, json)
        }
        ReceiptCommand::Show { file, json } => return show(context, file, *json),
    };
    let output = context.output;
    let opened = read_receipt(file)?;
    let verified = key.as_deref().map(public_key).transpose()?.map(|key| opened.verify(&key));
    let found = artifacts.as_deref().map(|it| files_of(it, &opened.receipt)).transpose()?;
    let differences =
        found.map(|found| receipts::differences(&opened.receipt, found)).unwrap_or_default();
    let is_bad = matches!(verified, Some(Err(_)));
    let outcome = opened.receipt.predicate.outcome();
    let has_failed = outcome.status != Some(Status::Ok);
    let code = u8::from(is_bad || !differences.is_empty() || (*require_ok && has_failed));
    if *json {
        let verification = Verification {
            signed: opened.is_signed(),
            verified: verified.as_ref().map(Result::is_ok),
            subjects: opened.receipt.subject.len(),
            outcome,
            script: opened.receipt.predicate.dependency(Dependency::SCRIPT),
            tests: opened.tests.as_ref().map(|it| it.predicate.result),
            differences: &differences,
        };
        output.document(&verification)?;
        return Ok(code);
    }
    if let Some(Err(error)) = &verified {
        output.failure(&unverified(error).message, None);
        return Ok(code);
    }
    output.text(&lines(&differences, CheckDifference::as_str))?;
    if differences.is_empty() {
        let files = opened.receipt.subject.iter().filter(|it| it.path().is_some()).count();
        let files = render::count(files, "file", "files");
        let done = match (&verified, artifacts) {
            (Some(_), Some(_)) => format!("verified the signature and {files}\n"),
            (Some(_), None) => format!("verified the signature; the receipt is of {files}\n"),
            (None, Some(_)) if opened.is_signed() => {
                format!("verified {files}; not the signature\n")
            }
            (None, Some(_)) => format!("verified {files}; the receipt is not signed\n"),
            (None, None) if opened.is_signed() => {
                format!("a receipt of {files}; its signature is not verified\n")
            }
            (None, None) => format!("a receipt of {files}; it is not signed\n"),
        };
        output.text(&done)?;
    }
    if has_failed {
        let ended = format!("its run ended with {}", listing::ending(outcome));
        match require_ok {
            true => output.failure(&ended, None),
            false => output.notice(&ended),
        }
    }
    if let Some(TestStatement { predicate: it, .. }) = &opened.tests {
        let (passed, failed) = (it.passed_tests.len(), it.failed_tests.len());
        output.notice(&format!("its test cases: {passed} passed, {failed} failed"));
    }
    if key.is_none() {
        output.notice("without --key anybody may have written this receipt");
    }
    Ok(code)
}

/// `receipt show`: a line for each fact.
fn show(context: &Context<'_>, file: &Path, json: bool) -> Result<u8, Error> {
    let opened = read_receipt(file)?;
    if json {
        return context.output.document(&opened.receipt).map(|()| 0);
    }
    let text = listing::receipt(&opened.receipt, opened.tests.as_ref(), opened.keys());
    context.output.text(&text)?;
    context
        .output
        .notice("nothing is verified: `sandboxctl receipt verify RECEIPT --key PUB` does it");
    Ok(0)
}

/// The files of a directory, without what `--artifacts-dir` adds: files of these names count only if
/// the receipt is of them.
fn files_of(directory: &Path, receipt: &Receipt) -> Result<Vec<receipts::FoundFile>, Error> {
    let refuse =
        |why: String| Error::usage("--artifacts", format!("{}: {why}", directory.display()));
    match directory.metadata() {
        Ok(found) if found.is_dir() => {}
        Ok(_) => return Err(refuse("it is not a directory".to_owned())),
        Err(error) => return Err(refuse(input::reason(&error))),
    }
    let known: HashSet<Vec<u8>> =
        receipt.subject.iter().filter_map(|it| it.path().map(<[u8]>::to_vec)).collect();
    let added = [artifacts::MANIFEST, artifacts::CHECKSUMS];
    let added = added.map(str::as_bytes).into_iter().filter(|name| !known.contains(*name));
    let added: Vec<_> = added.collect();
    let directory = directory.to_owned();
    let files = cancellable(move |proceed| {
        artifacts::digest_files(&directory, |path| known.contains(path), proceed)
    })?;
    let files = files.into_iter().map(|file| (file.path, file.sha256));
    // What is not a regular file has no digest, and differs from every one of a receipt.
    Ok(files.filter(|(path, _)| !added.contains(&&**path)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_that_cannot_be_written_whole_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("k");
        let full = |created: &mut File| {
            created.write_all(b"half")?;
            Err(std::io::ErrorKind::StorageFull.into())
        };
        let error = create_with(&file, 0o600, full).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DiskFull);
        assert!(!file.exists());
        create(&file, 0o600, "whole").unwrap();
        let again = create(&file, 0o600, "other").unwrap_err().to_text();
        assert!(!again.contains("FILE") && again.contains("k: "), "{again}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "whole");
    }

    #[test]
    fn private_key_that_the_guest_can_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for directory in ["io", "in", "elsewhere"] {
            std::fs::create_dir(at(directory)).unwrap();
            std::fs::write(at(directory).join("k"), "").unwrap();
        }
        std::os::unix::fs::symlink(at("io/k"), at("link")).unwrap();
        let spec = SandboxSpec::new()
            .io_dir(at("io"))
            .input(sandbox_api::Input::path(at("in"), "in"))
            .input(sandbox_api::Input::path(at("elsewhere/k"), "k"));
        for (key, place) in [
            ("io/k", "the io dir"),
            ("link", "the io dir"),
            ("in/k", "an input"),
            ("elsewhere/k", "an input"),
        ] {
            let refused = check_key(&at(key), &spec).unwrap_err().to_text();
            assert!(refused.contains(place), "{key}: {refused}");
        }
        std::fs::write(at("k"), "").unwrap();
        check_key(&at("k"), &spec).unwrap();
    }
}
