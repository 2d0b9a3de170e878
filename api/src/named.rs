//! Parts of documents that are about a file, with its name in the public form.

/// A struct whose first member is a [`WireString`](sandbox_protocol::WireString): in JSON it is text, and
/// beside it there are the bytes where the text is not exact. Attributes of serde and schemars are in
/// brackets.
macro_rules! named {
    (
        $(#[$doc:meta])*
        pub struct $document:ident {
            $(#[doc = $name_doc:literal])* $name:ident / $bytes:ident: $bytes_doc:literal,
            $($(#[doc = $member_doc:literal])* $([$($attribute:meta),+])? $member:ident: $kind:ty,)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $document {
            $(#[doc = $name_doc])*
            pub $name: sandbox_protocol::WireString,
            $($(#[doc = $member_doc])* pub $member: $kind,)*
        }

        const _: () = {
            $(#[$doc])*
            #[derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
            #[serde(deny_unknown_fields)]
            struct Form<'a> {
                $(#[doc = $name_doc])*
                $name: std::borrow::Cow<'a, str>,
                #[doc = $bytes_doc]
                #[serde(skip_serializing_if = "Option::is_none")]
                $bytes: Option<sandbox_protocol::Base64>,
                $($(#[doc = $member_doc])* $($(#[$attribute])+)? $member: std::borrow::Cow<'a, $kind>,)*
            }

            impl serde::Serialize for $document {
                fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                    let Self { $name, $($member),* } = self;
                    let ($name, $bytes) = sandbox_protocol::WireString::parts($name.as_bytes());
                    $(let $member = std::borrow::Cow::Borrowed($member);)*
                    Form { $name, $bytes, $($member),* }.serialize(serializer)
                }
            }

            impl<'de> serde::Deserialize<'de> for $document {
                fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                    let Form { $name, $bytes, $($member),* } = Form::deserialize(from)?;
                    let $name = sandbox_protocol::WireString::from_parts($name.into_owned(), $bytes);
                    Ok(Self { $name, $($member: $member.into_owned()),* })
                }
            }

            impl schemars::JsonSchema for $document {
                fn schema_name() -> std::borrow::Cow<'static, str> {
                    stringify!($document).into()
                }

                fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                    Form::json_schema(generator)
                }
            }
        };
    };
}
pub(crate) use named;
