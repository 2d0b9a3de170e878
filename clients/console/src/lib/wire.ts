/** The data of the HTTP API. Its types are generated for the TypeScript client; the console has no copy. */
export type * from "../../../typescript/src/core/generated";

import type * as api from "../../../typescript/src/core/generated";

/** The document of an execution. */
export type Execution = api.ResultExecution | api.ExecExecution;

/** An entry of a list, with the image that it runs in, and its subject if the list has those of others. */
export type ExecutionSummary = api.ExecutionSummary & { image?: string | null; subject?: string | null };
export type ExecutionList = { executions: ExecutionSummary[]; next_cursor: string | null };

/** Who is signed in: the answer of `/v1/session`. */
export type Session = { subject: string; scopes: string[]; expires_at: string | null };

/** What is wrong with a script: an entry of the answer of `/v1/check`. */
export type CheckProblem = { line: number; message: string; severity: "error" | "warning" };
