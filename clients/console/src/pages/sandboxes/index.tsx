/** Kept sandboxes: the list, a new one, and one of them. */
import type { PageProps } from "../../app";
import { Create } from "./create";
import { List } from "./list";
import { Sandbox } from "./sandbox";

export default function Sandboxes({ route }: PageProps) {
  const [, id, tab = "overview", item] = route.path;
  if (id === undefined) return <List query={route.query} />;
  if (id === "new") return <Create like={route.query.get("like")} />;
  return <Sandbox key={id} id={id} tab={tab} item={/^\d{1,10}$/.test(item ?? "") ? Number(item) : undefined} />;
}
