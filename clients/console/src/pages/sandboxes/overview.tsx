/** What a sandbox is: its spec, and where it is in its life. */
import { s } from "../../strings";
import { Copy, Safe, Section, Time, Tree } from "../../ui";
import { Facts } from "../../ui/form";
import type { SandboxView } from "./calls";

const words = s.sandboxes;

export function Overview({ view }: { view: SandboxView }) {
  const { spec, metadata } = view;
  const ports = spec.ports === "any" ? words.any : (spec.ports ?? []).join(", ") || words.nobody;
  const limits = Object.fromEntries(Object.entries(spec.limits ?? {}).filter(([, value]) => value !== null));
  const id = (
    <>
      <code>{view.id}</code> <Copy text={view.id} />
    </>
  );
  const idle = (
    <>
      {words.idleAt[view.idle]} {view.idle_at ? <Time at={view.idle_at} /> : `(${words.inUse})`}
    </>
  );
  return (
    <div class="columns">
      <Section title={words.tabs.overview}>
        <Facts
          of={[
            [words.id, id],
            [words.image, <Safe key="" text={spec.image ?? words.noImage} />],
            [words.processes, `${view.processes ?? s.ui.unknown}, ${words.kept[spec.processes ?? "per_command"]}`],
            [words.generation, view.generation],
            [words.created, <Time key="" at={view.created_at} />],
            [words.lastUsed, <Time key="" at={view.last_used_at} />],
            [words.idle, idle],
            [words.expires, <Time key="" at={view.expires_at} />],
            [words.extendable, <Time key="" at={view.max_expires_at} />],
            [words.openPorts, ports],
            [words.network, <Safe key="" text={spec.network?.allow.join(", ") || words.nobody} />],
            [words.filesScope, words.scopes[spec.files ?? "io"]],
          ]}
        />
      </Section>
      {Object.entries({ [words.metadata]: metadata, [words.limits]: limits }).map(
        ([title, value]) =>
          Object.keys(value).length > 0 && (
            <Section key={title} title={title}>
              <Tree value={value} />
            </Section>
          ),
      )}
    </div>
  );
}
