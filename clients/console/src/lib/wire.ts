/** The data of the HTTP API. Its types are generated for the TypeScript client; the console has no copy. */
export type * from "../../../typescript/src/core/generated";

import type * as api from "../../../typescript/src/core/generated";

/** The document of an execution. */
export type Execution = api.ResultExecution | api.ExecExecution;
