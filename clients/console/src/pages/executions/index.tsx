/** Executions: a list, and one of them. */
import type { PageProps } from "../../app";
import { ExecutionPage } from "./execution";
import { ExecutionList } from "./list";

export default function Executions({ route }: PageProps) {
  const id = route.path[1];
  return id === undefined ? <ExecutionList route={route} /> : <ExecutionPage key={id} id={id} route={route} />;
}
