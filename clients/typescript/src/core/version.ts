/** The version of this package, as `package.json` has it. */
export const VERSION = "0.1.0";
/** The version of what it relies on in a binary: the flags of `serve --private`, its first line, its API. */
export const PROTOCOL = 1;
