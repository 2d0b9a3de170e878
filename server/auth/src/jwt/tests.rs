use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{EncodingKey, Header, encode};
use serde_json::{Value, json};

use super::*;

const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// An issuer with a key of each kind.
struct Issuer {
    dir: tempfile::TempDir,
    keys: Vec<(&'static str, Algorithm, EncodingKey)>,
    config: JwtConfig,
}

fn openssl(args: &[&str]) -> Vec<u8> {
    let output = Command::new("openssl").args(args).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn write_secret(path: &Path, text: &str, mode: u32) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

impl Issuer {
    fn new() -> Self {
        let rsa = openssl(&["genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"]);
        let ec = openssl(&["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]);
        let ed = openssl(&["genpkey", "-algorithm", "ED25519"]);
        let keys = vec![
            ("rsa", Algorithm::RS256, EncodingKey::from_rsa_pem(&rsa).unwrap()),
            ("ec", Algorithm::ES256, EncodingKey::from_ec_pem(&ec).unwrap()),
            ("ed", Algorithm::EdDSA, EncodingKey::from_ed_pem(&ed).unwrap()),
        ];
        let dir = tempfile::tempdir().unwrap();
        let secret = dir.path().join("secret");
        write_secret(&secret, SECRET, 0o600);
        let config = JwtConfig {
            issuer: "https://issuer.example.org".to_owned(),
            audience: "sandboxes".to_owned(),
            jwks_file: Some(dir.path().join("jwks.json")),
            secret_file: Some(secret),
        };
        let issuer = Self { dir, keys, config };
        issuer.publish(&issuer.set());
        issuer
    }

    fn set(&self) -> Value {
        let jwk = |(id, algorithm, key): &(&str, Algorithm, EncodingKey)| {
            let mut jwk = Jwk::from_encoding_key(key, *algorithm).unwrap();
            jwk.common.key_id = Some((*id).to_owned());
            serde_json::to_value(jwk).unwrap()
        };
        json!({ "keys": self.keys.iter().map(jwk).collect::<Vec<_>>() })
    }

    fn publish(&self, set: &Value) {
        fs::write(self.dir.path().join("jwks.json"), set.to_string()).unwrap();
    }

    fn read(&self) -> Result<JwtKeys, KeyFileError> {
        JwtKeys::read(&self.config)
    }

    fn sign(&self, which: &str, claims: &Value) -> String {
        let (id, algorithm, key) = self.keys.iter().find(|key| key.0 == which).unwrap();
        let header = Header { kid: Some((*id).to_owned()), ..Header::new(*algorithm) };
        encode(&header, claims, key).unwrap()
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

fn claims(change: impl FnOnce(&mut serde_json::Map<String, Value>)) -> Value {
    let mut claims = json!({
        "iss": "https://issuer.example.org",
        "aud": "sandboxes",
        "sub": "alice",
        "exp": now() + 600,
        "scope": "openid executions:write",
    });
    change(claims.as_object_mut().unwrap());
    claims
}

#[test]
fn token_of_each_kind_of_key_names_its_caller() {
    let issuer = Issuer::new();
    let keys = issuer.read().unwrap();
    let valid = claims(|_| ());
    for which in ["rsa", "ec", "ed"] {
        let caller = keys.check(&issuer.sign(which, &valid)).unwrap();
        assert_eq!(caller.subject.as_str(), "alice", "{which}");
        assert_eq!(caller.scopes, [Scope::ExecutionsWrite]);
    }
    let secret = EncodingKey::from_secret(SECRET.as_bytes());
    let token = encode(&Header::new(Algorithm::HS256), &valid, &secret).unwrap();
    assert_eq!(keys.check(&token).unwrap().subject.as_str(), "alice");
    let listed = claims(|it| _ = it.insert("scopes".into(), json!(["sandboxes", "admin"])));
    let caller = keys.check(&issuer.sign("ed", &listed)).unwrap();
    assert_eq!(caller.scopes, [Scope::ExecutionsWrite, Scope::Sandboxes, Scope::Admin]);
}

#[test]
fn claims_that_are_missing_or_wrong_are_refused() {
    let issuer = Issuer::new();
    let keys = issuer.read().unwrap();
    let refused = |change: &dyn Fn(&mut serde_json::Map<String, Value>)| {
        keys.check(&issuer.sign("ed", &claims(|it| change(it)))).unwrap_err()
    };
    for claim in REQUIRED {
        let refusal = refused(&|it| _ = it.remove(claim));
        assert_eq!(refusal, JwtRefusal::Claims, "{claim}");
    }
    let set = |name: &'static str, value: Value| {
        refused(&move |it| _ = it.insert(name.to_owned(), value.clone()))
    };
    assert_eq!(set("iss", json!("https://other.example.org")), JwtRefusal::Issuer);
    assert_eq!(set("aud", json!("others")), JwtRefusal::Audience);
    assert_eq!(set("aud", json!(["others", "more"])), JwtRefusal::Audience);
    assert_eq!(set("exp", json!(now() - 60)), JwtRefusal::Expired);
    assert_eq!(set("nbf", json!(now() + 600)), JwtRefusal::NotYet);
    assert_eq!(set("sub", json!("")), JwtRefusal::Subject);
    assert_eq!(set("sub", json!("a\nb")), JwtRefusal::Subject);
    // The user of the server's socket.
    assert_eq!(set("sub", json!("local")), JwtRefusal::Subject);
    let one = "https://issuer.example.org";
    for odd in [
        set("sub", json!(1)),
        set("sub", json!(["alice"])),
        set("exp", json!("soon")),
        set("scope", json!(7)),
        // A token is of one issuer: the library takes a list too.
        set("iss", json!([one])),
        set("iss", json!([one, one])),
    ] {
        assert_eq!(odd, JwtRefusal::Claims);
    }
    // Of audiences there may be several.
    let listed = claims(|it| _ = it.insert("aud".into(), json!(["others", "sandboxes"])));
    keys.check(&issuer.sign("ed", &listed)).unwrap();
}

#[test]
fn forged_tokens_are_refused() {
    let issuer = Issuer::new();
    let keys = issuer.read().unwrap();
    let valid = claims(|_| ());
    let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let payload = part(valid.clone());

    // Without a signature.
    for algorithm in ["none", "None", "NONE"] {
        let header = part(json!({ "alg": algorithm, "typ": "JWT" }));
        let refusal = keys.check(&format!("{header}.{payload}.")).unwrap_err();
        assert_eq!(refusal, JwtRefusal::Unreadable);
    }
    // Signed with the public key as if it were a secret.
    let public = issuer.set()["keys"][0]["n"].as_str().unwrap().to_owned();
    for kid in [None, Some("rsa".to_owned())] {
        let header = Header { kid, ..Header::new(Algorithm::HS256) };
        let key = EncodingKey::from_secret(public.as_bytes());
        let refusal = keys.check(&encode(&header, &valid, &key).unwrap()).unwrap_err();
        assert_eq!(refusal, JwtRefusal::Signature);
    }
    // Another key of the same name.
    let other = Issuer::new();
    for which in ["rsa", "ec", "ed"] {
        let refusal = keys.check(&other.sign(which, &valid)).unwrap_err();
        assert_eq!(refusal, JwtRefusal::Signature, "{which}");
    }
    // The key id of a different algorithm, and unknown ones.
    let (_, _, ed) = &issuer.keys[2];
    for kid in ["rsa", "unknown", "../../etc/passwd"] {
        let header = Header { kid: Some(kid.to_owned()), ..Header::new(Algorithm::EdDSA) };
        let refusal = keys.check(&encode(&header, &valid, ed).unwrap()).unwrap_err();
        assert_eq!(refusal, JwtRefusal::UnknownKey, "{kid}");
    }
    // A changed payload, too few and too many parts, and text that is not a token.
    let token = issuer.sign("ed", &valid);
    let [header, _, signature] = token.split('.').collect::<Vec<_>>()[..] else { panic!() };
    let admin = part(claims(|it| _ = it.insert("scope".into(), json!("admin"))));
    let changed = keys.check(&format!("{header}.{admin}.{signature}")).unwrap_err();
    assert_eq!(changed, JwtRefusal::Signature);
    for text in
        ["", "a", "a.b.c", &token[..token.len() - 4], &format!("{token}.x"), &format!("{header}..")]
    {
        assert!(keys.check(text).is_err(), "{text}");
    }
    let critical = Header { crit: Some(vec!["b64".to_owned()]), ..Header::new(Algorithm::EdDSA) };
    let token = encode(&critical, &valid, ed).unwrap();
    assert_eq!(keys.check(&token).unwrap_err(), JwtRefusal::Unreadable);
    let huge = claims(|it| _ = it.insert("x".into(), json!("x".repeat(MAX_JWT_BYTES))));
    assert_eq!(keys.check(&issuer.sign("ed", &huge)).unwrap_err(), JwtRefusal::TooLong);
}

#[test]
fn key_sets_that_leave_something_open_are_refused() {
    let issuer = Issuer::new();
    let refused = |change: &dyn Fn(&mut Value)| {
        let mut set = issuer.set();
        change(&mut set);
        issuer.publish(&set);
        issuer.read().unwrap_err().to_string()
    };
    let remove = |member: &'static str| {
        move |set: &mut Value| _ = set["keys"][0].as_object_mut().unwrap().remove(member)
    };
    assert!(refused(&remove("alg")).contains("the key rsa has no `alg`"));
    assert!(refused(&remove("kid")).contains("has no `kid`, and there are several"));
    assert!(refused(&|set| set["keys"][0]["alg"] = json!("HS256")).contains("other than"));
    assert!(refused(&|set| set["keys"][0]["alg"] = json!("ES256")).contains("of the kind"));
    assert!(refused(&|set| set["keys"][1]["kid"] = json!("rsa")).contains("two keys are rsa"));
    let secret = json!({ "kty": "oct", "k": "AAAA", "alg": "HS256", "kid": "s" });
    assert!(refused(&|set| set["keys"][0] = secret.clone()).contains("a secret has a file"));
    assert!(refused(&|set| set["keys"] = json!([])).contains("0 keys"));
    fs::write(issuer.dir.path().join("jwks.json"), "{").unwrap();
    assert!(issuer.read().unwrap_err().hint().is_some());
}

#[test]
fn secret_that_others_can_read_or_guess_is_refused() {
    let mut issuer = Issuer::new();
    issuer.config.jwks_file = None;
    issuer.read().unwrap();
    let secret = issuer.config.secret_file.clone().unwrap();
    write_secret(&secret, SECRET, 0o644);
    assert!(issuer.read().unwrap_err().to_string().contains("open to others"));
    write_secret(&secret, &format!("{}\n", &SECRET[1..]), 0o600);
    assert!(issuer.read().unwrap_err().to_string().contains("fewer than 32 bytes"));
    // Neither is a file, and no wait ends with one.
    let fifo = issuer.dir.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR).unwrap();
    for path in [issuer.dir.path(), &fifo] {
        issuer.config.secret_file = Some(path.to_owned());
        assert!(matches!(issuer.read(), Err(KeyFileError::Read { .. })));
    }
    issuer.config.secret_file = None;
    assert!(matches!(issuer.read(), Err(KeyFileError::NoKey { .. })));
}
