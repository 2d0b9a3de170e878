//! Methods of requests that are built member by member.

/// Methods that set a member and return the whole; those of `some` set one that is
/// optional, and those of `text` an optional text.
macro_rules! setters {
    (
        $name:ident { $($(#[$doc:meta])* $member:ident: $kind:ty,)* }
        some { $($(#[$some_doc:meta])* $some:ident: $some_kind:ty,)* }
        $(text { $($(#[$text_doc:meta])* $text:ident,)* })?
    ) => {
        impl $name {
            $(
                $(#[$doc])*
                #[must_use]
                pub fn $member(mut self, $member: $kind) -> Self {
                    self.$member = $member;
                    self
                }
            )*
            $(
                $(#[$some_doc])*
                #[must_use]
                pub fn $some(mut self, $some: $some_kind) -> Self {
                    self.$some = Some($some);
                    self
                }
            )*
            $($(
                $(#[$text_doc])*
                #[must_use]
                pub fn $text(mut self, $text: impl Into<String>) -> Self {
                    self.$text = Some($text.into());
                    self
                }
            )*)?
        }
    };
}
pub(crate) use setters;
