/** Kept sandboxes: the list, a new one, and one of them. */
import type { PageProps } from "../../app";
import { useSession } from "../../lib/session";
import { s } from "../../strings";
import { Empty, Page } from "../../ui";
import { Create } from "./create";
import { List } from "./list";
import { Sandbox } from "./sandbox";

export default function Sandboxes({ route }: PageProps) {
  const session = useSession();
  if (!session.can("sandboxes")) {
    return (
      <Page title={s.sandboxes.title}>
        <Empty title={s.sandboxes.scope} />
      </Page>
    );
  }
  const [, id, tab = "overview", item] = route.path;
  if (id === undefined) return <List query={route.query} />;
  if (id === "new") return <Create like={route.query.get("like")} />;
  return <Sandbox key={id} id={id} tab={tab} item={/^\d{1,10}$/.test(item ?? "") ? Number(item) : undefined} />;
}
