/** The data of the HTTP API. Its types are generated for the TypeScript client; the console has no copy. */
export type * from "../../../typescript/src/core/generated";

import type { ExecExecution, ResultExecution } from "../../../typescript/src/core/generated";

/** The document of an execution. */
export type Execution = ResultExecution | ExecExecution;

/** Who is signed in: the answer of `/v1/session`. */
export type Session = { subject: string; scopes: string[]; expires_at: string | null };
