import { s } from "../../strings";
import { Empty, Page } from "../../ui";

export default function Executions() {
  return (
    <Page title={s.app.executions}>
      <Empty title={s.ui.loading} />
    </Page>
  );
}
