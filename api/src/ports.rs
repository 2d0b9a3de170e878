//! Ports of a sandbox's loopback that may be reached from outside.

use std::borrow::Cow;
use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use sandbox_protocol::message::ListeningPort;

/// Most ports that are listed.
const MAX_PORTS: usize = 1024;
const ANY: &str = "any";

/// Which TCP ports of a sandbox's loopback may be reached from outside, by who may use the sandbox. In
/// JSON a list, `[8080, 9000]`, or `"any"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ports {
    /// These. None by default.
    Listed(Vec<NonZeroU16>),
    /// All that something listens on.
    Any,
}

impl Default for Ports {
    fn default() -> Self {
        Self::Listed(Vec::new())
    }
}

impl Ports {
    /// Whether this port may be reached.
    pub fn allows(&self, port: u16) -> bool {
        match self {
            Self::Listed(ports) => ports.iter().any(|listed| listed.get() == port),
            Self::Any => port != 0,
        }
    }
}

/// `any`, or one port.
impl FromStr for Ports {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            ANY => Ok(Self::Any),
            port => port
                .parse()
                .map(|port| Self::Listed(vec![port]))
                .map_err(|_| "it is neither a port (1 to 65535) nor 'any'"),
        }
    }
}

/// All of them together.
impl FromIterator<Self> for Ports {
    fn from_iter<I: IntoIterator<Item = Self>>(all: I) -> Self {
        let mut listed = Vec::new();
        for ports in all {
            match ports {
                Self::Listed(ports) => listed.extend(ports),
                Self::Any => return Self::Any,
            }
        }
        Self::Listed(listed)
    }
}

impl Serialize for Ports {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Listed(ports) => ports.serialize(serializer),
            Self::Any => serializer.serialize_str(ANY),
        }
    }
}

impl<'de> Deserialize<'de> for Ports {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Words;

        impl<'de> Visitor<'de> for Words {
            type Value = Ports;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, "a list of ports, or \"{ANY}\"")
            }

            fn visit_str<E: de::Error>(self, word: &str) -> Result<Ports, E> {
                match word {
                    ANY => Ok(Ports::Any),
                    _ => Err(E::invalid_value(de::Unexpected::Str(word), &self)),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Ports, A::Error> {
                let mut ports = Vec::new();
                while let Some(port) = list.next_element::<NonZeroU16>()? {
                    if ports.len() == MAX_PORTS {
                        return Err(de::Error::invalid_length(MAX_PORTS + 1, &self));
                    }
                    ports.push(port);
                }
                ports.sort_unstable();
                ports.dedup();
                Ok(Ports::Listed(ports))
            }
        }

        deserializer.deserialize_any(Words)
    }
}

impl JsonSchema for Ports {
    fn schema_name() -> Cow<'static, str> {
        "Ports".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "The TCP ports of a sandbox's loopback that may be reached from outside: a list, or `any`.",
            "oneOf": [
                {
                    "type": "array",
                    "items": { "type": "integer", "minimum": 1, "maximum": 65535 },
                    "maxItems": MAX_PORTS,
                },
                { "type": "string", "const": ANY },
            ],
        })
    }
}

/// The TCP sockets that listen in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PortList {
    /// By port and address. Those of any address are reached by the sandbox's loopback too.
    pub ports: Vec<ListeningPort>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(json: Value) -> Result<Ports, String> {
        Ports::deserialize(json).map_err(|error| error.to_string())
    }

    #[test]
    fn ports_are_a_list_or_any_in_json() {
        let ports = read(json!([9000, 8080, 8080])).unwrap();
        assert_eq!(serde_json::to_value(&ports).unwrap(), json!([8080, 9000]));
        assert!(ports.allows(8080) && !ports.allows(80) && ports != Ports::default());
        assert_eq!(read(json!([])), Ok(Ports::default()));
        let any = read(json!("any")).unwrap();
        assert_eq!(serde_json::to_value(&any).unwrap(), json!("any"));
        assert!(any.allows(1) && !any.allows(0) && !Ports::default().allows(1));
        for wrong in [json!([0]), json!([65536]), json!(8080), json!("all"), json!(["80"])] {
            read(wrong.clone()).expect_err(&wrong.to_string());
        }
        assert!(read(json!(vec![1; MAX_PORTS + 1])).is_err());
    }
}
