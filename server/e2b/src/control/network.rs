//! The network of a sandbox. E2B's default is the open internet, from which lists take; the service's is nothing,
//! to which a list of hosts adds. So what a list adds is asked for, what it takes is not there, and what neither
//! can express is refused.

use std::net::IpAddr;

use axum::http::StatusCode;
use sandbox_api::service::NetworkRequest;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::request::{About, Asked, Result};
use crate::error::Error;

/// What means every host.
const ALL: &[&str] = &["0.0.0.0/0", "::/0", "*"];

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct NetworkConfig {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_out: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deny_out: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_public_traffic: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mask_request_host: Option<String>,
    #[serde(skip_serializing)]
    rules: Option<Value>,
    #[serde(skip_serializing)]
    egress_proxy: Option<Value>,
    #[serde(skip_serializing)]
    dns_servers: Option<Vec<Value>>,
    #[serde(skip_serializing)]
    https_ports: Option<Vec<Value>>,
    /// In updates.
    #[serde(skip_serializing, rename = "allow_internet_access", alias = "allowInternetAccess")]
    internet: Option<bool>,
}

impl NetworkConfig {
    /// Refuses a sandbox that is to reach every host: it would reach those alone that the operator names.
    pub fn refuse_every_host(&self) -> Result<()> {
        let allowed = self.allow_out.as_deref().unwrap_or_default();
        match allowed.iter().any(|host| is_all(host)) {
            true => Err(Error::not_offered(
                "every host (allowOut): without allowOut a sandbox may reach all that its operator names, by \
                 network.allow or `serve --allow HOST`",
            )),
            false => Ok(()),
        }
    }

    /// The hosts that the sandbox may reach, where `usual` are those of one that asks for nothing.
    pub fn plan(&self, internet: Option<bool>, usual: &NetworkRequest) -> Result<NetworkRequest> {
        self.refuse_others()?;
        let allowed = self.allow_out.as_deref().unwrap_or_default();
        let denied = self.deny_out.as_deref().unwrap_or_default();
        let is_open = internet != Some(false) && !denied.iter().any(|host| is_all(host));
        if !is_open && allowed.iter().any(|host| is_all(host)) {
            let words = "hosts but those that it lists: allowOut cannot be every host";
            return Err(Error::not_offered(words));
        }
        // Those that a name cannot mean need no rule against them.
        let is_denied = |rule: &&String| denied.iter().any(|host| host_of(rule) == host);
        let mut allow: Vec<String> = match is_open {
            true => usual.allow.iter().filter(|rule| !is_denied(rule)).cloned().collect(),
            false => Vec::new(),
        };
        if is_open
            && usual.allow.iter().any(|rule| {
                rule.starts_with("*.") && denied.iter().any(|host| is_below(host, rule))
            })
        {
            let words = "a list of hosts that are denied below a domain that it allows";
            return Err(Error::not_offered(words));
        }
        for host in allowed.iter().filter(|host| !is_all(host)) {
            if host.contains('/') {
                let words =
                    format!("networks by range ('{host}'): allowOut lists names and addresses");
                return Err(Error::not_offered(&words));
            }
            if !allow.contains(host) {
                allow.push(host.clone());
            }
        }
        Ok(NetworkRequest { allow })
    }

    fn refuse_others(&self) -> Result<()> {
        let is_some = |value: &Option<Value>| match value {
            None | Some(Value::Null) => false,
            Some(Value::Object(members)) => !members.is_empty(),
            Some(_) => true,
        };
        let is_list =
            |list: &Option<Vec<Value>>| list.as_ref().is_some_and(|list| !list.is_empty());
        for (is_asked, what) in [
            (is_some(&self.rules), "rules that change requests to hosts (`rules`)"),
            (is_some(&self.egress_proxy), "proxies for what leaves a sandbox (`egressProxy`)"),
            (is_list(&self.dns_servers), "other DNS servers (`dnsServers`)"),
            (is_list(&self.https_ports), "other ports of HTTPS (`httpsPorts`)"),
        ] {
            if is_asked {
                return Err(Error::not_offered(what));
            }
        }
        Ok(())
    }

    /// What of it the sandbox's description gives back.
    pub fn given(&self) -> Option<Value> {
        serde_json::to_value(self).ok().filter(|it| it.as_object().is_some_and(|it| !it.is_empty()))
    }
}

/// Whether it means every host.
fn is_all(host: &str) -> bool {
    ALL.contains(&host)
}

/// A rule's host, without its port.
fn host_of(rule: &str) -> &str {
    match rule.rsplit_once(':').filter(|_| rule.parse::<IpAddr>().is_err()) {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
            host.trim_start_matches('[').trim_end_matches(']')
        }
        _ => rule,
    }
}

/// Whether a name is below the domain of `*.DOMAIN`.
fn is_below(host: &str, rule: &str) -> bool {
    host_of(rule).strip_prefix('*').is_some_and(|domain| host.ends_with(domain))
}

/// Replaces the lists. The hosts of a sandbox are fixed when it is created: what comes to the same is done.
pub(super) async fn update(about: About, Asked(asked): Asked<NetworkConfig>) -> Result<StatusCode> {
    let sandbox = about.sandbox().await?;
    let internet = asked.internet.or(sandbox.marker.internet);
    let planned = asked.plan(internet, &about.app.settings().network)?;
    let is_same = |one: &NetworkRequest, other: &NetworkRequest| {
        one.allow.len() == other.allow.len()
            && one.allow.iter().all(|rule| other.allow.contains(rule))
    };
    match is_same(&planned, &sandbox.view.spec.network) {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(Error::not_offered(
            "other hosts for a sandbox that exists: its network is fixed when it is created",
        )),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn plan(config: Value, internet: Option<bool>) -> Result<Vec<String>, StatusCode> {
        let usual = ["pypi.org:443", "*.example.org:443"].map(str::to_owned).to_vec();
        let config: NetworkConfig = serde_json::from_value(config).unwrap();
        let planned = config.plan(internet, &NetworkRequest { allow: usual });
        planned.map(|it| it.allow).map_err(|error| error.status())
    }

    #[test]
    fn lists_of_hosts_are_what_a_list_of_allowed_hosts_can_express() {
        let list = |hosts: &[&str]| Ok(hosts.iter().map(|host| (*host).to_owned()).collect());
        let usual = ["pypi.org:443", "*.example.org:443"];
        assert_eq!(plan(json!({}), None), list(&usual));
        assert_eq!(plan(json!({}), Some(true)), list(&usual));
        assert_eq!(plan(json!({}), Some(false)), list(&[]));
        assert_eq!(plan(json!({ "denyOut": ["0.0.0.0/0"] }), Some(true)), list(&[]));
        assert_eq!(plan(json!({ "denyOut": ["8.8.8.8", "10.0.0.0/8"] }), None), list(&usual));
        assert_eq!(plan(json!({ "denyOut": ["pypi.org"] }), None), list(&usual[1..]));
        let only = json!({ "denyOut": ["0.0.0.0/0"], "allowOut": ["1.1.1.1", "a.example:8080"] });
        assert_eq!(plan(only, None), list(&["1.1.1.1", "a.example:8080"]));
        let more = json!({ "allowOut": ["0.0.0.0/0", "pypi.org"] });
        assert_eq!(plan(more, None), list(&[&usual[..], &["pypi.org"]].concat()));
    }

    #[test]
    fn what_no_list_can_express_is_refused() {
        for config in [
            json!({ "denyOut": ["a.example.org"] }),
            json!({ "denyOut": ["0.0.0.0/0"], "allowOut": ["0.0.0.0/0"] }),
            json!({ "allowOut": ["10.0.0.0/8"] }),
            json!({ "rules": { "a.example": [{ "transform": {} }] } }),
            json!({ "egressProxy": { "address": "a:1080" } }),
            json!({ "dnsServers": ["1.1.1.1"] }),
        ] {
            assert_eq!(plan(config.clone(), None), Err(StatusCode::NOT_IMPLEMENTED), "{config}");
        }
        let harmless = json!({ "rules": {}, "egressProxy": null, "dnsServers": [], "new": 1 });
        assert!(plan(harmless, None).is_ok());
    }

    #[test]
    fn host_of_a_rule_is_without_its_port() {
        for (rule, host) in [
            ("pypi.org", "pypi.org"),
            ("pypi.org:443", "pypi.org"),
            ("2001:db8::1", "2001:db8::1"),
            ("[2001:db8::1]:443", "2001:db8::1"),
        ] {
            assert_eq!(host_of(rule), host);
        }
    }
}
