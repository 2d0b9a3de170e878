/** A table whose rows are rendered again only when their entry changes. */
import { Component, type ComponentChildren } from "preact";

/** A column; its head names it. */
export type Column<T> = {
  head: string;
  cell: (row: T) => ComponentChildren;
  class?: string;
};

type RowProps<T> = { row: T; columns: readonly Column<T>[] };

class TableRow<T> extends Component<RowProps<T>> {
  override shouldComponentUpdate(next: RowProps<T>): boolean {
    return next.row !== this.props.row || next.columns !== this.props.columns;
  }

  override render({ row, columns }: RowProps<T>) {
    return (
      <tr>
        {columns.map((column) => (
          <td key={column.head} class={column.class} data-label={column.head}>
            {column.cell(row)}
          </td>
        ))}
      </tr>
    );
  }
}

/** `columns` has to be the same object from one render to the next: a constant, or of `useMemo`. */
export function Table<T>(props: {
  caption: string;
  columns: readonly Column<T>[];
  rows: readonly T[];
  keyOf: (row: T) => string;
}) {
  return (
    <div class="table-box">
      <table>
        <caption class="offscreen">{props.caption}</caption>
        <thead>
          <tr>
            {props.columns.map((column) => (
              <th key={column.head} scope="col" class={column.class}>
                {column.head}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {props.rows.map((row) => (
            <TableRow key={props.keyOf(row)} row={row} columns={props.columns as readonly Column<unknown>[]} />
          ))}
        </tbody>
      </table>
    </div>
  );
}
