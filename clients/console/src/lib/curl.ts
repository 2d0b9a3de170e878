/** Requests as they are typed in a shell, with the token of its environment. */
import { shell } from "./format";

export const BEARER = '-H "Authorization: Bearer $SANDBOXCTL_TOKEN"';

/** The options of a body. */
export const json = (body: unknown) => ["-H 'Content-Type: application/json'", `-d ${shell(JSON.stringify(body))}`];

/** The command, an option a line. */
export function curl(path: string, options: string[] = [BEARER]): string {
  return ["curl -sS", ...options, shell(new URL(path, location.href).href)].join(" \\\n  ");
}
