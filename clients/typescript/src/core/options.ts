/** Options of calls: what would be ignored is refused, which the types tell only programs in TypeScript. */

/** What other products call an option, by its name here. */
const RIGHT: Record<string, string> = {
  image: "template templateId imageName",
  rootfs: "rootDir rootFs",
  imageArchive: "archive imageTar tarball",
  ioDir: "volumes volumeMounts mounts binds",
  name: "sandboxId containerName id",
  network: "allow allowInternetAccess networkMode",
  server: "url baseUrl apiUrl domain host",
  token: "apiKey accessToken",
  limits: "memory memoryMb memLimit cpus cpuCount pidsLimit",
  timeoutMs: "timeout requestTimeoutMs requestTimeout ttlMs",
  metadata: "labels",
  background: "detach detached",
  onData: "onPty onOutput",
  cols: "size width columns",
  env: "environment envVars",
  cwd: "workdir workingDir workingDirectory",
  stdin: "input",
  onStdout: "onOutput",
  maxDepth: "depth",
  limit: "maxResults",
};
const HERE = new Map(
  Object.entries(RIGHT).flatMap(([here, names]) => names.split(" ").map((name) => [name, here] as const)),
);

/**
 * Refuses an option that does not exist, and whatever follows the options. `given` are the arguments of the call, of
 * which the options are the last.
 */
export function expectOptions(given: IArguments, count: number, names: readonly string[]): void {
  const rest = Array.from(given) as unknown[];
  const options = rest[count - 1];
  if (rest.slice(count).some((each) => each !== undefined)) {
    throw new TypeError(`the options are argument ${count} of this call, and must be the last`);
  }
  if (options === undefined) return;
  if (typeof options !== "object" || options === null || Array.isArray(options)) {
    throw new TypeError(`options: an object is expected as argument ${count}, with ${names.join(", ")}`);
  }
  const odd = Object.keys(options).find((name) => !names.includes(name));
  if (odd === undefined) return;
  const here = [HERE.get(odd), `${odd}s`].find((name) => name !== undefined && names.includes(name));
  const right = here !== undefined ? `it is '${here}'` : `there are ${names.join(", ")}`;
  throw new TypeError(`there is no option '${odd}': ${right}`);
}
