/** Where the tests run: each engine, with programs for its sandboxes. `scripts/clients` names them. */
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { SandboxOptions } from "sandboxctl-loopstack";

/** An engine, and what its sandboxes have their programs from. */
export interface Place {
  options: SandboxOptions;
  imageName: string | undefined;
  /** A new directory of the host, for files of a sandbox. */
  directory(): string;
  remove(): void;
}

export const ENGINES = ["embedded", "docker"] as const;

function required(name: string): string {
  const value = process.env[name];
  if (!value) throw new Error(`${name} is not set: run scripts/clients`);
  return value;
}

/** The binary that is tested. */
export const BINARY = required("CLIENTS_TEST_BINARY");
const ROOTFS = required("CLIENTS_TEST_ROOTFS");
const IMAGE = required("CLIENTS_TEST_IMAGE");

export function place(engine: (typeof ENGINES)[number]): Place {
  const root = mkdtempSync(join(tmpdir(), "sandboxctl-loopstack-"));
  // The embedded engine has no images to name.
  const flags = engine === "embedded" ? ["--rootfs", ROOTFS] : [];
  let directories = 0;
  return {
    imageName: engine === "embedded" ? undefined : IMAGE,
    options: { binary: BINARY, engine, outPaths: [root], flags },
    directory() {
      directories += 1;
      const path = join(root, `out${directories}`);
      mkdirSync(path);
      return path;
    },
    remove: () => rmSync(root, { recursive: true, force: true }),
  };
}
