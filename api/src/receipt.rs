//! Receipts: what a run made of what. An in-toto Statement v1 with SLSA provenance v1.

use std::collections::BTreeMap;

use sandbox_protocol::Base64;
use sandbox_protocol::message::{Confinement, TestCase, TestStatus};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::changes::CommitPolicy;
use crate::engine_kind::EngineKind;
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
    /// More of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<SubjectAnnotations>,
}

/// More of a subject.
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

/// A subject that is no file.
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

impl Subject {
    /// The name of the subject that stands for the result, where a run made no files.
    pub const RESULT: &str = "result";

    /// A file, by its path.
    #[must_use]
    pub fn file(path: &[u8], sha256: String) -> Self {
        let name = String::from_utf8_lossy(path).into_owned();
        let is_exact = name.as_bytes() == path;
        let annotations = (!is_exact)
            .then(|| SubjectAnnotations { path_b64: Some(Base64(path.to_vec())), kind: None });
        Self { name, digest: DigestSet { sha256 }, annotations }
    }

    /// The result of a run that made no files.
    #[must_use]
    pub fn result(sha256: String) -> Self {
        let annotations = SubjectAnnotations { path_b64: None, kind: Some(SubjectKind::Result) };
        let name = Self::RESULT.to_owned();
        Self { name, digest: DigestSet { sha256 }, annotations: Some(annotations) }
    }

    /// The bytes of its path; `None` if it is no file.
    #[must_use]
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
    /// What was asked for.
    pub build_definition: BuildDefinition,
    /// What happened.
    pub run_details: RunDetails,
}

/// What was asked for.
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
    /// Which.
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
    /// `script`, `command`, `args`, `agent`, `image`, `rootfs`, `io`, or `in/` and the name of an input.
    pub name: String,
    /// Its content: of a file; of a directory, that of its listing; of an image, its id.
    pub digest: DigestSet,
    /// More of it: of a directory, the number of files and bytes; of an image, its reference.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub annotations: Map<String, Value>,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunDetails {
    /// Who says so.
    pub builder: Builder,
    /// When it ran.
    pub metadata: RunMetadata,
    /// What else came of it: `outcome`, and `network` where hosts were allowed.
    pub byproducts: Vec<Dependency>,
}

/// Who says so.
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
    /// This one.
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

impl Provenance {
    /// The digest of what it was made of, by its name.
    #[must_use]
    pub fn dependency(&self, name: &str) -> Option<&str> {
        let all = &self.build_definition.resolved_dependencies;
        all.iter().find(|it| it.name == name).map(|it| &*it.digest.sha256)
    }

    /// The digest of what else came of it, by its name.
    #[must_use]
    pub fn byproduct(&self, name: &str) -> Option<&str> {
        let all = &self.run_details.byproducts;
        all.iter().find(|it| it.name == name).map(|it| &*it.digest.sha256)
    }
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
    /// None failed.
    Passed,
    /// Some failed.
    Failed,
}

impl TestStatement {
    /// The results of a script's test cases, as a statement beside its receipt. `None` if it has none.
    #[must_use]
    pub fn new(receipt: &Receipt, cases: &[TestCase]) -> Option<Self> {
        let names = |status: TestStatus| -> Vec<String> {
            cases.iter().filter(|it| it.status == status).map(|it| it.name.clone()).collect()
        };
        let (passed_tests, failed_tests) = (names(TestStatus::Passed), names(TestStatus::Failed));
        let result = match failed_tests.is_empty() {
            true => TestVerdict::Passed,
            false => TestVerdict::Failed,
        };
        let made_of = &receipt.predicate.build_definition.resolved_dependencies;
        let configuration = made_of.iter().filter(|it| it.name == "script").cloned().collect();
        (!cases.is_empty()).then(|| Self {
            statement: StatementType::V1,
            subject: receipt.subject.clone(),
            predicate_type: TestPredicateType::TestResult,
            predicate: TestResult { result, configuration, passed_tests, failed_tests },
        })
    }
}

/// A signed document: a DSSE envelope.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(rename = "SignedEnvelope")]
pub struct Envelope {
    /// The type of the payload.
    pub payload_type: PayloadType,
    /// The bytes that are signed: a [`Receipt`] as JSON.
    pub payload: Base64,
    /// At least one.
    pub signatures: Vec<Signature>,
}

/// The type of a signed payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PayloadType {
    /// An in-toto statement.
    #[serde(rename = "application/vnd.in-toto+json")]
    InToto,
}

impl PayloadType {
    /// Its name, which is signed too.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InToto => "application/vnd.in-toto+json",
        }
    }
}

/// A signature of an envelope.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Signature {
    /// Which key made it: the SHA-256 of the public key (DER). A hint, and not signed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keyid: Option<String>,
    /// Its bytes.
    pub sig: Base64,
}
