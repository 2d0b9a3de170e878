//! `secrets`: read by name, listed by nothing.

use sandbox_protocol::Base64;

use super::*;

fn sandbox() -> Sandbox {
    let secret =
        |name: &str, value: &[u8]| Secret { name: name.to_owned(), value: Base64(value.to_vec()) };
    let secrets = vec![secret("KEY", b"hunter22"), secret("end", b"\xff\xfe\xfd\xfc")];
    Sandbox { secrets, ..Sandbox::new() }
}

#[test]
fn secret_is_read_by_its_name() {
    let sandbox = sandbox();
    assert_eq!(sandbox.value("return secrets.KEY, #secrets['end']"), json!(["hunter22", 4]));
    assert_eq!(sandbox.value("local name = 'KEY' return secrets[name]"), json!("hunter22"));
}

#[test]
fn unknown_secret_raises() {
    for (source, message) in [
        (
            "return secrets.NO",
            "script:1: there is no secret 'NO' (--secret NO=env:VARIABLE gives one)",
        ),
        (
            "return secrets['NO']",
            "script:1: there is no secret 'NO' (--secret NO=env:VARIABLE gives one)",
        ),
        ("return secrets[1]", "script:1: a secret has a name (string expected, got number)"),
    ] {
        assert_eq!(sandbox().error(source).message, message);
    }
    let message = Sandbox::new().error("return secrets.KEY").message;
    assert!(message.contains("there is no secret 'KEY'"), "{message}");
}

#[test]
fn nothing_lists_secrets() {
    let sandbox = sandbox();
    for source in [
        "return #secrets == 0 and next(secrets) == nil and rawget(secrets, 'KEY') == nil",
        "for _ in pairs(secrets) do return false end return true",
        "for _ in secrets do return false end return true",
        "return tostring(secrets) == 'secrets'",
        "return json.encode(secrets):find('hunter') == nil",
        "return type(getmetatable(secrets)) == 'string'",
        "return not pcall(setmetatable, secrets, {})",
        "return not pcall(function() secrets.KEY = 'other' end)",
        "return not pcall(rawset, secrets, 'KEY', 'other')",
        "return not pcall(function() return secrets.KEY.x.y end)",
    ] {
        assert_eq!(sandbox.value(source), json!(true), "{source}");
    }
    assert_eq!(sandbox.value("return secrets"), json!({}));
}
