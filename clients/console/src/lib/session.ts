/** Who is signed in. The session itself is a cookie that no script can read. */
import { ApiError, get, onUnauthenticated, send } from "./api";
import { href, parse, replace } from "./route";
import { store, useStore } from "./store";
import type { Session } from "./wire";

/** `undefined` until the service has said it, `null` for nobody. */
const session = store<Session | null | undefined>(undefined);

export type CurrentSession = { subject: string; scopes: string[]; can(scope: string): boolean };

/** The session; pages are shown only with one. */
export function useSession(): CurrentSession {
  const current = useStore(session);
  const scopes = current?.scopes ?? [];
  return {
    subject: current?.subject ?? "",
    scopes,
    can: (scope) => scopes.includes(scope) || scopes.includes("admin"),
  };
}

export function useSignedIn(): "unknown" | "yes" | "no" {
  const current = useStore(session);
  return current === undefined ? "unknown" : current ? "yes" : "no";
}

/** Asks the service who this is. */
export async function loadSession(): Promise<void> {
  try {
    session.set(await get<Session>("/session"));
  } catch (error) {
    if (!(error instanceof ApiError && error.status === 401)) throw error;
    session.set(null);
  }
}

/** Signs in with a token, or with the code of a one-time link. */
export async function signIn(credential: { token: string } | { code: string }): Promise<void> {
  session.set(await send<Session>("POST", "/session", credential));
}

/** Signs out. Nothing of this subject stays in the memory of the page for the next one. */
export async function signOut(): Promise<void> {
  await send("DELETE", "/session").catch(() => {});
  history.replaceState(null, "", href(["sign-in"]));
  location.reload();
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
