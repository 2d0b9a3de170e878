/** Who is signed in. The session itself is a cookie that no script can read, with a proof that only this origin has. */
import { ApiError, get, keepProof, onUnauthenticated, send } from "./api";
import { href, parse, replace } from "./route";
import { store, useStore } from "./store";
import type { SessionView } from "./wire";

/** `undefined` until the service has said it, `null` without a session. */
const session = store<SessionView | null | undefined>(undefined);

/** The session; pages are shown only with one. */
export function useSession(): { subject: string; can(scope: string): boolean } {
  const current = useStore(session);
  const scopes = current?.scopes ?? [];
  return {
    subject: current?.subject ?? "",
    can: (scope) => scopes.includes(scope) || scopes.includes("admin"),
  };
}

export function useSignedIn(): "unknown" | "yes" | "no" {
  const current = useStore(session);
  return current === undefined ? "unknown" : current ? "yes" : "no";
}

/** Whose pages this visit has shown. */
let subject: string | undefined;

function begin(current: SessionView): void {
  subject = current.subject;
  session.set(current);
}

/** Asks the service who this is. A sign-in meanwhile counts for more than its answer. */
export async function loadSession(): Promise<void> {
  try {
    const current = await get<SessionView>("/session");
    if (session.get() === undefined) begin(current);
  } catch (error) {
    if (!(error instanceof ApiError && error.status === 401)) throw error;
    if (session.get() === undefined) session.set(null);
  }
}

/** Signs in with a token, or with the code of a one-time link, and goes to `target`. */
export async function signIn(credential: { token: string } | { code: string }, target: string): Promise<void> {
  const current = await send<SessionView>("POST", "/session", credential);
  keepProof(current.proof);
  if (subject !== undefined && subject !== current.subject) return leave(href(["executions"]));
  begin(current);
  replace(target);
}

/** Loads the page anew: nothing of a subject stays in its memory for the next one. */
function leave(target: string): void {
  history.replaceState(null, "", target);
  location.reload();
}

/** Signs out. */
export async function signOut(): Promise<void> {
  await send("DELETE", "/session").catch(() => {});
  keepProof(null);
  leave(href(["sign-in"]));
}

/** Where to go after signing in: a place of this page, never another address. */
export function returnPath(query: URLSearchParams): string {
  const target = query.get("return") ?? "";
  return target.startsWith("#/") && parse(target).path[0] !== "sign-in" ? target : href(["executions"]);
}

onUnauthenticated(() => {
  if (session.get() === null) return;
  session.set(null);
  replace(href(["sign-in"], { return: location.hash, expired: "1" }));
});
