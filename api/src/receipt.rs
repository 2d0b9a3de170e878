//! Receipts: the inputs and outputs of a run. An in-toto Statement v1 with SLSA provenance v1.

use std::collections::BTreeMap;

use sandbox_dirfd::is_random_hex;
use sandbox_protocol::Base64;
use sandbox_protocol::message::{Confinement, TestCase, TestStatus};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::changes::CommitPolicy;
use crate::engine_kind::EngineKind;
use crate::outcome::Status;
use crate::spec::SandboxSpec;

/// A receipt: an in-toto Statement v1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Receipt {
    /// The type and version of the statement.
    #[serde(rename = "_type")]
    pub statement: StatementType,
    /// What was made: the artifacts, or else the files that changed, or else the result. By name.
    pub subject: Vec<Subject>,
    /// What is said of it.
    #[serde(rename = "predicateType")]
    pub predicate_type: PredicateType,
    /// How it was made.
    pub predicate: Provenance,
}

/// The type and version of a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum StatementType {
    /// Version 1.
    #[serde(rename = "https://in-toto.io/Statement/v1")]
    V1,
}

/// The type and version of what is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PredicateType {
    /// SLSA provenance, version 1.
    #[serde(rename = "https://slsa.dev/provenance/v1")]
    Provenance,
}

/// Something that was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "ReceiptSubject")]
pub struct Subject {
    /// Its path, or [`RESULT`](Self::RESULT); lossy where the path is not UTF-8.
    pub name: String,
    /// Its content.
    pub digest: DigestSet,
    /// Further facts about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<SubjectAnnotations>,
}

/// Further facts about a subject.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SubjectAnnotations {
    /// The path's bytes, where they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<Base64>,
    /// It is no file, but the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<SubjectKind>,
}

/// A subject that is not a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SubjectKind {
    /// The result of the script, as JSON.
    Result,
}

/// The digests of a content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DigestSet {
    /// SHA-256, in lower-case hexadecimal.
    #[schemars(extend("pattern" = "^[0-9a-f]{64}$"))]
    pub sha256: String,
}

impl DigestSet {
    /// Whether it has the form of a digest.
    pub fn is_valid(&self) -> bool {
        is_random_hex::<32>(&self.sha256)
    }
}

impl Subject {
    /// The name of the subject that stands for the result, where a run made no files.
    pub const RESULT: &str = "result";

    /// A file, by its path.
    pub fn file(path: &[u8], sha256: String) -> Self {
        let name = String::from_utf8_lossy(path).into_owned();
        let is_exact = name.as_bytes() == path;
        let annotations = (!is_exact)
            .then(|| SubjectAnnotations { path_b64: Some(Base64(path.to_vec())), kind: None });
        Self { name, digest: DigestSet { sha256 }, annotations }
    }

    /// The result of a run that made no files.
    pub fn result(sha256: String) -> Self {
        let annotations = SubjectAnnotations { path_b64: None, kind: Some(SubjectKind::Result) };
        let name = Self::RESULT.to_owned();
        Self { name, digest: DigestSet { sha256 }, annotations: Some(annotations) }
    }

    /// The bytes of its path; `None` if it is no file.
    pub fn path(&self) -> Option<&[u8]> {
        match &self.annotations {
            Some(SubjectAnnotations { kind: Some(SubjectKind::Result), .. }) => None,
            Some(SubjectAnnotations { path_b64: Some(path), .. }) => Some(&path.0),
            _ => Some(self.name.as_bytes()),
        }
    }
}

/// How something was made: SLSA provenance v1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Provenance {
    /// The request, and what the run was made of.
    pub build_definition: BuildDefinition,
    /// The run itself.
    pub run_details: RunDetails,
}

/// The request, and what the run was made of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BuildDefinition {
    /// What the parameters mean.
    pub build_type: BuildType,
    /// The request.
    pub external_parameters: ExternalParameters,
    /// Where it ran.
    pub internal_parameters: InternalParameters,
    /// What it was made of: script, arguments, agent, image, inputs.
    pub resolved_dependencies: Vec<Dependency>,
}

/// What ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BuildType {
    /// A Luau script.
    #[serde(rename = "urn:sandboxctl:script:v1")]
    Script,
    /// A command.
    #[serde(rename = "urn:sandboxctl:command:v1")]
    Command,
}

/// The request, without the paths of its host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExternalParameters {
    /// The sandbox: its policy and limits. Io dir, inputs and a root filesystem on the host are not
    /// named: their digests are among the dependencies.
    pub sandbox: SandboxSpec,
    /// Which files are the artifacts; empty if the subjects are the changed files.
    pub artifacts: Vec<String>,
    /// When the changes of the io dir were to be committed; null if it was not staged.
    pub commit: Option<CommitPolicy>,
    /// The seed of the script's random numbers; null if they are others each time.
    pub seed: Option<u32>,
    /// The script's time, in RFC 3339; null if it is that of the machine.
    pub now: Option<String>,
    /// The command, if the receipt was asked to have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<RecordedCommand>,
}

/// A command as a receipt has it, if it was asked to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecordedCommand {
    /// What ran.
    pub line: RecordedLine,
    /// The working directory that was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

/// The words of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RecordedLine {
    /// A program and its arguments.
    Argv(Vec<String>),
    /// A line for the shell.
    Shell(String),
}

/// Where it ran.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InternalParameters {
    /// The engine.
    pub engine: ReceiptEngine,
    /// The confinement beyond the container.
    pub confinement: Confinement,
}

/// The engine of a receipt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReceiptEngine {
    /// Its kind.
    pub kind: EngineKind,
    /// Its name and version.
    pub version: String,
    /// The version of its kernel.
    pub kernel: String,
}

/// Something that it was made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Dependency {
    /// `script`, `command`, `args`, `env`, `cwd`, `agent`, `image`, `rootfs`, `io`; `in/` and the name of
    /// an input, or `mount/` and the path of one that is elsewhere.
    pub name: String,
    /// Its content: of a file; of a directory, that of its listing; of an image, its id.
    pub digest: DigestSet,
    /// Further facts: of a directory, the number of files and bytes; of an image, its reference.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub annotations: Map<String, Value>,
}

/// The run itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunDetails {
    /// The program that made it.
    pub builder: Builder,
    /// When it ran.
    pub metadata: RunMetadata,
    /// What else came of it: `outcome`; `network` where hosts were allowed; `tool_calls` where the script called tools of the host; `tests` where the script had
    /// test cases, whose results are a statement beside the receipt.
    pub byproducts: Vec<Dependency>,
}

/// The program that ran it and wrote the receipt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Builder {
    /// The program.
    pub id: BuilderId,
    /// Its version, by its name.
    pub version: BTreeMap<String, String>,
}

/// The program that makes receipts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BuilderId {
    /// sandboxctl.
    #[serde(rename = "urn:sandboxctl")]
    Sandboxctl,
}

/// When it ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RunMetadata {
    /// The id of the run.
    pub invocation_id: String,
    /// When it was launched, in RFC 3339.
    pub started_on: String,
    /// When its result was known, in RFC 3339.
    pub finished_on: String,
}

impl Dependency {
    /// The name of the script.
    pub const SCRIPT: &str = "script";
    /// The name of the arguments of a script.
    pub const ARGS: &str = "args";
    /// The name of a command's words.
    pub const COMMAND: &str = "command";
    /// The name of the environment variables that the caller set for a command.
    pub const ENV: &str = "env";
    /// The name of a command's working directory.
    pub const CWD: &str = "cwd";
    /// The name of the agent.
    pub const AGENT: &str = "agent";
    /// The name of the image that programs ran in.
    pub const IMAGE: &str = "image";
    /// The name of the directory or archive that programs ran in.
    pub const ROOTFS: &str = "rootfs";
    /// The name of the io dir, where it had files before the run.
    pub const IO: &str = "io";
    /// The name of the byproduct that is how the run ended.
    pub const OUTCOME: &str = "outcome";
    /// The name of the byproduct that is the hosts that were reached and refused.
    pub const NETWORK: &str = "network";
    /// The name of the byproduct that is the calls of tools of the host.
    pub const TOOL_CALLS: &str = "tool_calls";
    /// The name of the byproduct that is the results of the test cases.
    pub const TESTS: &str = "tests";

    /// A dependency or byproduct of this name and content.
    pub fn new(name: &str, sha256: String) -> Self {
        Self { name: name.to_owned(), digest: DigestSet { sha256 }, annotations: Map::new() }
    }
}

impl Provenance {
    /// The digest of what it was made of, by its name.
    pub fn dependency(&self, name: &str) -> Option<&str> {
        let all = &self.build_definition.resolved_dependencies;
        all.iter().find(|it| it.name == name).map(|it| &*it.digest.sha256)
    }

    /// What else came of it, by its name.
    pub fn byproduct(&self, name: &str) -> Option<&Dependency> {
        self.run_details.byproducts.iter().find(|it| it.name == name)
    }

    /// How the run ended, for people and programs.
    pub fn outcome(&self) -> RecordedOutcome {
        let annotations = self.byproduct(Dependency::OUTCOME).map(|it| &it.annotations);
        let member = |name| annotations.and_then(|it| it.get(name));
        RecordedOutcome {
            status: member("status").and_then(|it| Status::deserialize(it).ok()),
            exit_code: member("exit_code").and_then(|it| u8::deserialize(it).ok()),
        }
    }
}

/// How a run ended, as its receipt has it. `None` where it does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecordedOutcome {
    /// Its status.
    pub status: Option<Status>,
    /// The exit code of the process that ran it.
    pub exit_code: Option<u8>,
}

/// What tests said of what was made: an in-toto Statement v1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TestStatement {
    /// The type and version of the statement.
    #[serde(rename = "_type")]
    pub statement: StatementType,
    /// The subjects of the receipt.
    pub subject: Vec<Subject>,
    /// What is said of them.
    #[serde(rename = "predicateType")]
    pub predicate_type: TestPredicateType,
    /// The results.
    pub predicate: TestResult,
}

/// The type and version of what tests say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TestPredicateType {
    /// in-toto's test result, version 0.1.
    #[serde(rename = "https://in-toto.io/attestation/test-result/v0.1")]
    TestResult,
}

/// The results of test cases. Those that were skipped are in neither list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TestResult {
    /// The result of all together.
    pub result: TestVerdict,
    /// What the tests were: the script.
    pub configuration: Vec<Dependency>,
    /// The names of those that passed, in order.
    pub passed_tests: Vec<String>,
    /// The names of those that failed, in order.
    pub failed_tests: Vec<String>,
}

/// The result of all tests together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum TestVerdict {
    /// Some passed, and none failed.
    Passed,
    /// All were skipped: nothing was tested.
    Warned,
    /// Some failed.
    Failed,
}

impl TestVerdict {
    /// The result of cases of which so many passed and failed.
    pub const fn of(passed: usize, failed: usize) -> Self {
        match (passed, failed) {
            (0, 0) => Self::Warned,
            (_, 0) => Self::Passed,
            _ => Self::Failed,
        }
    }
}

impl TestStatement {
    /// The results of test cases, as a statement beside a receipt.
    pub fn new(receipt: &Receipt, predicate: TestResult) -> Self {
        Self {
            statement: StatementType::V1,
            subject: receipt.subject.clone(),
            predicate_type: TestPredicateType::TestResult,
            predicate,
        }
    }
}

impl TestResult {
    /// The results of the test cases of a script. `None` if it has none.
    pub fn new(script: Dependency, cases: &[TestCase]) -> Option<Self> {
        let names = |status: TestStatus| -> Vec<String> {
            cases.iter().filter(|it| it.status == status).map(|it| it.name.clone()).collect()
        };
        let (passed_tests, failed_tests) = (names(TestStatus::Passed), names(TestStatus::Failed));
        let result = TestVerdict::of(passed_tests.len(), failed_tests.len());
        let configuration = vec![script];
        (!cases.is_empty()).then_some(Self { result, configuration, passed_tests, failed_tests })
    }
}

/// A signed document: a DSSE envelope.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(rename = "SignedEnvelope")]
pub struct Envelope {
    /// The type of the payload.
    pub payload_type: PayloadType,
    /// The bytes that are signed: a [`Receipt`] or a [`TestStatement`] as JSON.
    pub payload: Base64,
    /// At least one.
    pub signatures: Vec<Signature>,
}

sandbox_protocol::words! {
    /// The type of a signed payload.
    #[derive(JsonSchema)]
    pub enum PayloadType {
        /// An in-toto statement.
        InToto = "application/vnd.in-toto+json",
    }
}

/// A signature of an envelope.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Signature {
    /// Which key made it: the SHA-256 of the public key (DER). The signature does not cover it: a
    /// verifier compares it with its key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keyid: Option<String>,
    /// Its bytes.
    pub sig: Base64,
}
